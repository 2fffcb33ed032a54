"""What one host of a training job finds under /opt/ml, as SageMaker puts it there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trcomp import contract, s3
from trcomp.backends.aws import client
from trcomp.contract import Paths
from trcomp.testing import channels
from trcomp.testing.channels import ClientFault, Request, Share


@dataclass(frozen=True)
class Group:
    """Hosts of one instance type."""

    name: str
    instance_type: str
    hosts: tuple[str, ...]


def groups_of(request: Request) -> list[Group]:
    """The hosts that a request asks for; without groups of its own all are of SageMaker's one."""
    resources = request["ResourceConfig"]
    given = resources.get("InstanceGroups")
    if not given:
        count = resources.get("SelectedInstanceCount") or resources["InstanceCount"]
        kind = resources.get("SelectedInstanceType") or resources["InstanceType"]
        given = [
            {
                "InstanceGroupName": contract.DEFAULT_GROUP,
                "InstanceType": kind,
                "InstanceCount": count,
            }
        ]
    found: list[Group] = []
    for group in given:
        begin = sum(len(earlier.hosts) for earlier in found)
        names = (f"algo-{begin + number + 1}" for number in range(group["InstanceCount"]))
        found.append(Group(group["InstanceGroupName"], group["InstanceType"], tuple(names)))
    return found


def instance_types(request: Request) -> list[str]:
    """Every type that a request names."""
    resources = request["ResourceConfig"]
    several = [*resources.get("InstanceGroups", ()), *resources.get("InstancePreferences", ())]
    alone = resources.get("InstanceType")
    return [alone] if alone else [entry["InstanceType"] for entry in several]


def channels_of(request: Request, host: str) -> Iterator[tuple[Request, Share]]:
    """The channels that a host gets, each with its part among the hosts of the same groups."""
    groups = groups_of(request)
    for channel in request.get("InputDataConfig", ()):
        named = channel["DataSource"].get("S3DataSource", {}).get("InstanceGroupNames")
        hosts = [
            name for group in groups if not named or group.name in named for name in group.hosts
        ]
        if host in hosts:
            yield channel, Share(hosts.index(host), len(hosts))


def prepare(request: Request, paths: Paths, host: str, hosts: Sequence[str]) -> None:
    """Write the host's configuration and download its channels and checkpoints.

    Raises:
        ClientFault: Something cannot be downloaded.
    """
    for directory in (paths.config, paths.code, paths.model, paths.output_data):
        directory.mkdir(parents=True)
    for name, content in _config(request, host, list(hosts)).items():
        (paths.config / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    for channel, share in channels_of(request, host):
        if channels.mode(request, channel) == "Pipe":
            channels.pieces(
                channel
            )  # Streamed later: what is wrong with it is found before the job trains.
        else:
            channels.download(channel, paths.data(channel["ChannelName"]), share)
    if "CheckpointConfig" in request:
        saved = channels.listed(request["CheckpointConfig"]["S3Uri"])
        channels.fetch(saved, _checkpoints(request, paths))


def keep_checkpoints(request: Request, paths: Paths) -> None:
    """Upload the host's checkpoints, if the job keeps any."""
    if "CheckpointConfig" not in request:
        return
    directory = _checkpoints(request, paths)
    place = s3.place(request["CheckpointConfig"]["S3Uri"])
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        key = place.key(path.relative_to(directory).as_posix())
        client("s3").upload_file(str(path), place.bucket, key)


def _config(request: Request, host: str, hosts: list[str]) -> dict[str, Any]:
    """The files of /opt/ml/input/config."""
    groups = groups_of(request)
    own = next(group for group in groups if host in group.hosts)
    resources = {
        "current_host": host,
        "current_instance_type": own.instance_type,
        "current_group_name": own.name,
        "hosts": hosts,
        "instance_groups": [
            {
                "instance_group_name": group.name,
                "instance_type": group.instance_type,
                "hosts": list(group.hosts),
            }
            for group in groups
        ],
        "network_interface_name": "eth0",
    }
    inputs = {}
    for channel, _ in channels_of(request, host):
        entry = {
            "TrainingInputMode": channels.mode(request, channel),
            "S3DistributionType": _distribution(channel),
            "RecordWrapperType": channel.get("RecordWrapperType", "None"),
        }
        content_type = channel.get("ContentType")
        inputs[channel["ChannelName"]] = entry | (
            {"ContentType": content_type} if content_type else {}
        )
    # SageMaker does not keep the order of hyperparameters.
    hyperparameters = dict(sorted(request.get("HyperParameters", {}).items()))
    files = {
        "hyperparameters": hyperparameters,
        "resourceconfig": resources,
        "inputdataconfig": inputs,
    }
    if "CheckpointConfig" in request:
        files["checkpointconfig"] = request["CheckpointConfig"]
    return files


def _distribution(channel: Request) -> str:
    source = channel["DataSource"].get("S3DataSource", {})
    return str(source.get("S3DataDistributionType", "FullyReplicated"))


def _checkpoints(request: Request, paths: Paths) -> Path:
    given = request["CheckpointConfig"].get("LocalPath", contract.Checkpoints.local_path)
    local = paths.local(given)
    if not local.is_relative_to(paths.root):
        raise ClientFault(f"checkpoints at {given}: the stand-in has /opt/ml alone")
    return local
