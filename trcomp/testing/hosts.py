"""The hosts of one try of a training job: how they are started, watched and told to stop."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trcomp import contract, flags
from trcomp.backends import local_jobs, record
from trcomp.backends.base import JobStatus
from trcomp.backends.local_plan import HostPlan, LocalPlan
from trcomp.backends.process_plan import host_addresses
from trcomp.backends.record import LocalRecord
from trcomp.backends.sagemaker_record import LONGEST_REASON
from trcomp.contract import Paths
from trcomp.spec import JobSpec
from trcomp.testing import host_files
from trcomp.testing.channels import Request

_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
"""What a host takes from this process: nothing but what its Python needs, and AWS's variables."""


def plan(request: Request, name: str, arn: str, directory: Path) -> LocalPlan:
    """What the hosts of one try are started with; their data is there once it is made.

    Raises:
        ClientFault: Something cannot be downloaded.
    """
    hosts = _hosts(request, name, arn, directory)
    (directory / "logs").mkdir(parents=True)
    return LocalPlan(
        backend="process",
        job_name=name,
        directory=directory,
        hosts=tuple(hosts),
        files=(),
        output_dir=directory / "output",
        spec=JobSpec.of(job_name=name, entry_point="train.py"),
    )


def start(plan: LocalPlan) -> None:
    """Start the hosts of a plan."""
    environ = {n: v for n, v in os.environ.items() if n in _INHERITED or n.startswith("AWS_")}
    prepared = local_jobs.first_record(plan)
    record.write(plan.directory, prepared)
    local_jobs.launch(plan, prepared, environ)


def failure_reason(ended: LocalRecord, hosts: Sequence[HostPlan]) -> str:
    """The failure's reason as SageMaker makes it, out of the failure file."""
    assert ended.failure is not None
    text = ended.failure.message
    for host in hosts:
        if host.name == ended.failure.host:
            with suppress(FileNotFoundError):
                text = Paths(host.root).failure.read_text(encoding="utf-8", errors="replace")
    code = f", exit code: {ended.failure.exit_code}"
    return f"AlgorithmError: {text}"[: LONGEST_REASON - len(code)] + code


def current(directory: Path) -> LocalRecord:
    """What is known of them now."""
    found = record.read(directory)
    assert found is not None
    if (
        not found.status.ended
        and found.status is not JobStatus.PREPARING
        and not found.runner_alive
    ):
        found = record.read(directory)
        assert found is not None
        return found if found.status.ended else found.abandoned()
    return found


def send(found: LocalRecord, number: signal.Signals) -> None:
    """Send a signal to what runs them, if it does."""
    if found.runner_pid is not None and found.runner_alive:
        with suppress(ProcessLookupError):
            os.kill(found.runner_pid, number)


def _hosts(request: Request, name: str, arn: str, directory: Path) -> list[HostPlan]:
    groups = host_files.groups_of(request)
    names = [host for group in groups for host in group.hosts]
    addresses = host_addresses(name, names)
    hosts = []
    for host in names:
        root = directory / "hosts" / host / "ml"
        host_files.prepare(request, Paths(root), host, names)
        environment = request.get("Environment", {}) | {
            "SAGEMAKER_BASE_DIR": str(root),
            "TRAINING_JOB_NAME": name,
            "TRAINING_JOB_ARN": arn,
            "AWS_REGION": os.environ["AWS_DEFAULT_REGION"],
            # Hosts of SageMaker find each other by name.
            flags.HOST_ADDRESSES.name: ",".join(f"{n}={ip}" for n, ip in addresses.items()),
        }
        hosts.append(
            HostPlan(
                name=host,
                argv=(sys.executable, "-P", "-m", "trcomp.entrypoint"),
                environment=environment,
                root=root,
                contract=contract.read(root, environment),
            )
        )
    return hosts
