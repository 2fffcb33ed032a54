"""`trcomp env`: the variables that every rank of a job would get, with the reason for each."""

from __future__ import annotations

import dataclasses
import os
import warnings

import click

from trcomp.env import explain, gpus
from trcomp.env.topology import MOST_DEVICES, MOST_HOSTS, wanted_devices
from trcomp.env.variables import DIALECTS
from trcomp.env.xla_flags import unknown
from trcomp.errors import SpecError
from trcomp.images import instances
from trcomp.json_output import json_option, print_json
from trcomp.rules import LOCAL_TYPES, instance_type_problems


@click.command()
@click.option("--explain", "why", is_flag=True, help="Say why each variable has its value.")
@click.option("--instance-type", default="local_process", show_default=True, help="Of each host.")
@click.option(
    "--instance-count",
    default=1,
    show_default=True,
    type=click.IntRange(min=1, max=MOST_HOSTS),
    help="Number of hosts.",
)
@click.option(
    "--devices",
    type=click.IntRange(min=1, max=MOST_DEVICES),
    help="Devices per host, if not its type's.",
)
@click.option("--rank", "only", type=int, help="Only this rank.")
@click.option("--old-image", is_flag=True, help="Also what the old Training Compiler images read.")
@json_option
def env(
    why: bool,
    instance_type: str,
    instance_count: int,
    devices: int | None,
    only: int | None,
    old_image: bool,
    as_json: bool,
) -> None:
    """Print the variables that every rank of a job would get. Works on any machine."""
    rows = _environment(instance_type, instance_count, devices, old_image)
    rows = [row for row in rows if only is None or row.rank == only]
    if as_json:
        print_json([dataclasses.asdict(row) for row in rows])
        return
    for row in rows:
        click.echo(f"rank {row.rank}: local rank {row.local_rank} on {row.host}")
        for variable in row.variables:
            shown = f"{variable.name} removed"
            if variable.value is not None:
                shown = f"{variable.name}={variable.value}"
            click.echo(f"  {shown:<48}  {variable.reason}" if why else f"  {shown}")


def _environment(
    instance_type: str, instance_count: int, devices: int | None, old_image: bool
) -> list[explain.Row]:
    problems = instance_type_problems(instance_type)
    if problems:
        raise SpecError(problems)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        facts = instances.facts(instance_type)
    for warning in caught:
        click.echo(f"Warning: {warning.message}", err=True)
    num_gpus, num_cpus, virtual = facts.num_gpus, facts.num_cpus, 1
    if instance_type in LOCAL_TYPES:
        num_gpus, num_cpus = len(gpus.found(os.environ)), len(os.sched_getaffinity(0))
        virtual = wanted_devices(os.environ) or 1
    rows = explain.table(
        instance_count=instance_count,
        num_devices=devices or num_gpus or virtual,
        # Of an unknown type only this is certain: one asks for it because of its GPUs.
        device_kind="cpu" if num_gpus == 0 else "gpu",
        efa=bool(facts.efa_devices),
        dialects=DIALECTS if old_image else DIALECTS[:2],
        num_cpus=num_cpus,
        network_interface="lo" if instance_type in LOCAL_TYPES else "eth0",
        # Only what trains on this machine has this machine's jaxlib.
        unknown_flags=unknown if instance_type in LOCAL_TYPES else lambda wanted: (),
    )
    return list(rows)
