"""What is fuzzed: all that reads what others write. A case ends well or with a clean error."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from tests.fuzz.draws import Draw, place
from tests.fuzz.executables import executables
from trcomp import Estimator, JobSpec, contract, defaults, flags, job_page
from trcomp.backends import record, results
from trcomp.backends.base import JobStatus, Transition
from trcomp.backends.record import LocalRecord
from trcomp.cli import cli, main
from trcomp.entrypoint import watchdog
from trcomp.entrypoint.discovery import discovered
from trcomp.entrypoint.failure import blamed
from trcomp.entrypoint.supervisor import Exit, Outcome, Worker
from trcomp.entrypoint.workers import Site, plan_workers
from trcomp.env.topology import Topology, uniform
from trcomp.env.variables import identifying, identity
from trcomp.errors import TrcompError
from trcomp.follow import report_rows, stage_text
from trcomp.json_output import print_json

Case = Callable[[Draw, Path], None]


@dataclass(frozen=True)
class Target:
    """One way in.

    Attributes:
        name: What it is called.
        case: Makes a case of draws and runs it in a directory; what it raises is a finding.
    """

    name: str
    case: Case


def _clean(run: Callable[[], Any]) -> Any:
    """What a call gives; None if it ends with an error that says what is wrong."""
    with contextlib.suppress(TrcompError):
        return run()
    return None


_HYPERPARAMETERS = {
    "lr": "0.1",
    "name": '"vit"',
    "layers": "[1, 2]",
    "sagemaker_program": '"train.py"',
    "sagemaker_job_name": '"job"',
    "sagemaker_training_compiler_enabled": "true",
    "sagemaker_training_compiler_cache": '"s3://bucket/x"',
    "sagemaker_container_log_level": "20",
    contract.ARGUMENTS_SETTING: '["--fp16"]',
}
_GROUP = {"instance_group_name": "one", "instance_type": "ml.p4d.24xlarge"}
_RESOURCES = {
    "current_host": "algo-1",
    "current_instance_type": "ml.p4d.24xlarge",
    "current_group_name": "one",
    "hosts": ["algo-1", "algo-2"],
    "instance_groups": [{**_GROUP, "hosts": ["algo-1", "algo-2"]}],
    "network_interface_name": "eth0",
}
_CHANNELS = {"train": {"TrainingInputMode": "File", "ContentType": "text/csv"}, "test": {}}
_CHECKPOINTS = {"S3Uri": "s3://bucket/c", "LocalPath": "/opt/ml/checkpoints"}
_FILES = {
    "hyperparameters.json": _HYPERPARAMETERS,
    "resourceconfig.json": _RESOURCES,
    "inputdataconfig.json": _CHANNELS,
    "checkpointconfig.json": _CHECKPOINTS,
}
_ENVIRON = {
    "TRAINING_JOB_NAME": "job",
    "SAGEMAKER_PROGRAM": "train.py",
    "GPU_NUM_DEVICES": "2",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_enable_fast_math=false",
    "http_proxy": "http://proxy:1",
    "CUDA_VISIBLE_DEVICES": "0,1",
    flags.HOST_ADDRESSES.name: "algo-1=127.1.1.1,algo-2=127.1.1.2",
    flags.BUCKET_MB.name: "32",
    flags.LOG_DIR.name: "/tmp/logs",
    flags.MAX_RESTARTS.name: "1",
    flags.CACHE.name: "off",
}


def contract_files(draw: Draw, directory: Path) -> None:
    """A host's files and variables, up to the processes that it would start."""
    paths = contract.Paths(directory)
    if not paths.code.exists():
        paths.config.mkdir(parents=True)
        paths.code.mkdir()
        (paths.code / "train.py").touch()
    for name, good in _FILES.items():
        place(paths.config / name, None if draw.one_in(20) else draw.damaged_json(good))
    environ = draw.damaged_environ(_ENVIRON)
    found = _clean(lambda: contract.read(directory, environ))
    if found is None:
        return
    gpus = draw.pick([(), ("0", "1")])
    topology = _clean(lambda: discovered(found, environ, gpus))
    if topology is not None:
        site = Site(found, paths, topology, environ, directory, gpus, num_cpus=4)
        for worker in _clean(lambda: plan_workers(site)) or ():
            _passable([*worker.argv, *(f"{k}={v}" for k, v in worker.environ.items())])


def _passable(texts: list[str]) -> None:
    for text in texts:
        assert "\0" not in text
        os.fsencode(text)


_WORDS: dict[str, Any] = {
    "entry_point": "train.py",
    "instance_type": "local_process",
    "instance_count": 2,
    "hyperparameters": {"lr": 0.1, "layers": [1, 2]},
    "environment": {"A": "b"},
    "distribution": {"pytorchxla": {"enabled": True}},
    "output_path": "file:///tmp/x",
    "checkpoint_s3_uri": "file:///tmp/c",
    "arguments": ["--fp16"],
    "role": "arn:aws:iam::111122223333:role/trains",
    "max_run": 60,
    "tags": [{"Key": "a", "Value": "b"}],
    "metric_definitions": [{"Name": "loss", "Regex": "loss ([0-9.]+)"}],
}


def words(draw: Draw, directory: Path) -> None:
    """The words of an estimator, up to the plan of its job."""
    (directory / "train.py").touch()
    given = {**_WORDS, "entry_point": str(directory / "train.py")}
    given = {name: value for name, value in given.items() if not draw.one_in(3)}
    found = draw.damaged(given)
    if not isinstance(found, dict):
        return
    inputs = draw.value() if draw.one_in(4) else None
    spec = _clean(lambda: Estimator(**found).to_spec(inputs, job_name="job"))
    if spec is not None:
        assert JobSpec.from_json(spec.to_json()) == spec


_SPEC = {
    **{"job_name": "job", "entry_point": "/tmp/train.py", "hyperparameters": {"lr": 0.1}},
    **{"environment": {"A": "b"}, "instance_type": "local_process", "instance_count": 1},
    **{"compiler_config": {"enabled": True}, "inputs": [{"channel": "a", "uri": "file:///tmp"}]},
}


def spec_text(draw: Draw, directory: Path) -> None:
    """The text of a job's description."""
    text = draw.damaged_json(_SPEC).decode(errors="surrogateescape")
    _clean(lambda: JobSpec.from_json(text))


_READ_ONLY = ("plan", "env", "status", "logs", "list", "stop", "remove", "report", "download")
_COMMANDS = (*_READ_ONLY, "config", "completion", "iam-policy", "nonsense")
_VALUES = (*("2", "local_process", "local", "train.py", "job=x", "A=b", "max_run=60"),)


def command_line(draw: Draw, directory: Path) -> None:
    """Arguments of the command line; none of these commands starts anything."""
    (directory / "train.py").touch()
    command = draw.pick(_COMMANDS)
    options = (
        [o for p in cli.commands[command].params for o in p.opts] if command in cli.commands else []
    )
    arguments = [command]
    for _ in range(draw.below(6)):
        kind = draw.below(3)
        if kind == 0 and options:
            arguments.append(draw.pick(options))
        else:
            arguments.append(draw.pick(_VALUES) if kind == 1 else draw.text().replace("\0", ""))
    # Nobody is asked: there is no SageMaker and no container engine.
    if any(
        "sagemaker" in text or text.startswith(("ml.", "docker", "local_gpu")) for text in arguments
    ):
        return
    outside = {flags.HOME.name: str(directory), "DOCKER_HOST": "tcp://127.0.0.1:9"}
    streams = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, outside),
        contextlib.chdir(directory),
        contextlib.redirect_stdout(streams[0]),
        contextlib.redirect_stderr(streams[1]),
    ):
        code = main(arguments)
    assert code in {0, 64, 69, 75, 78}, (arguments, code, streams[1].getvalue())


_RANK = {
    **{"rank": 0, "world_size": 2, "host": "algo-1", "steps": 5, "compiles": 2, "loads": 1},
    **{"cache_hits": 3, "early_syncs": 1, "fallbacks": {"nonzero": 2}, "compile_seconds": 1.5},
    **{"steady_step_seconds": 0.1, "samples_per_second": 10.0, "peak_rss_bytes": 10**9},
    **{
        "record_seconds": 1.0,
        "run_seconds": 1.0,
        "first_step_seconds": 2.0,
        "new_graph_steps": [0],
    },
    "versions": {"torch": "2.13.0"},
    "varying": {"graphs": [], "inputs": []},
    "timeline": {
        "steps": [[2, 0.1, 0.2], [3, 0.1, 0.1]],
        "compiles": [
            {"step": 0, "at_seconds": 1.0, "seconds": 0.5, "operations": 9, "loaded": False}
            | {"reason": "", "line": "/opt/ml/code/train.py:3"}
        ],
        "made": [[1.5, 1], [1.7, 2], [1.8, 3]],
        "memory": [[0.5, 10**8]],
    },
}
_VARIABLES = {
    "host": "algo-1",
    "rank": 0,
    "variables": [{"name": "A", "value": "b", "reason": "c"}],
}


def _record() -> LocalRecord:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    states = (JobStatus.PREPARING, JobStatus.TRAINING, JobStatus.COMPLETED)
    steps = [Transition(status=s, time=begin + timedelta(seconds=i)) for i, s in enumerate(states)]
    return LocalRecord(
        name="job",
        backend="process",
        instance_type="local_process",
        hosts=("algo-1",),
        transitions=tuple(steps),
        directory=Path("/jobs/job"),
    )


def report(draw: Draw, directory: Path) -> None:
    """What workers leave of their measurements, which a script can write too, up to the page."""
    texts = [draw.damaged_json(good) for good in (_RANK, {**_RANK, "rank": 1}, _VARIABLES)]
    found = results.report_of("process://job", texts)
    with contextlib.redirect_stdout(io.StringIO()):
        print_json(found)
    report_rows(found["totals"])
    job_page.page(_record(), found, [])


def job_record(draw: Draw, directory: Path) -> None:
    """A job's record, up to its page."""
    text = draw.damaged_json(json.loads(_record().model_dump_json()))
    place(directory / record.FILE, text)
    found = _clean(lambda: record.read(directory))
    if found is not None:
        [stage_text(step, found.transitions[0].time) for step in found.transitions]
        job_page.page(found, {}, ["loss 0.5"])


_PROGRESS = {"rank": 0, "pid": 2**22 + 1, "steps": 3, "since": 1.0, "collectives": 2}
_ERROR = {
    "time": 1.0,
    "rank": 0,
    "host": "algo-1",
    "exception": "E: x",
    "traceback": "Traceback",
    "exit_code": 1,
}
_FAILURE = b"ValueError: x\nrank 1 on host algo-1, exit code 3\n\nTraceback"


def workers_files(draw: Draw, directory: Path) -> None:
    """What workers leave for their supervisor, and hosts for their runner."""
    place(directory / "rank-0.progress", draw.damaged_json(_PROGRESS))
    with mock.patch.object(os, "kill"), mock.patch.object(watchdog, "_STACKS_SECONDS", 0.0):
        watchdog.Watchdog(directory, 600, directory).stall(lambda seconds: None)
    place(directory / "rank-0.json", draw.damaged_json(_ERROR))
    worker = Worker(0, ("x",), {}, directory, error_file=directory / "rank-0.json")
    ended = Exit(worker, draw.pick([1, -9, 0]), 5.0, draw.one_in(2), draw.damaged_bytes(b"x\n"))
    failed = blamed(Outcome((ended,)), "algo-1")
    if failed is not None:
        assert failed.text
        assert failed.summary
    text = draw.damaged_bytes(_FAILURE).decode(errors="replace")
    results.failure_from(text, 1, "algo-1")


_TOPOLOGY = json.loads(uniform(["algo-1", "algo-2"], 2, "cpu").to_json())


def environment(draw: Draw, directory: Path) -> None:
    """The variables that a worker reads."""
    good = identifying(identity({})) | {
        flag.name: str(int(bool(flag.default))) for flag in flags.ALL
    }
    environ = draw.damaged_environ(good)
    _clean(lambda: identity(environ))
    for flag in flags.ALL:
        _clean(lambda: flag.get(environ))  # noqa: B023
    text = draw.damaged_json(_TOPOLOGY).decode(errors="surrogateescape")
    topology = _clean(lambda: Topology.from_json(text))
    if topology is not None:
        assert topology.world_size == len(topology.ranks())
        assert topology.coordinator


_TOML = (
    b'role = "arn:x"\n[profiles.big]\ninstance_type = "ml.p4d.24xlarge"\nhyperparameters = {a=1}\n'
)


def settings_file(draw: Draw, directory: Path) -> None:
    """A project's trcomp.toml."""
    place(directory / defaults.FILE, draw.damaged_bytes(_TOML))
    environ = draw.damaged_environ({flags.WORD_PREFIX + "ROLE": "x", flags.PROFILE.name: "big"})
    _clean(lambda: defaults.found(directory, environ, draw.pick([None, "big", "small"])))


TARGETS = tuple(
    Target(case.__name__.replace("_", "-"), case)
    for case in (
        *(contract_files, words, spec_text, command_line, report),
        *(job_record, workers_files, environment, settings_file, executables),
    )
)
NEEDS_JAX = ("executables",)
"""The names of those that need torch and jax."""
