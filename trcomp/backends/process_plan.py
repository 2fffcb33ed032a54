"""The plan of a process job: the processes, environment and files that its spec asks for."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trcomp import contract, flags, s3
from trcomp.backends import local_request
from trcomp.backends.local_plan import HostPlan, LocalPlan
from trcomp.env import executables
from trcomp.errors import Problem, SpecError
from trcomp.spec import JobSpec

NAME = "process"
_REFUSED = {
    "container_entry_point": "Processes run in no container.",
    "container_arguments": "Processes run in no container.",
    "enable_network_isolation": "Processes on this machine reach its network.",
}
"""Words of SageMaker's that processes cannot honour; the others have no meaning for them."""


def problems(spec: JobSpec) -> list[Problem]:
    """What this backend cannot do of a spec."""
    found = local_request.problems(spec)
    checkpoints = spec.checkpoint_local_path
    if checkpoints and not Path(checkpoints).is_relative_to(contract.DEFAULT_BASE):
        allowed = f"a path under {contract.DEFAULT_BASE} is needed."
        found.append(Problem("checkpoint_local_path", checkpoints, allowed))
    for word, why in _REFUSED.items():
        if spec.managed.get(word):
            allowed = f"{why} Leave it out, or use instance_type='local' or ml.*"
            found.append(Problem(word, spec.managed.get(word), allowed))
    return found


def plan(spec: JobSpec) -> LocalPlan:
    """The processes, environment and files of a job.

    Raises:
        SpecError: Holds everything that `problems` finds.
    """
    found = problems(spec)
    if found:
        raise SpecError(found)
    common = local_request.fields(spec)
    names = local_request.host_names(spec)
    addresses = host_addresses(spec.job_name, names)
    hosts = tuple(_plan_host(spec, common["directory"], name, addresses) for name in names)
    return LocalPlan(backend=NAME, hosts=hosts, **common)


def host_addresses(job_name: str, names: Sequence[str]) -> dict[str, str]:
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


def _plan_host(spec: JobSpec, directory: Path, name: str, addresses: Mapping[str, str]) -> HostPlan:
    root = directory / "hosts" / name / "ml"
    compiler = spec.compiler_config
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
        contract=local_request.host_contract(
            spec,
            name,
            cache=None if compiler is None else _cache_place(compiler.cache),
            network_interface="lo",
        ),
    )


def _cache_place(cache: str | os.PathLike[str] | None) -> str | None:
    """A directory as seen from anywhere: workers run elsewhere."""
    if cache is None or cache == executables.OFF or s3.is_url(cache):
        return None if cache is None else str(cache)
    return str(Path(os.path.expanduser(cache)).absolute())
