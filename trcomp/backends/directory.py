"""A local job's directory: where it lies, what is in it before the job starts, its removal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from trcomp import flags
from trcomp.backends import record, s3_inputs
from trcomp.backends.local_plan import HostPlan, LocalPlan
from trcomp.backends.s3_inputs import Object
from trcomp.contract import Paths, write
from trcomp.errors import BackendUnavailableError


def jobs_directory() -> Path:
    """Where job directories live."""
    home = flags.HOME.get() or "~/.local/share/trcomp"
    return Path(os.path.expanduser(home)).absolute() / "jobs"


def prepare(
    plan: LocalPlan,
    objects: Sequence[Object],
    place_data: Callable[[LocalPlan, HostPlan], None],
) -> None:
    """Write everything that a job's hosts find when they start; the directory exists already.

    Args:
        plan: The job.
        objects: What its channels have in S3.
        place_data: Shows a host the job's inputs and checkpoints, which are not copied.

    Raises:
        BackendUnavailableError: S3 refuses.
        OSError: Something cannot be read or written.
    """
    record.write_private(plan.directory / "plan.json", plan.to_json() + "\n")
    s3_inputs.fetch(objects)
    for host in plan.hosts:
        (plan.directory / "logs" / host.name).mkdir(parents=True)
        paths = Paths(host.root)
        place_data(plan, host)
        write(host.root, host.contract)
        for file in plan.files:
            destination = paths.code / file.destination
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file.source, destination)


def link_data(plan: LocalPlan, host: HostPlan) -> None:
    """Show a host that sees this machine's files its inputs and checkpoints, by links.

    Raises:
        OSError: Something cannot be read or written.
    """
    paths = Paths(host.root)
    if plan.checkpoint_dir is not None:
        _link_checkpoints(plan.checkpoint_dir, host, paths)
    own = {channel.name for channel in host.contract.channels}
    for link in plan.inputs:
        if link.channel in own:
            _link_input(link.source, paths.data(link.channel))


def remove_tree(directory: Path) -> None:
    """Delete a job's directory. What its links lead to, inputs and checkpoints, stays.

    Raises:
        BackendUnavailableError: Something in it cannot be deleted.
    """
    try:
        shutil.rmtree(directory)
    except OSError as error:
        raise BackendUnavailableError(
            f"{directory} could not be removed: {error}.",
            "Make what is in it writable, then try again.",
        ) from error


def _link_checkpoints(place: Path, host: HostPlan, paths: Paths) -> None:
    """Make the checkpoint directory be the place it is kept: nothing is lost in a crash."""
    assert host.contract.checkpoints is not None
    local = paths.local(host.contract.checkpoints.local_path)
    place.mkdir(parents=True, exist_ok=True)
    local.parent.mkdir(parents=True, exist_ok=True)
    local.symlink_to(place)


def _link_input(data: Path, channel: Path) -> None:
    """Show the user's data under a channel without copying it.

    The directories are the job's own and each file a link: what a script adds or removes touches
    the job alone, and code that does not follow links to directories still finds every file.
    """
    channel.mkdir(parents=True, exist_ok=True)
    if data.is_file():
        (channel / data.name).symlink_to(data)
        return
    for directory, subdirectories, names in os.walk(data):
        there = Path(directory)
        here = channel / there.relative_to(data)
        here.mkdir(exist_ok=True)
        # The user's own links to directories are not walked: they may lead in circles.
        links = [name for name in subdirectories if (there / name).is_symlink()]
        for name in [*names, *links]:
            (here / name).symlink_to(there / name)
