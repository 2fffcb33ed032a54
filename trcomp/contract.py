"""What one host of a job finds under /opt/ml: written by the launcher, read by the entrypoint.

    input/config/hyperparameters.json   every value a JSON text; sagemaker_* are settings
    input/config/resourceconfig.json    hosts, this host, network interface, instance groups
    input/config/inputdataconfig.json   channels; the data of one lies in input/data/<channel>/
    input/config/checkpointconfig.json  only if the job has checkpoints
    code/  model/  checkpoints/  output/data/  output/intermediate/  output/failure

The files are the ones SageMaker writes, so nothing downstream knows which backend started the job.
Writing, reading and the SM_* names stay in this one file so that they are changed together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from trcomp.errors import ContractError, SpecError
from trcomp.profile_steps import ProfileSteps

DEFAULT_BASE = "/opt/ml"
DEFAULT_GROUP = "homogeneousCluster"
"""The group that SageMaker reports for a job without instance groups."""

GROUPS_SETTING = "sagemaker_distribution_instance_groups"
"""The setting that names the instance groups on whose hosts the ranks run."""

ARGUMENTS_SETTING = "sagemaker_script_arguments"
"""The setting with the arguments that are no hyperparameters; only trcomp's entrypoint knows it."""

METRICS_SETTING = "sagemaker_metric_definitions"
"""The setting with the job's metric definitions, which SageMaker keeps for itself."""

_RESERVED = "sagemaker_"


@dataclass(frozen=True)
class Channel:
    """One input of the job; its data lies in ``input/data/<name>``."""

    name: str
    mode: str = "File"
    content_type: str | None = None


@dataclass(frozen=True)
class Checkpoints:
    """Where the job's checkpoints live on a host, and the place they are synced to."""

    local_path: str = f"{DEFAULT_BASE}/checkpoints"
    s3_uri: str | None = None


@dataclass(frozen=True)
class InstanceGroup:
    """Hosts of one instance type."""

    name: str
    instance_type: str
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Settings:
    """What the launcher tells the container, as reserved hyperparameters ``sagemaker_*``."""

    program: str | None = None
    """The entry point, relative to ``code/``."""
    submit_directory: str | None = None
    compiler_enabled: bool | None = None
    """None if the job has no compiler_config: the script then runs once per host."""
    compiler_debug: bool = False
    cuda_to_xla: bool = True
    """Whether `cuda` means the worker's xla device."""
    compiler_cache: str | None = None
    """A directory, ``s3://bucket/prefix`` or "off"; None if the job says nothing of it."""
    profile_steps: tuple[int, int] | None = None
    """The first and the last step of which each rank writes a trace."""
    metric_definitions: Mapping[str, str] = field(default_factory=dict)
    """Of each metric that the script prints, the pattern whose first group is a value of it."""
    pytorchxla_enabled: bool = False
    arguments: tuple[str, ...] = ()
    """The script's arguments after its hyperparameters, exactly as they are."""
    log_level: int = 20
    """A level of Python's logging module; 20 is INFO."""
    region: str | None = None
    other: Mapping[str, Any] = field(default_factory=dict)
    """Settings that trcomp has no use for, by their full names."""


@dataclass(frozen=True)
class Contract:
    """What one host sees of a job.

    ``hosts`` is kept in text order (algo-1, algo-10, algo-2), the order in which SageMaker lists
    them, whatever order it is given in: ranks follow from it, and every host must count alike.
    """

    job_name: str
    hosts: tuple[str, ...]
    current_host: str
    hyperparameters: Mapping[str, Any]
    settings: Settings
    instance_type: str
    network_interface_name: str = "eth0"
    instance_groups: tuple[InstanceGroup, ...] = ()
    current_group: str = DEFAULT_GROUP
    channels: tuple[Channel, ...] = ()
    checkpoints: Checkpoints | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", tuple(sorted(self.hosts)))
        if not self.instance_groups:
            group = InstanceGroup(self.current_group, self.instance_type, self.hosts)
            object.__setattr__(self, "instance_groups", (group,))

    @property
    def argv(self) -> list[str]:
        """The script's arguments: its hyperparameters, then those that are not of that form."""
        return [*to_argv(self.hyperparameters), *self.settings.arguments]

    @property
    def rank_groups(self) -> tuple[InstanceGroup, ...]:
        """The groups on whose hosts the ranks run: those that `distribution` names, or all."""
        named = self.settings.other.get(GROUPS_SETTING, [])
        chosen = tuple(group for group in self.instance_groups if group.name in named)
        return chosen or self.instance_groups

    @property
    def rank_hosts(self) -> tuple[str, ...]:
        """The hosts of these groups, in the order of ``hosts``."""
        own = {host for group in self.rank_groups for host in group.hosts}
        return tuple(host for host in self.hosts if host in own)


@dataclass(frozen=True)
class Paths:
    """The places of the contract under one root, /opt/ml or what stands for it."""

    root: Path

    @property
    def input(self) -> Path:
        return self.root / "input"

    @property
    def config(self) -> Path:
        return self.input / "config"

    def data(self, channel: str) -> Path:
        return self.input / "data" / channel

    @property
    def code(self) -> Path:
        return self.root / "code"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def output(self) -> Path:
        return self.root / "output"

    @property
    def output_data(self) -> Path:
        return self.output / "data"

    @property
    def intermediate(self) -> Path:
        return self.output / "intermediate"

    @property
    def failure(self) -> Path:
        return self.output / "failure"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def local(self, path: str) -> Path:
        """A path as the container spells it, moved under this root if it lies in /opt/ml."""
        pure = PurePosixPath(path)
        if pure.is_relative_to(DEFAULT_BASE):
            return self.root / pure.relative_to(DEFAULT_BASE)
        return Path(path)


def base_dir(environ: Mapping[str, str]) -> Path:
    """The contract's root: SAGEMAKER_BASE_DIR, or /opt/ml."""
    return Path(environ.get("SAGEMAKER_BASE_DIR") or DEFAULT_BASE)


def write(root: Path, contract: Contract) -> None:
    """Write the whole tree of one host; existing files of the same name are replaced."""
    paths = Paths(root)
    directories = [paths.config, paths.input / "data", paths.code, paths.model]
    directories += [paths.output_data, paths.intermediate]
    directories += [paths.checkpoints] if contract.checkpoints is not None else []
    directories += [paths.data(channel.name) for channel in contract.channels]
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
    _dump(paths.config / "hyperparameters.json", to_hyperparameters(contract))
    _dump(paths.config / "resourceconfig.json", _resource_config(contract))
    _dump(paths.config / "inputdataconfig.json", _input_data_config(contract))
    if contract.checkpoints is not None:
        _dump(
            paths.config / "checkpointconfig.json",
            {
                "S3Uri": contract.checkpoints.s3_uri,
                "LocalPath": contract.checkpoints.local_path,
            },
        )


def read(root: Path, environ: Mapping[str, str] | None = None) -> Contract:
    """The contract that lies under a root; ``read(root)`` after ``write(root, x)`` equals x.

    Args:
        root: /opt/ml or its stand-in.
        environ: The container's environment, which names the job (TRAINING_JOB_NAME) and the
            entry point (SAGEMAKER_PROGRAM) where the hyperparameters do not.

    Raises:
        ContractError: Files are missing or broken; the message lists every problem.
    """
    reader = _Reader(Paths(root).config)
    hyperparameters, reserved = reader.hyperparameters()
    environ = environ or {}
    job_name = reserved.pop("sagemaker_job_name", None) or environ.get("TRAINING_JOB_NAME")
    if not job_name:
        reader.problem("the job has no name: no sagemaker_job_name and no TRAINING_JOB_NAME")
    if environ.get("SAGEMAKER_PROGRAM"):
        reserved.setdefault("sagemaker_program", environ["SAGEMAKER_PROGRAM"])
    settings = reader.settings(reserved)
    resources = reader.resources()
    channels = reader.channels()
    checkpoints = reader.checkpoints()
    if reader.problems:
        lines = "\n".join(f"  - {problem}" for problem in reader.problems)
        raise ContractError(
            f"The job's files under {root} are broken:\n{lines}",
            "Check what started this container; trcomp writes these files with contract.write.",
        )
    return Contract(
        job_name=str(job_name),
        hyperparameters=hyperparameters,
        settings=settings,
        channels=channels,
        checkpoints=checkpoints,
        **resources,
    )


def to_hyperparameters(contract: Contract) -> dict[str, str]:
    """The script's hyperparameters and the settings as they travel: each value a JSON text."""
    values = dict(contract.hyperparameters) | reserved(contract.settings, contract.job_name)
    return {name: json.dumps(value) for name, value in values.items()}


def to_argv(hyperparameters: Mapping[str, Any]) -> list[str]:
    """The script's arguments, ``--name value`` in the user's order.

    None is not sent. A string goes byte for byte, the empty one too. A number is written as Python
    writes it. A bool is ``True`` or ``False`` as SageMaker sends it: argparse's ``type=bool`` takes
    any non-empty text for true, so a script must compare the text. A list or dict is JSON. A value
    that starts with "-" is sent as ``--name=value``, or argparse would take it for an option.
    """
    argv: list[str] = []
    for name, value in hyperparameters.items():
        if value is None:
            continue
        text = json.dumps(value) if isinstance(value, (list, tuple, dict)) else str(value)
        argv += [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
    return argv


def sm_variables(
    contract: Contract, paths: Paths, *, num_gpus: int, num_cpus: int
) -> dict[str, str]:
    """Every SM_* variable (and its kin) that SageMaker's own containers give a script.

    A channel or hyperparameter whose upper-cased name is no shell identifier is exported twice:
    as the original toolkit spells it (SM_HP_LEARNING-RATE) and with underscores.

    Source of the names: sagemaker-training 5.1.4, environment.py and mapping.py.
    """
    values = _training_env(contract, paths, num_gpus, num_cpus)
    variables = {f"SM_{name.upper()}": _text(value) for name, value in values.items()}
    variables["SM_TRAINING_ENV"] = json.dumps(values)
    variables["SM_HPS"] = variables.pop("SM_HYPERPARAMETERS")
    for name, value in contract.hyperparameters.items():
        _export(variables, f"SM_HP_{name}", _text(value))
    for channel in contract.channels:
        _export(variables, f"SM_CHANNEL_{channel.name}", str(paths.data(channel.name)))
    variables["SM_CHANNELS"] = json.dumps([channel.name for channel in contract.channels])
    variables |= {"CURRENT_HOST": contract.current_host, "SAGEMAKER_JOB_NAME": contract.job_name}
    if contract.settings.region:
        variables["SAGEMAKER_REGION"] = contract.settings.region
    return variables


def script_arguments(environ: Mapping[str, str]) -> list[str]:
    """The script's arguments, from the variable in which `sm_variables` has them."""
    return [str(argument) for argument in json.loads(environ.get("SM_USER_ARGS", "[]"))]


def is_job_variable(name: str) -> bool:
    """Whether a variable describes one job to its script, so that no other job may inherit it."""
    own = {"SAGEMAKER_BASE_DIR", "TRAINING_JOB_NAME", "SAGEMAKER_JOB_NAME", "CURRENT_HOST"}
    return name.startswith("SM_") or name in own


def _training_env(
    contract: Contract, paths: Paths, num_gpus: int, num_cpus: int
) -> dict[str, object]:
    settings = contract.settings
    groups = {group["instance_group_name"]: group for group in _groups(contract)}
    current = groups.get(contract.current_group, {})
    return {
        "hosts": list(contract.hosts),
        "current_host": contract.current_host,
        "network_interface_name": contract.network_interface_name,
        "current_instance_type": contract.instance_type,
        "current_instance_group": contract.current_group,
        "current_instance_group_hosts": current.get("hosts", []),
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "distribution_instance_groups": settings.other.get(GROUPS_SETTING, []),
        "is_hetero": len({group.instance_type for group in contract.instance_groups}) > 1,
        "hyperparameters": dict(contract.hyperparameters),
        "framework_params": reserved(settings, contract.job_name),
        "framework_module": "trcomp.entrypoint.__main__:main",
        "module_name": (settings.program or "").removesuffix(".py"),
        "module_dir": settings.submit_directory or str(paths.code),
        "user_entry_point": settings.program,
        "user_args": contract.argv,
        "log_level": settings.log_level,
        "job_name": contract.job_name,
        "channels": {c.name: str(paths.data(c.name)) for c in contract.channels},
        "input_data_config": _input_data_config(contract),
        "resource_config": _resource_config(contract),
        "input_dir": str(paths.input),
        "input_config_dir": str(paths.config),
        "model_dir": str(paths.model),
        "output_dir": str(paths.output),
        "output_data_dir": str(paths.output_data),
        "output_intermediate_dir": str(paths.intermediate),
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "num_neurons": 0,
    }


def _export(variables: dict[str, str], name: str, value: str) -> None:
    upper = name.upper()
    identifier = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in upper)
    variables.setdefault(identifier, value)
    if not set(upper) & {"=", "\0"}:  # No system can hold such a name.
        variables[upper] = value


def _text(value: object) -> str:
    """A value as the original toolkit writes it into a variable: None is empty, text is bare."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def reserved(settings: Settings, job_name: str | None = None) -> dict[str, Any]:
    """Settings as the hyperparameters that they travel as."""
    values = {
        "sagemaker_program": settings.program,
        "sagemaker_submit_directory": settings.submit_directory,
        "sagemaker_job_name": job_name,
        "sagemaker_region": settings.region,
        "sagemaker_container_log_level": settings.log_level,
        "sagemaker_training_compiler_enabled": settings.compiler_enabled,
        "sagemaker_training_compiler_debug_mode": settings.compiler_debug or None,
        "sagemaker_training_compiler_cuda_to_xla": None if settings.cuda_to_xla else False,
        "sagemaker_training_compiler_cache": settings.compiler_cache,
        "sagemaker_training_compiler_profile_steps": settings.profile_steps,
        "sagemaker_pytorch_xla_multi_worker_enabled": settings.pytorchxla_enabled or None,
        ARGUMENTS_SETTING: list(settings.arguments) or None,
        METRICS_SETTING: dict(settings.metric_definitions) or None,
    }
    return {name: v for name, v in values.items() if v is not None} | dict(settings.other)


def _groups(contract: Contract) -> list[dict[str, Any]]:
    return [
        {
            "instance_group_name": group.name,
            "instance_type": group.instance_type,
            "hosts": list(group.hosts),
        }
        for group in contract.instance_groups
    ]


def _resource_config(contract: Contract) -> dict[str, Any]:
    return {
        "current_host": contract.current_host,
        "current_instance_type": contract.instance_type,
        "current_group_name": contract.current_group,
        "hosts": list(contract.hosts),
        "instance_groups": _groups(contract),
        "network_interface_name": contract.network_interface_name,
    }


def _input_data_config(contract: Contract) -> dict[str, dict[str, str]]:
    config: dict[str, dict[str, str]] = {}
    for channel in contract.channels:
        entry = {"TrainingInputMode": channel.mode, "S3DistributionType": "FullyReplicated"}
        if channel.content_type is not None:
            entry["ContentType"] = channel.content_type
        config[channel.name] = entry | {"RecordWrapperType": "None"}
    return config


def _dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


class _Reader:
    """Reads the configuration files of one host and collects what is wrong with them."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.problems: list[str] = []

    def problem(self, text: str) -> None:
        self.problems.append(text)

    def load(self, name: str, *, optional: bool = False) -> dict[str, Any]:
        try:
            value = json.loads((self.config / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            if not optional:
                self.problem(f"{name}: the file is missing")
            return {}
        except (OSError, ValueError) as error:
            self.problem(f"{name}: not readable as JSON: {error}")
            return {}
        if not isinstance(value, dict):
            self.problem(f"{name}: got {type(value).__name__}; a JSON object is needed")
            return {}
        return value

    def hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        user: dict[str, Any] = {}
        reserved: dict[str, Any] = {}
        for name, text in self.load("hyperparameters.json", optional=True).items():
            if not isinstance(text, str):
                self.problem(f"hyperparameters.json: {name}: got {text!r}; all values are strings")
                continue
            (reserved if name.startswith(_RESERVED) else user)[name] = decoded(text)
        return user, reserved

    def settings(self, reserved: dict[str, Any]) -> Settings:
        take = self._take
        return Settings(
            program=take(reserved, "sagemaker_program", str, None),
            submit_directory=take(reserved, "sagemaker_submit_directory", str, None),
            compiler_enabled=take(reserved, "sagemaker_training_compiler_enabled", bool, None),
            compiler_debug=take(reserved, "sagemaker_training_compiler_debug_mode", bool, False),
            cuda_to_xla=take(reserved, "sagemaker_training_compiler_cuda_to_xla", bool, True),
            compiler_cache=take(reserved, "sagemaker_training_compiler_cache", str, None),
            profile_steps=self._profile_steps(reserved),
            metric_definitions=self._metric_definitions(reserved),
            pytorchxla_enabled=take(
                reserved, "sagemaker_pytorch_xla_multi_worker_enabled", bool, False
            ),
            arguments=self._arguments(reserved),
            log_level=take(reserved, "sagemaker_container_log_level", int, 20),
            region=take(reserved, "sagemaker_region", str, None),
            other=reserved,
        )

    def _profile_steps(self, reserved: dict[str, Any]) -> tuple[int, int] | None:
        name = "sagemaker_training_compiler_profile_steps"
        try:
            return ProfileSteps.checked(reserved.pop(name, None), f"hyperparameters.json: {name}")
        except SpecError as error:
            self.problem(str(error.problems[0]))
            return None

    def _metric_definitions(self, reserved: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = self._take(reserved, METRICS_SETTING, dict, {})
        if all(isinstance(pattern, str) for pattern in found.values()):
            return found
        self.problem(f"hyperparameters.json: {METRICS_SETTING}: got {found!r}; patterns are text")
        return {}

    def _arguments(self, reserved: dict[str, Any]) -> tuple[str, ...]:
        found = self._take(reserved, ARGUMENTS_SETTING, list, [])
        if all(isinstance(item, str) for item in found):
            return tuple(found)
        self.problem(f"hyperparameters.json: {ARGUMENTS_SETTING}: got {found!r}; a list of text")
        return ()

    def resources(self) -> dict[str, Any]:
        name = "resourceconfig.json"
        config = self.load(name)
        hosts = self._names(config.get("hosts"), f"{name}: hosts") if config else ()
        current = config.get("current_host")
        if config and current not in hosts:
            self.problem(f"{name}: current_host: got {current!r}; one of hosts {list(hosts)}")
        groups = tuple(self._instance_groups(config.get("instance_groups") or []))
        first_type = groups[0].instance_type if groups else "unknown"
        return {
            "hosts": hosts,
            "current_host": str(current),
            "instance_type": str(config.get("current_instance_type") or first_type),
            "network_interface_name": str(config.get("network_interface_name") or "eth0"),
            "instance_groups": groups,
            "current_group": str(config.get("current_group_name") or DEFAULT_GROUP),
        }

    def channels(self) -> tuple[Channel, ...]:
        channels = []
        for name, entry in self.load("inputdataconfig.json", optional=True).items():
            where = f"inputdataconfig.json: {name}"
            if name in {"", ".", ".."} or "/" in name:
                self.problem(f"{where}: a channel is named like a directory, without '/'")
            elif not isinstance(entry, dict):
                self.problem(f"{where}: got {entry!r}; a JSON object is needed")
            else:
                mode = self._text(entry, "TrainingInputMode", where) or "File"
                channels.append(Channel(name, mode, self._text(entry, "ContentType", where)))
        return tuple(channels)

    def checkpoints(self) -> Checkpoints | None:
        config = self.load("checkpointconfig.json", optional=True)
        if not config:
            return None
        where = "checkpointconfig.json"
        local_path = self._text(config, "LocalPath", where) or f"{DEFAULT_BASE}/checkpoints"
        return Checkpoints(local_path=local_path, s3_uri=self._text(config, "S3Uri", where))

    def _text(self, entry: dict[str, Any], name: str, where: str) -> str | None:
        value = entry.get(name)
        if value is None or isinstance(value, str):
            return value
        self.problem(f"{where}: {name}: got {value!r}; text is needed")
        return None

    def _instance_groups(self, entries: Any) -> Iterator[InstanceGroup]:
        where = "resourceconfig.json: instance_groups"
        for entry in entries if isinstance(entries, list) else [entries]:
            if not isinstance(entry, dict) or "instance_group_name" not in entry:
                self.problem(f"{where}: got {entry!r}; an object with instance_group_name")
                continue
            hosts = self._names(entry.get("hosts"), f"{where}: hosts")
            instance_type = str(entry.get("instance_type") or "unknown")
            yield InstanceGroup(str(entry["instance_group_name"]), instance_type, hosts)

    def _names(self, value: Any, where: str) -> tuple[str, ...]:
        names = value if isinstance(value, list) else []
        if not names or len(set(map(str, names))) != len(names):
            self.problem(f"{where}: got {value!r}; a list of distinct names, at least one")
        return tuple(str(name) for name in names)

    def _take(self, reserved: dict[str, Any], name: str, kind: type, default: Any) -> Any:
        value = reserved.pop(name, default)
        # Exact types: to isinstance a bool is an int, and True is no log level.
        if value is default or type(value) is kind:
            return value
        self.problem(f"hyperparameters.json: {name}: got {value!r}; a JSON {kind.__name__}")
        return default


def decoded(text: str) -> Any:
    """A hyperparameter: JSON, or text that stands for itself, as SageMaker's API allows."""
    try:
        return json.loads(text)
    except ValueError:
        return text
