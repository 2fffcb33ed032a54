"""The plan of a process job: the processes, environment and files that its spec asks for."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from trcomp import contract, flags, s3
from trcomp.backends import source
from trcomp.backends.directory import jobs_directory
from trcomp.backends.local_plan import HostPlan, InputLink, LocalPlan
from trcomp.backends.settings import environment_problems, group_problems, instance_groups, settings
from trcomp.env import executables
from trcomp.errors import Problem, SpecError
from trcomp.inputs import local_path
from trcomp.spec import JobSpec

NAME = "process"
_REFUSED = {
    "container_entry_point": "A local job runs no container.",
    "container_arguments": "A local job runs no container.",
    "enable_network_isolation": "Processes on this machine reach its network.",
}
"""Words of SageMaker's that a local job cannot honour; the others have no meaning for it."""


def problems(spec: JobSpec) -> list[Problem]:
    """What this backend cannot do of a spec."""
    found = [*source.problems(spec), *group_problems(spec)]
    if spec.source_uri is not None:
        allowed = "S3 is not supported yet; a local job takes a directory."
        found.append(Problem("source_dir", spec.source_uri, allowed))
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
    for word, why in _REFUSED.items():
        if spec.managed.get(word):
            found.append(Problem(word, spec.managed.get(word), f"{why} Leave it out, or use ml.*"))
    modes = [("input_mode", spec.managed.get("input_mode"))]
    modes += [(f"inputs[{item.channel!r}]", item.input_mode) for item in spec.inputs]
    found += [
        Problem(field, mode, "a local job has its data as files; leave it out.")
        for field, mode in modes
        if mode == "Pipe"
    ]
    return found + environment_problems(spec)


def plan(spec: JobSpec) -> LocalPlan:
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
    return LocalPlan(
        backend=NAME,
        job_name=spec.job_name,
        directory=directory,
        hosts=tuple(_plan_host(spec, directory, name, addresses) for name in names),
        files=source.plan_files(spec),
        left_behind=source.left_behind(spec),
        inputs=tuple(
            InputLink(channel=item.channel, source=item.path) for item in spec.inputs if item.path
        ),
        output_dir=output / spec.job_name / "output" if output else directory / "output",
        checkpoint_dir=local_path(spec.checkpoint_s3_uri) if spec.checkpoint_s3_uri else None,
        spec=spec,
    )


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


def _cache_place(cache: str | os.PathLike[str] | None) -> str | None:
    """A directory as seen from anywhere: workers run elsewhere."""
    if cache is None or cache == executables.OFF or s3.is_url(cache):
        return None if cache is None else str(cache)
    return str(Path(cache).expanduser().absolute())


def _contract(spec: JobSpec, host: str, hosts: tuple[str, ...]) -> contract.Contract:
    compiler = spec.compiler_config
    local = spec.checkpoint_local_path or contract.Checkpoints.local_path
    groups = instance_groups(spec)
    own = next((group for group in groups if host in group.hosts), None)
    return contract.Contract(
        job_name=spec.job_name,
        hosts=hosts,
        current_host=host,
        hyperparameters=spec.hyperparameters,
        settings=settings(spec, None if compiler is None else _cache_place(compiler.cache)),
        instance_type=spec.instance_type if own is None else own.instance_type,
        instance_groups=groups,
        current_group=contract.DEFAULT_GROUP if own is None else own.name,
        network_interface_name="lo",
        channels=tuple(contract.Channel(i.channel, "File", i.content_type) for i in spec.inputs),
        checkpoints=contract.Checkpoints(local, spec.checkpoint_s3_uri)
        if spec.checkpoint_s3_uri or spec.checkpoint_local_path
        else None,
    )
