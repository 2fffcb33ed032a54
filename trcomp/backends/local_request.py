"""What the plans of all jobs on this machine have in common, out of the spec."""

from __future__ import annotations

import os
from typing import Any

from trcomp import contract, s3
from trcomp.backends import s3_inputs, source
from trcomp.backends.directory import jobs_directory
from trcomp.backends.local_plan import InputLink
from trcomp.backends.settings import environment_problems, group_problems, instance_groups, settings
from trcomp.errors import Problem
from trcomp.inputs import Input, local_path
from trcomp.spec import JobSpec


def problems(spec: JobSpec) -> list[Problem]:
    """What no job on this machine can do of a spec."""
    found = [*source.problems(spec), *group_problems(spec)]
    if spec.source_uri is not None:
        allowed = "S3 is not supported yet; a local job takes a directory."
        found.append(Problem("source_dir", spec.source_uri, allowed))
    places = {"output_path": spec.output_path, "checkpoint_s3_uri": spec.checkpoint_s3_uri}
    for field, uri in places.items():
        if uri is not None and local_path(uri) is None:
            allowed = "S3 is not supported yet; a local job takes a path or file://."
            found.append(Problem(field, uri, allowed))
    for item in spec.inputs:
        field = f"inputs[{item.channel!r}]"
        if s3.is_url(item.uri):
            found += s3_inputs.problems(item)
        elif item.path is None:
            allowed = "a local job takes a path, file:// or s3://."
            found.append(Problem(field, item.uri, allowed))
        elif not os.path.exists(item.path):
            found.append(Problem(field, str(item.path), "there is no such file or directory."))
    modes = [("input_mode", spec.managed.get("input_mode"))]
    modes += [(f"inputs[{item.channel!r}]", item.input_mode) for item in spec.inputs]
    found += [
        Problem(field, mode, "a local job has its data as files; leave it out.")
        for field, mode in modes
        if mode == "Pipe"
    ]
    return found + environment_problems(spec)


def host_names(spec: JobSpec) -> tuple[str, ...]:
    """The hosts, as SageMaker names them."""
    return tuple(f"algo-{index + 1}" for index in range(spec.instance_count))


def fields(spec: JobSpec) -> dict[str, Any]:
    """The fields of a LocalPlan that do not depend on what runs it."""
    directory = jobs_directory() / spec.job_name
    output = local_path(spec.output_path) if spec.output_path else None
    return {
        "job_name": spec.job_name,
        "directory": directory,
        "files": source.plan_files(spec),
        "left_behind": source.left_behind(spec),
        "inputs": tuple(
            InputLink(
                channel=item.channel,
                source=item.path or directory / "data" / item.channel,
                uri=None if item.path else item.uri,
            )
            for item in spec.inputs
        ),
        "output_dir": output / spec.job_name / "output" if output else directory / "output",
        "checkpoint_dir": local_path(spec.checkpoint_s3_uri) if spec.checkpoint_s3_uri else None,
        "spec": spec,
    }


def inputs_of(spec: JobSpec, host: str) -> list[Input]:
    """The channels that a host gets: those of its group, and those for all."""
    own = {group.name for group in instance_groups(spec) if host in group.hosts}
    return [
        item for item in spec.inputs if not item.instance_groups or own & {*item.instance_groups}
    ]


def host_contract(
    spec: JobSpec, host: str, *, cache: str | None, network_interface: str
) -> contract.Contract:
    """What one host finds under /opt/ml.

    Args:
        spec: The job.
        host: The host's name.
        cache: Where executables are kept, as the host sees it.
        network_interface: Which leads to the other hosts.
    """
    local = spec.checkpoint_local_path or contract.Checkpoints.local_path
    groups = instance_groups(spec)
    own = next((group for group in groups if host in group.hosts), None)
    return contract.Contract(
        job_name=spec.job_name,
        hosts=host_names(spec),
        current_host=host,
        hyperparameters=spec.hyperparameters,
        settings=settings(spec, cache),
        instance_type=spec.instance_type if own is None else own.instance_type,
        instance_groups=groups,
        current_group=contract.DEFAULT_GROUP if own is None else own.name,
        network_interface_name=network_interface,
        channels=tuple(
            contract.Channel(item.channel, "File", item.content_type)
            for item in inputs_of(spec, host)
        ),
        checkpoints=contract.Checkpoints(local, spec.checkpoint_s3_uri)
        if spec.checkpoint_s3_uri or spec.checkpoint_local_path
        else None,
    )
