"""What others build upon, frozen here so that it grows deliberately."""

from __future__ import annotations

import inspect

import click

import trcomp
from trcomp import flags
from trcomp.cli import cli


def test_exported_names() -> None:
    assert set(trcomp.__all__) == {
        "BackendUnavailableError",
        "ContractError",
        "DeviceError",
        "Estimator",
        "ForkedProcessError",
        "InternalError",
        "Job",
        "JobCapacityError",
        "JobError",
        "JobFailedError",
        "JobLimitError",
        "JobNotFoundError",
        "JobRunningError",
        "JobSpec",
        "JobStatus",
        "JobStoppedError",
        "JobTimeoutError",
        "MissingExtraError",
        "OutOfScopeError",
        "Plan",
        "Problem",
        "QuotaError",
        "SpecError",
        "TrainingCompilerConfig",
        "TrcompError",
        "UnsupportedError",
        "__version__",
        "sagemaker_kwargs",
        "step",
    }


def test_constructor_words() -> None:
    assert set(inspect.signature(trcomp.Estimator).parameters) == {
        "entry_point",
        "source_dir",
        "instance_type",
        "instance_count",
        "hyperparameters",
        "environment",
        "max_restarts",
        "compiler_config",
        "distribution",
        "output_path",
        "base_job_name",
        "checkpoint_s3_uri",
        "checkpoint_local_path",
        "container_log_level",
        "arguments",
        "role",
        "git_config",
        "dependencies",
        "model_uri",
        "model_channel_name",
        "sagemaker_session",
        "source_code",
        "compute",
        "networking",
        "stopping_condition",
        "managed",
    }


def test_fit_has_sagemakers_signature() -> None:
    parameters = inspect.signature(trcomp.Estimator.fit).parameters
    defaults = {name: p.default for name, p in parameters.items() if name != "self"}
    assert defaults == {"inputs": None, "wait": True, "logs": "All", "job_name": None} | {
        "experiment_config": None,
        "retries": 0,
    }


def test_commands_and_their_options() -> None:
    script = {"script", "script_args", "source_dir", "devices", "env", "inputs"}
    job = script | {"instance_type", "instance_count", "output_path", "checkpoint_uri"}
    job |= {"role", "image_uri", "more", "max_restarts"}
    job |= {"job_name", "compiler", "once_per_host", "debug", "cuda_to_xla", "profile_steps"}
    found = {name: {p.name for p in command.params} for name, command in cli.commands.items()}
    assert found == {
        "run": job | {"detach", "quiet", "retries", "profile", "as_json"},
        "plan": job | {"profile", "as_json"},
        "bench": script | {"steps", "as_json"},
        "profile": job | {"directory", "profile", "as_json"},
        "status": {"job", "as_json"},
        "top": {"job", "once", "as_json"},
        "logs": {"job", "follow", "as_json"},
        "list": {"backend", "as_json"},
        "remove": {"jobs", "as_json"},
        "stop": {"job", "no_wait", "as_json"},
        "download": {"job", "directory", "only", "as_json"},
        "config": set(),
        "completion": {"shell"},
        "iam-policy": {
            *("role", "who", "region", "output_path", "code_location"),
            *("reads", "writes", "image_uri", "kms_key", "vpc"),
        },
        "report": {"job", "file", "as_json"},
        "push": {"image", "to", "region", "gpu", "as_json"},
        "build": {
            *("gpu", "base_image", "extends", "requirements", "build_args"),
            *("rebuild", "context_file", "as_json"),
        },
        "doctor": {"job", "gpu", "online", "as_json"},
        "env": {
            "why",
            "instance_type",
            "instance_count",
            "devices",
            "only",
            "old_image",
            "as_json",
        },
    }


def test_every_command_says_what_it_does() -> None:
    for command in cli.commands.values():
        assert command.get_short_help_str()
        for option in command.params:
            assert not isinstance(option, click.Option) or option.opts


def test_exit_codes() -> None:
    codes = {
        name: getattr(trcomp, name).exit_code
        for name in trcomp.__all__
        if name.endswith("Error") and name != "JobFailedError"
    }
    assert codes == {
        "BackendUnavailableError": 69,
        "ContractError": 78,
        "DeviceError": 70,
        "ForkedProcessError": 70,
        "InternalError": 70,
        "JobCapacityError": 69,
        "JobError": 70,
        "JobLimitError": 143,
        "JobNotFoundError": 64,
        "JobRunningError": 75,
        "JobStoppedError": 143,
        "JobTimeoutError": 75,
        "MissingExtraError": 69,
        "QuotaError": 69,
        "OutOfScopeError": 64,
        "SpecError": 64,
        "TrcompError": 70,
        "UnsupportedError": 70,
    }


def test_flags_are_documented_and_distinct() -> None:
    names = [flag.name for flag in flags.ALL]
    assert len(names) == len(set(names))
    for flag in flags.ALL:
        assert flag.name.startswith("TRCOMP_")
        assert flag.help.endswith(".")
        assert flag.get({}) == flag.default
