"""JobSpec: one job described completely, valid by construction, JSON both ways."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    JsonValue,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from trcomp import flags, rules, s3, sdk
from trcomp.config import TrainingCompilerConfig, asked_for, distribution_problems
from trcomp.container import CONTAINER_NAMES, ContainerWords
from trcomp.env.topology import MOST_HOSTS
from trcomp.errors import Problem, SpecError, nearest
from trcomp.inputs import Input, local_path, to_inputs, to_uri, with_model
from trcomp.managed import NAMES, ManagedWords
from trcomp.rules import checked


class GitConfig(BaseModel):
    """A git repository. How it is reached, and who may read it, is git's own configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    repo: str
    branch: str | None = None
    commit: str | None = None


class JobSpec(BaseModel):
    """One job, described completely. Making it starts, writes and uploads nothing.

    Build it with `JobSpec.of`, which reports every problem at once as a `SpecError`; pydantic's own
    constructor reports the same problems as a ``ValidationError``. Values are copied, and paths
    made absolute.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    job_name: str
    git_config: GitConfig | None = None
    """The repository that source_dir, entry_point and dependencies are in, cloned at submission."""
    source_dir: str | None = None
    """Absolute, ``s3://`` (a prefix or a tar.gz archive), or relative to the repository. None: only
    the script's own file reaches the job."""
    entry_point: str
    """The script: relative to source_dir, or an absolute path if there is no source_dir.

    A path from the working directory is taken too if it leads to a file inside source_dir.
    """
    dependencies: tuple[str, ...] = ()
    """More files and directories for the job's code, each by its own name beside the script."""
    hyperparameters: dict[str, JsonValue] = {}
    """In the user's order, which is the order of the script's arguments."""
    arguments: tuple[str, ...] = ()
    """More of the script's arguments, behind those, exactly as they are."""
    max_restarts: int | None = None
    """How often workers start anew within the job if its script fails; None: environment says."""
    environment: dict[str, str] = {}
    """What max_restarts asks for is among them."""
    instance_type: str = "local_process"
    instance_count: int = 1
    compiler_config: TrainingCompilerConfig | None = None
    """None: the script runs once per host and starts its ranks itself."""
    distribution: dict[str, JsonValue] | None = None
    """Where there is no compiler_config, what it asks for becomes one."""
    inputs: tuple[Input, ...] = ()
    """Also takes what `fit` takes: one place (channel "training"), or a dict by channel."""
    output_path: str | None = None
    """``file://`` or ``s3://``; None leaves the results in the job's own directory."""
    checkpoint_s3_uri: str | None = None
    """Where checkpoints are kept from one job to the next; ``file://`` is allowed."""
    checkpoint_local_path: str | None = None
    """Where the script keeps its checkpoints; None is SageMaker's /opt/ml/checkpoints."""
    container_log_level: int = 20
    role: str | None = None
    """ARN of the IAM role that a job in SageMaker acts as."""
    managed: ManagedWords = {}
    """Words for SageMaker alone, as far as they are given. They may stand among the others too."""
    container: ContainerWords = {}
    """Words for containers on this machine alone, likewise."""

    @classmethod
    def of(cls, **words: Any) -> Self:
        """The spec of these fields.

        Raises:
            SpecError: Holds every problem of every field.
        """
        try:
            return cls(**words)
        except ValidationError as error:
            raise SpecError(_problems(error)) from None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The spec that `to_json` wrote.

        Raises:
            SpecError: The text is no spec; holds every problem.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SpecError(_problems(error)) from None

    def to_json(self) -> str:
        """The spec as JSON text, which `from_json` reads back as an equal spec."""
        return self.model_dump_json(indent=2)

    @property
    def program(self) -> str:
        """The entry point relative to the job's code directory."""
        return self.entry_point if self.source_dir else Path(self.entry_point).name

    @property
    def pytorchxla(self) -> bool:
        """Whether `distribution` asks for XLA's own workers."""
        return (self.distribution or {}).get("pytorchxla") == {"enabled": True}

    @property
    def source_uri(self) -> str | None:
        """Where in S3 the code lies already, None if it is on this machine."""
        return self.source_dir if s3.is_url(self.source_dir) else None

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The instance groups, in the request's own form."""
        return self.managed.get("instance_groups", [])

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, words: Any) -> Any:
        """The words with those for one backend alone in a dict of their own."""
        if not isinstance(words, Mapping):
            return words
        found = derived(sdk.gathered(words))
        for field, names in (("managed", NAMES), ("container", CONTAINER_NAMES)):
            own = {name: copied(found[name]) for name in names if found.get(name) is not None}
            found = {name: value for name, value in found.items() if name not in names}
            found |= {field: {**found.get(field, {}), **own}} if own else {}
        return found

    @field_validator("job_name")
    @classmethod
    def _job_name(cls, value: str) -> str:
        return checked(value, rules.job_name_problems("job_name", value))

    @field_validator("git_config", mode="before")
    @classmethod
    def _git_config(cls, value: Any) -> Any:
        return checked(value, rules.git_config_problems(value))

    @field_validator("source_dir", mode="before")
    @classmethod
    def _source_dir(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None:
            return None
        checked(value, rules.place_problems("source_dir", value))
        if info.data.get("git_config") is not None:
            return checked(str(value), rules.relative_problems("source_dir", str(value)))
        path = local_path(to_uri(value))
        return str(value) if path is None else str(path)

    @field_validator("entry_point", mode="before")
    @classmethod
    def _entry_point(cls, value: Any, info: ValidationInfo) -> Any:
        checked(value, rules.place_problems("entry_point", value))
        root, path = info.data.get("source_dir"), Path(os.path.expanduser(value))
        if s3.is_url(root) or info.data.get("git_config") is not None:
            return checked(os.path.normpath(path), rules.relative_problems("entry_point", path))
        if root is None:
            return str(path.absolute())
        return _relative_script(path, Path(root))

    @field_validator("dependencies", mode="before")
    @classmethod
    def _dependencies(cls, value: Any, info: ValidationInfo) -> Any:
        given = [value] if isinstance(value, str | Path) else value or ()
        problem = Problem("dependencies", value, "a list of files and directories is needed.")
        checked(given, [] if isinstance(given, list | tuple) else [problem])
        in_repository = info.data.get("git_config") is not None
        return tuple(_dependency(item, in_repository) for item in given)

    @field_validator("hyperparameters", mode="before")
    @classmethod
    def _hyperparameters(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return {} if value is None else value
        checked(value, rules.hyperparameters_problems(value))
        return copied(value)

    @field_validator("arguments", mode="before")
    @classmethod
    def _arguments(cls, value: Any) -> Any:
        given = () if value is None else value
        return checked(given, rules.arguments_problems(given))

    @field_validator("environment", mode="before")
    @classmethod
    def _environment(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, Mapping) and value is not None:
            return value
        found = dict(value or {})
        restarts, name = info.data.get("max_restarts"), flags.MAX_RESTARTS.name
        wanted = {} if restarts is None else {name: str(restarts)}
        problems = list(rules.environment_problems(found))
        if found.get(name, wanted.get(name)) != wanted.get(name, found.get(name)):
            allowed = f"max_restarts is {restarts}; leave out one of the two."
            problems.append(Problem(f"environment[{name!r}]", found[name], allowed))
        return checked(found | wanted, problems)

    @field_validator("managed")
    @classmethod
    def _managed(cls, value: ManagedWords) -> ManagedWords:
        return checked(value, rules.encodable_problems(value))

    @field_validator("instance_type")
    @classmethod
    def _instance_type(cls, value: str) -> str:
        return checked(value, rules.instance_type_problems(value))

    @field_validator("max_restarts", mode="before")
    @classmethod
    def _restarts(cls, value: Any) -> Any:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        problem = Problem("max_restarts", value, "a whole number from 0 is needed.")
        return checked(value, [] if whole or value is None else [problem])

    @field_validator("instance_count", "container_log_level", mode="before")
    @classmethod
    def _whole_number(cls, value: Any, info: ValidationInfo) -> Any:
        whole = isinstance(value, int) and not isinstance(value, bool)
        problem = Problem(info.field_name or "", value, "a whole number is needed.")
        return checked(value, [] if whole else [problem])

    @field_validator("instance_count")
    @classmethod
    def _at_least_one(cls, value: int) -> int:
        problem = Problem("instance_count", value, f"1 to {MOST_HOSTS:,} is needed.")
        return checked(value, [] if 1 <= value <= MOST_HOSTS else [problem])

    @field_validator("distribution", mode="before")
    @classmethod
    def _distribution(cls, value: Any) -> Any:
        return checked(value, distribution_problems(value))

    @field_validator("inputs", mode="before")
    @classmethod
    def _inputs(cls, value: Any) -> Any:
        if value is None:
            return ()
        if isinstance(value, (list, tuple)) and all(isinstance(i, Input | dict) for i in value):
            return value
        inputs, problems = to_inputs(value)
        return checked(tuple(inputs), problems)

    @field_validator("output_path", "checkpoint_s3_uri", mode="before")
    @classmethod
    def _place(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None:
            return None
        checked(value, rules.place_problems(info.field_name or "", value))
        return to_uri(value)

    @field_validator("role")
    @classmethod
    def _role(cls, value: str | None) -> str | None:
        return checked(value, rules.text_problems("role", value or ""))

    @field_validator("checkpoint_local_path")
    @classmethod
    def _checkpoint_path(cls, value: str | None) -> str | None:
        return checked(value, rules.checkpoint_path_problems(value) if value else [])


def derived(words: dict[str, Any]) -> dict[str, Any]:
    """A job's words with those that others stand for: groups, a model, a way of distribution."""
    found = {name: value for name, value in words.items() if value is not None or name in NAMES}
    managed = found.get("managed", {})
    groups = found.get("instance_groups") or managed.get("instance_groups") or []
    choice = found.get("instance_preferences") or managed.get("instance_preferences") or groups
    listed = isinstance(choice, list) and isinstance(groups, list)
    if listed and choice and all(isinstance(item, Mapping) for item in (*choice, *groups)):
        found.setdefault("instance_type", choice[0].get("InstanceType"))
        counts = [item.get("InstanceCount") for item in groups or choice[:1]]
        if all(isinstance(count, int) for count in counts):
            found.setdefault("instance_count", sum(counts))
    given = found.get("distribution")
    if found.get("compiler_config") is None and not distribution_problems(given):
        found["compiler_config"] = asked_for(given)
    model, channel = found.pop("model_uri", None), found.pop("model_channel_name", None) or "model"
    if model is not None:
        found["inputs"] = with_model(found.get("inputs"), channel, model)
    return found


def copied(value: Any) -> Any:
    """A copy down to what is no container, with lists for tuples, as JSON gives it back."""
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(item) for item in value]
    return value


def _dependency(value: Any, in_repository: bool) -> str:
    checked(value, rules.place_problems("dependencies", value))
    if in_repository:
        return checked(str(value), rules.relative_problems("dependencies", str(value)))
    path = local_path(to_uri(value))
    problem = Problem("dependencies", value, "a file or directory on this machine is needed.")
    return checked(os.path.normpath(str(path)), [] if path else [problem])


def _relative_script(script: Path, root: Path) -> str:
    """A script relative to source_dir, where it can be; it may be given relative to it already."""
    here, root = (Path(os.path.normpath(path.absolute())) for path in (script, root))
    elsewhere = script.is_absolute() or (os.path.isfile(here) and not os.path.isfile(root / script))
    if elsewhere and here.is_relative_to(root):
        return str(here.relative_to(root))
    return os.path.normpath(script)


def _problems(error: ValidationError) -> list[Problem]:
    found: list[Problem] = []
    seen: set[str] = set()
    for entry in error.errors(include_url=False):
        context = entry.get("ctx", {})
        cause = context.get("error")
        location = entry["loc"]
        # Of a word that may be of several types pydantic complains once per type.
        inside = location[:1] in {("managed",), ("container",)} and location[1:]
        field = str(location[1]) if inside else ""
        if field and field in seen:
            continue
        seen.add(field)
        field = field or ".".join(str(part) for part in location) or "spec"
        if "problems" in context:
            found += context["problems"]
        elif isinstance(cause, SpecError):
            found += cause.problems
        elif entry["type"] == "missing":
            found.append(Problem(field, None, "it is needed."))
        elif entry["type"] == "extra_forbidden":
            found.append(_unknown(field, entry["input"]))
        else:
            found.append(Problem(field, entry["input"], f"{entry['msg']}."))
    return found


def _unknown(word: str, value: object) -> Problem:
    if word in _ELSEWHERE:
        return Problem(word, value, _ELSEWHERE[word])
    words = [*JobSpec.model_fields, "base_job_name", *NAMES, *CONTAINER_NAMES, *sdk.COMPOSITE]
    if word in sdk.COMPOSITE:
        return Problem(word, value, sdk.WANTED)
    return Problem(word, value, "there is no such word.", nearest(word, words))


_ELSEWHERE = {
    "tensorflow_version": "trcomp trains PyTorch; leave it out.",
    "sagemaker_session": "a job's description holds no session; give it to an Estimator.",
    "training_recipe": "trcomp runs scripts: give an entry_point.",
    "recipe_overrides": "trcomp runs scripts: give an entry_point.",
}
"""Words of SageMaker's SDKs that are none of a job's description, and what to do instead."""
