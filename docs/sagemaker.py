"""Writes the tables in sagemaker.md and iam.md from the code: python -m docs.sagemaker"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from trcomp import iam
from trcomp.backends.sagemaker_fields import FIELDS, NOT_SENT

PAGES = [Path(__file__).with_name(name) for name in ("sagemaker.md", "iam.md")]

V2 = {
    "every estimator": (
        *("role", "instance_count", "instance_type", "keep_alive_period_in_seconds", "volume_size"),
        *("volume_kms_key", "max_run", "input_mode", "output_path", "output_kms_key"),
        *("base_job_name", "sagemaker_session", "tags", "subnets", "security_group_ids"),
        *("model_uri", "model_channel_name", "metric_definitions"),
        *("encrypt_inter_container_traffic", "use_spot_instances", "max_wait"),
        *("checkpoint_s3_uri", "checkpoint_local_path", "rules", "debugger_hook_config"),
        *("tensorboard_output_config", "enable_sagemaker_metrics", "enable_network_isolation"),
        *("profiler_config", "disable_profiler", "environment", "max_retry_attempts"),
        *("source_dir", "git_config", "hyperparameters", "container_log_level", "code_location"),
        *("entry_point", "dependencies", "instance_groups", "training_repository_access_mode"),
        *("training_repository_credentials_provider_arn", "enable_infra_check"),
        *("container_entry_point", "container_arguments", "disable_output_compression"),
        *("enable_remote_debug", "enable_session_tag_chaining", "training_plan"),
        *("instance_placement_config", "image_uri"),
    ),
    "PyTorch": (
        *("framework_version", "py_version", "distribution", "compiler_config"),
        *("training_recipe", "recipe_overrides"),
    ),
    "HuggingFace": ("transformers_version", "tensorflow_version", "pytorch_version"),
    "fit": ("inputs", "wait", "logs", "job_name", "experiment_config"),
}
"""The parameters of SDK v2's estimators, 2.257; `make interop` compares them with the SDK's own."""

_OTHER = {
    "base_job_name": ("the same", "names the jobs"),
    "sagemaker_session": ("the same", "where AWS is reached"),
    "wait": ("the same", "none: it is `fit`'s own"),
    "logs": ("the same", "none: it is `fit`'s own"),
    "tensorflow_version": ("refused", "trcomp trains PyTorch"),
    "training_recipe": ("refused", "trcomp runs scripts"),
    "recipe_overrides": ("refused", "trcomp runs scripts"),
}
"""Parameters that become no field, and why."""


def page(text: str) -> str:
    """A page with its tables as the code has them now."""
    for name, table in TABLES.items():
        section = f"<!-- begin {name} -->\n{table}\n<!-- end {name} -->"
        pattern = rf"<!-- begin {name} -->\n.*?<!-- end {name} -->"
        text = re.sub(pattern, lambda _, own=section: own, text, flags=re.DOTALL)
    return text


def _words() -> Iterator[str]:
    yield from ("| word | field of CreateTrainingJob | |", "|---|---|---|")
    yield from (f"| `{field.word}` | `{field.path}` | {field.note} |" for field in FIELDS)
    yield from (f"| none | `{path}` | {reason} |" for path, reason in NOT_SENT.items())


def _v2() -> Iterator[str]:
    yield from ("| SDK v2 | parameter | trcomp | field of CreateTrainingJob |", "|---|---|---|---|")
    paths = {field.word: f"`{field.path}`" for field in FIELDS}
    for kind, names in V2.items():
        for name in names:
            ours, path = _OTHER[name] if name in _OTHER else ("the same", paths[name])
            yield f"| {kind} | `{name}` | {ours} | {path} |"


def _calls() -> Iterator[str]:
    yield from ("| call | action | on |", "|---|---|---|")
    places = {
        "jobs": "training jobs of the account and region",
        "all": "everything: it has no resource",
        "bucket": "the bucket of `--output-path`",
        "objects": "what lies under `--output-path`",
        "code": "`trcomp/code/` under `--output-path`",
        "log": "SageMaker's log of training jobs",
        "image": "the repository `trcomp`, for a job without `image_uri`",
    }
    for call, (action, where) in iam.CALLS.items():
        yield f"| `{call}` | `{action}` | {places[where]} |"


TABLES = {
    name: "\n".join(rows)
    for name, rows in {"words": _words(), "v2": _v2(), "calls": _calls()}.items()
}
"""Each by the name that stands around it in a page."""


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
