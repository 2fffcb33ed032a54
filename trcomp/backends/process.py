"""The process backend: a job is a directory and plain processes on this machine.

    $TRCOMP_HOME/jobs/NAME/
      job.json  plan.json             the record, and the request with its secrets masked
      hosts/HOST/ml/                  the whole /opt/ml tree of one host
      logs/HOST.log                   what the host printed, each line with its rank
      logs/HOST/rank-N.log            what one worker printed
      output/  report.json            model.tar.gz and output.tar.gz; what the workers measured

submit() prepares the directory and starts a runner (process_runner.py) that outlives this process
and is the only one to write the record from then on; everyone else reads.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trcomp import contract, flags
from trcomp.backends import record, results, source
from trcomp.backends.base import Cursor, Failure, HostPlan, InputLink, JobStatus, Plan
from trcomp.backends.directory import prepare
from trcomp.backends.process_runner import KILL
from trcomp.backends.record import ProcessRecord
from trcomp.env import variables
from trcomp.errors import (
    BackendUnavailableError,
    InternalError,
    JobNotFoundError,
    Problem,
    SpecError,
)
from trcomp.spec import JobSpec, local_path

NAME = "process"
_OWN_VARIABLES = (
    "SAGEMAKER_BASE_DIR",
    "TRAINING_JOB_NAME",
    flags.HOST_ADDRESSES.name,
    flags.LOG_DIR.name,
)
_ANSWER_SECONDS = 10
_CHUNK_BYTES = 1 << 20


def problems(spec: JobSpec) -> list[Problem]:
    """What this backend cannot do of a spec."""
    found = source.problems(spec)
    places = {"output_path": spec.output_path, "checkpoint_s3_uri": spec.checkpoint_s3_uri}
    places |= {f"inputs[{item.channel!r}]": item.uri for item in spec.inputs}
    for field, uri in places.items():
        if uri is not None and local_path(uri) is None:
            allowed = "S3 is not supported yet; a local job takes a path or file://."
            found.append(Problem(field, uri, allowed))
    for item in spec.inputs:
        if item.path is not None and not item.path.exists():
            field = f"inputs[{item.channel!r}]"
            found.append(Problem(field, str(item.path), "there is no such file or directory."))
    checkpoints = spec.checkpoint_local_path
    if checkpoints and not Path(checkpoints).is_relative_to(contract.DEFAULT_BASE):
        allowed = f"a path under {contract.DEFAULT_BASE} is needed."
        found.append(Problem("checkpoint_local_path", checkpoints, allowed))
    return found + _environment_problems(spec.environment)


def plan(spec: JobSpec) -> Plan:
    """The processes, environment and files of a job.

    Raises:
        SpecError: Holds everything that `problems` finds.
    """
    found = problems(spec)
    if found:
        raise SpecError(found)
    directory = jobs_directory() / spec.job_name
    names = [f"algo-{index + 1}" for index in range(spec.instance_count)]
    addresses = host_addresses(spec.job_name, names)
    output = local_path(spec.output_path) if spec.output_path else None
    return Plan(
        backend=NAME,
        job_name=spec.job_name,
        directory=directory,
        hosts=tuple(_plan_host(spec, directory, name, addresses) for name in names),
        files=source.plan_files(spec),
        inputs=tuple(
            InputLink(channel=item.channel, source=item.path) for item in spec.inputs if item.path
        ),
        output_dir=output / spec.job_name / "output" if output else directory / "output",
        checkpoint_dir=local_path(spec.checkpoint_s3_uri) if spec.checkpoint_s3_uri else None,
        spec=spec,
    )


def submit(plan: Plan) -> None:
    """Make the job's directory, copy the code, start the runner and return.

    Raises:
        SpecError: A job of that name exists.
        BackendUnavailableError: The directory cannot be written.
        KeyboardInterrupt: If it came in time, nothing runs; else the job does, and can be stopped.
    """
    _make_directory(plan)
    prepared = _first_record(plan)
    try:
        record.write(plan.directory, prepared)
        prepare(plan)
    except KeyboardInterrupt:
        stopped = prepared.entered(JobStatus.STOPPED, "Interrupted while it was prepared.")
        record.write(plan.directory, stopped)
        raise
    except OSError as error:
        message = f"The job could not be prepared: {error}"
        _give_up(plan, prepared, message)
        raise BackendUnavailableError(
            message, f"{flags.HOME.name} may name a place with more room."
        ) from error
    with _interrupts_deferred():
        started = _start_runner(plan)
    if not started:
        log = plan.directory / "runner.log"
        _give_up(plan, prepared, "The job's runner did not start.")
        raise InternalError(f"The job's runner did not start; see {log}.")


def describe(name: str) -> ProcessRecord:
    """The job's record as true now.

    Raises:
        JobNotFoundError: No job has that name.
    """
    directory = jobs_directory() / name
    found = record.read(directory)
    if found is None:
        raise JobNotFoundError(
            f"There is no job process://{name} in {directory.parent}.",
            f"process://{name}",
            "`trcomp list` shows the jobs; TRCOMP_HOME says where they are kept.",
        )
    if found.status.ended or found.runner_alive:
        return found
    # The runner may have written how the job ended between the two looks: read once more.
    found = record.read(directory) or found
    return found if found.status.ended else found.abandoned()


def read_logs(name: str, cursor: Cursor, final: bool) -> tuple[list[str], Cursor]:
    """The whole lines after a cursor, host by host; with several hosts each line names its host."""
    found = describe(name)
    lines: list[str] = []
    following = dict(cursor)
    for host in found.hosts:
        path = found.directory / "logs" / f"{host}.log"
        text, following[host] = _read_lines(path, cursor.get(host, 0), final)
        lines += [_named(host, line) if len(found.hosts) > 1 else line for line in text]
    return lines, following


def stop(name: str) -> None:
    """Ask the job's runner to stop it; a second call kills it. A job that has ended stays so.

    Returns when the runner has heard: signals do not queue, and a second would be lost.
    """
    # While a job is prepared its owner is the submitting process, which is not ours to signal.
    found = _until_not(name, {JobStatus.PREPARING})
    if found.status is JobStatus.PREPARING:
        raise BackendUnavailableError(
            f"{found.handle} is still being prepared by process {found.runner_pid}.",
            "Interrupt that process (Ctrl-C), or try again.",
        )
    if found.status.ended or found.runner_pid is None:
        return
    number = KILL if found.status is JobStatus.STOPPING else signal.SIGTERM
    with suppress(ProcessLookupError):
        # The descriptor holds this very process: a pid that is used again is not hit.
        descriptor = os.pidfd_open(found.runner_pid)
        try:
            if found.runner_alive:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
    _until_not(name, {JobStatus.STARTING, JobStatus.TRAINING})


def report(name: str) -> dict[str, Any]:
    """What the job's workers have measured so far."""
    found = describe(name)
    return results.merged_report(found.handle, _roots(found))


def names() -> list[str]:
    """The jobs of this machine, oldest first."""
    directory = jobs_directory()
    found = [(path.stat().st_mtime, path.parent.name) for path in directory.glob("*/plan.json")]
    return [name for _, name in sorted(found)]


def jobs_directory() -> Path:
    """Where job directories live."""
    home = flags.HOME.get() or "~/.local/share/trcomp"
    return Path(home).expanduser().absolute() / "jobs"


def host_addresses(job_name: str, names: list[str]) -> dict[str, str]:
    """A loopback address per host, the job's own: two jobs may use the same ports at once.

    All of 127.0.0.0/8 is this machine on Linux; 127.0.x.y is left to others.
    """
    network = int.from_bytes(hashlib.sha256(job_name.encode()).digest()[:4]) % (254 * 256)
    addresses = {}
    for index, name in enumerate(names):
        block, last = divmod(index, 254)
        second, third = divmod((network + block) % (254 * 256), 256)
        addresses[name] = f"127.{second + 1}.{third}.{last + 1}"
    return addresses


def _until_not(name: str, states: set[JobStatus]) -> ProcessRecord:
    """The record once the job has left these states, or after a while."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while (found := describe(name)).status in states and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _environment_problems(environment: Mapping[str, str]) -> list[Problem]:
    own = {*_OWN_VARIABLES, *(flag.name for flag in flags.JOB_ONLY)}
    found = []
    for name in environment:
        if name in own:
            found.append(Problem("environment", name, "trcomp sets this variable itself."))
    for flag in flags.ALL:
        try:
            flag.get(environment)
        except SpecError as error:
            found += error.problems
    return found


def _plan_host(spec: JobSpec, directory: Path, name: str, addresses: Mapping[str, str]) -> HostPlan:
    root = directory / "hosts" / name / "ml"
    own = {
        "SAGEMAKER_BASE_DIR": str(root),
        "TRAINING_JOB_NAME": spec.job_name,
        flags.HOST_ADDRESSES.name: ",".join(f"{host}={ip}" for host, ip in addresses.items()),
        flags.LOG_DIR.name: str(directory / "logs" / name),
    }
    return HostPlan(
        name=name,
        # -P: a user's file named like a standard module must not shadow it in the entrypoint.
        argv=(sys.executable, "-P", "-m", "trcomp.entrypoint"),
        environment=spec.environment | own,
        root=root,
        contract=_contract(spec, name, tuple(addresses)),
    )


def _contract(spec: JobSpec, host: str, hosts: tuple[str, ...]) -> contract.Contract:
    compiler = spec.compiler_config
    local = spec.checkpoint_local_path or contract.Checkpoints.local_path
    return contract.Contract(
        job_name=spec.job_name,
        hosts=hosts,
        current_host=host,
        hyperparameters=spec.hyperparameters,
        settings=contract.Settings(
            program=spec.program,
            compiler_enabled=None if compiler is None else compiler.enabled,
            compiler_debug=compiler is not None and compiler.debug,
            pytorchxla_enabled=spec.pytorchxla,
            log_level=spec.container_log_level,
        ),
        instance_type=spec.instance_type,
        network_interface_name="lo",
        channels=tuple(contract.Channel(i.channel, "File", i.content_type) for i in spec.inputs),
        checkpoints=contract.Checkpoints(local, spec.checkpoint_s3_uri)
        if spec.checkpoint_s3_uri or spec.checkpoint_local_path
        else None,
    )


def _make_directory(plan: Plan) -> None:
    try:
        plan.directory.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        problem = Problem("job_name", plan.job_name, f"{plan.directory} holds a job of that name.")
        raise SpecError([problem], f"Choose another name, or remove {plan.directory}.") from None
    except OSError as error:
        raise BackendUnavailableError(
            f"The job's directory cannot be made: {error}.",
            f"Set {flags.HOME.name} to a directory that you can write to.",
        ) from error


def _give_up(plan: Plan, prepared: ProcessRecord, message: str) -> None:
    with suppress(OSError):
        failure = Failure(message=message, exit_code=70)
        record.write(plan.directory, prepared.failed(failure))


def _first_record(plan: Plan) -> ProcessRecord:
    # Until the runner takes over, the job lives as long as the process that prepares it.
    return ProcessRecord(
        name=plan.job_name,
        backend=NAME,
        directory=plan.directory,
        instance_type=plan.spec.instance_type,
        hosts=tuple(host.name for host in plan.hosts),
        transitions=(),
        runner_pid=os.getpid(),
        runner_start=record.start_ticks(os.getpid()),
    ).entered(JobStatus.PREPARING)


def _start_runner(plan: Plan) -> bool:
    with (plan.directory / "runner.log").open("wb") as stream:
        # The plan goes through a pipe: its environment may hold secrets, which stay off the disk.
        started = subprocess.run(
            [sys.executable, "-P", "-m", "trcomp.backends.process_runner"],
            input=plan.model_dump_json().encode(),
            env=inherited(os.environ),
            stdout=stream,
            stderr=stream,
            start_new_session=True,
            check=False,
        )
    return started.returncode == 0


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Let Ctrl-C wait until there is a runner that can be stopped, or none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if received:
        signal.raise_signal(signal.SIGINT)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """What a job takes over from whoever submits it: all but what describes an enclosing job."""
    enclosing = {flag.name for flag in flags.JOB_ONLY} | variables.JOB_ONLY
    return {
        name: value
        for name, value in environ.items()
        if name not in enclosing and not contract.is_job_variable(name)
    }


def _roots(found: ProcessRecord) -> list[contract.Paths]:
    return [contract.Paths(found.directory / "hosts" / host / "ml") for host in found.hosts]


def _read_lines(path: Path, offset: int, final: bool) -> tuple[list[str], int]:
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            data = stream.read(_CHUNK_BYTES)
    except FileNotFoundError:
        return [], offset
    full = len(data) == _CHUNK_BYTES
    whole = data.rfind(b"\n") + 1
    # A line without its end is a line if nothing can follow, or if it is endless.
    if not (final and not full) and not (full and whole == 0):
        data = data[:whole]
    lines = data.decode(errors="replace").split("\n")
    return lines[:-1] if not lines[-1] else lines, offset + len(data)


def _named(host: str, line: str) -> str:
    own = line.startswith(("[rank ", "[trcomp] "))
    return f"[{host} {line[1:]}" if own else f"[{host}] {line}"
