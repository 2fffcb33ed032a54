"""What objects of SageMaker's SDKs v2 and v3 say, in a job's words and in the request's own form.

None of them is imported: an object is known by its attributes, so that no SDK need be installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trcomp.config import TrainingCompilerConfig

_COMPOSITE: dict[str, dict[str, str]] = {
    "source_code": {"source_dir": "source_dir", "entry_script": "entry_point"},
    "compute": {
        "instance_type": "instance_type",
        "instance_count": "instance_count",
        "volume_size_in_gb": "volume_size",
        "volume_kms_key_id": "volume_kms_key",
        "keep_alive_period_in_seconds": "keep_alive_period_in_seconds",
        "instance_groups": "instance_groups",
        "training_plan_arn": "training_plan",
        "instance_placement_config": "instance_placement_config",
        "instance_preferences": "instance_preferences",
        "enable_managed_spot_training": "use_spot_instances",
    },
    "networking": {
        "subnets": "subnets",
        "security_group_ids": "security_group_ids",
        "enable_network_isolation": "enable_network_isolation",
        "enable_inter_container_traffic_encryption": "encrypt_inter_container_traffic",
    },
    "stopping_condition": {
        "max_runtime_in_seconds": "max_run",
        "max_wait_time_in_seconds": "max_wait",
        "max_pending_time_in_seconds": "max_pending",
    },
}
"""Words of SDK v3's ModelTrainer whose objects say several of ours: theirs to ours."""

COMPOSITE = tuple(_COMPOSITE)
WANTED = (
    "an object of SageMaker's SDK v3 is needed, that says what no other word says; of source_code "
    "no command, no requirements but requirements.txt, and no ignore_patterns: .trcompignore lists "
    "what stays behind."
)
_LEFT_BEHIND = {".env", ".git", "__pycache__", ".DS_Store", ".cache", ".ipynb_checkpoints"}
"""SDK v3's own ignore_patterns."""

_FORMS = (
    "_to_request_dict",
    "to_debugger_rule_config_dict",
    "to_profiler_rule_config_dict",
)
"""Methods by which objects of SDK v2 give the request's own form."""


def gathered(words: Mapping[str, Any]) -> dict[str, Any]:
    """A job's words, with objects of the SDKs taken apart.

    An object that says what another word says too, or what trcomp has no word for, is left as it
    is: it is then no known word, and `WANTED` says what is.
    """
    found = dict(words)
    for word, names in _COMPOSITE.items():
        given = found.get(word)
        if given is None:
            found.pop(word, None)
            continue
        own = {ours: plain(getattr(given, name, None)) for name, ours in names.items()}
        own = {ours: value for ours, value in own.items() if value not in (None, False)}
        told = any(found.get(ours) for ours in own)
        if not told and hasattr(given, next(iter(names))) and _honoured(given):
            del found[word]
            found |= own
    found |= _rules(found)
    for word, convert in _CONVERTED.items():
        if found.get(word) is not None:
            found[word] = convert(found[word])
    return found


def plain(value: Any) -> Any:
    """An object in the request's own form, without what it leaves open; other values stay."""
    if type(value).__name__ == "Unassigned":
        return None
    for method in _FORMS:
        if hasattr(value, method):
            return plain(getattr(value, method)())
    if hasattr(type(value), "model_fields"):
        items = ((name, plain(getattr(value, name))) for name in type(value).model_fields)
        return {_camel(name): item for name, item in items if item is not None}
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def leaves(form: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value inside nested objects, with its path such as ``ShuffleConfig.Seed``."""
    for name, value in form.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _honoured(given: Any) -> bool:
    """Whether a source_code, or another object, asks for nothing that trcomp has no word for."""
    requirements = plain(getattr(given, "requirements", None))
    patterns = plain(getattr(given, "ignore_patterns", None)) or []
    return (
        plain(getattr(given, "command", None)) is None
        and requirements in (None, "requirements.txt")
        and _LEFT_BEHIND.issuperset(patterns)
    )


def channel_form(given: Any) -> dict[str, Any]:
    """SageMaker's form of a channel that is SDK v3's InputData or Channel."""
    source = given.data_source
    names = ("content_type", "compression_type", "record_wrapper_type", "input_mode")
    values = {name: plain(getattr(given, name, None)) for name in (*names, "shuffle_config")}
    form = {_camel(name): value for name, value in values.items() if value is not None}
    if isinstance(source, str | Path):
        in_s3 = str(source).startswith("s3://")
        kind = {"S3DataSource": {"S3Uri": str(source)}}
        form["DataSource"] = kind if in_s3 else {"FileDataSource": {"FileUri": str(source)}}
    elif hasattr(source, "s3_uri"):
        form["DataSource"] = {"S3DataSource": plain(source)}
    elif hasattr(source, "file_system_id"):
        form["DataSource"] = {"FileSystemDataSource": plain(source)}
    else:
        form["DataSource"] = plain(source)
    return form


def _compiler_config(given: Any) -> Any:
    """SDK v2's TrainingCompilerConfig as trcomp's own."""
    named = type(given).__name__ == "TrainingCompilerConfig"
    if not named or isinstance(given, TrainingCompilerConfig):
        return given
    return TrainingCompilerConfig(given.enabled, given.debug)


def _distribution(given: Any) -> Any:
    """Instance groups in it by their names, and paths as text."""
    if not isinstance(given, Mapping):
        return given
    groups, own = given.get("instance_groups"), given.get("trcomp")
    found = dict(given)
    if isinstance(groups, list | tuple):
        found["instance_groups"] = [getattr(it, "instance_group_name", it) for it in groups]
    if isinstance(own, Mapping) and isinstance(own.get("cache"), os.PathLike):
        found["trcomp"] = {**own, "cache": os.fspath(own["cache"])}
    return found


def _preferences(given: Any) -> Any:
    """Types, or objects that name one, in the request's own form."""
    if not isinstance(given, list | tuple):
        return given
    return [{"InstanceType": item} if isinstance(item, str) else plain(item) for item in given]


_CONVERTED: dict[str, Callable[[Any], Any]] = {
    "compiler_config": _compiler_config,
    "distribution": _distribution,
    "instance_groups": plain,
    "instance_preferences": _preferences,
    "rules": plain,
    "profiler_rules": plain,
    "debugger_hook_config": plain,
    "profiler_config": plain,
    "tensorboard_output_config": plain,
    "mlflow_config": plain,
    "model_package_config": plain,
    "instance_placement_config": plain,
}


def _rules(words: Mapping[str, Any]) -> dict[str, Any]:
    """SDK v2's list of rules, as the two lists that the request has."""
    given = words.get("rules")
    if not isinstance(given, list | tuple):
        return {}
    profiler = [item for item in given if hasattr(item, "to_profiler_rule_config_dict")]
    own = {"rules": [item for item in given if item not in profiler]}
    if profiler:
        own["profiler_rules"] = [*(words.get("profiler_rules") or ()), *profiler]
    return own


def _camel(name: str) -> str:
    special = {"s3": "S3", "gb": "GB"}
    return "".join(special.get(part, part.capitalize()) for part in name.split("_"))
