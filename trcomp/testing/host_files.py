"""What one host of a training job finds under /opt/ml, as SageMaker puts it there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trcomp import contract, s3
from trcomp.backends.aws import client
from trcomp.contract import Paths

Request = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """Hosts of one instance type."""

    name: str
    instance_type: str
    hosts: tuple[str, ...]


class ClientFault(Exception):
    """The job cannot run, by its owner's fault."""


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


def prepare(request: Request, paths: Paths, host: str, hosts: Sequence[str]) -> None:
    """Write the host's configuration and download its channels and checkpoints.

    Raises:
        ClientFault: Something cannot be downloaded.
    """
    for directory in (paths.config, paths.code, paths.model, paths.output_data):
        directory.mkdir(parents=True)
    for name, content in _config(request, host, list(hosts)).items():
        (paths.config / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    for channel in request.get("InputDataConfig", ()):
        _download(request, channel, paths, (hosts.index(host), len(hosts)))
    if "CheckpointConfig" in request:
        _fetch(request["CheckpointConfig"]["S3Uri"], _checkpoints(request, paths), (0, 1))


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
    channels = {}
    for channel in request.get("InputDataConfig", ()):
        entry = {
            "TrainingInputMode": _mode(request, channel),
            "S3DistributionType": _source(channel)[1],
            "RecordWrapperType": channel.get("RecordWrapperType", "None"),
        }
        content_type = channel.get("ContentType")
        channels[channel["ChannelName"]] = entry | (
            {"ContentType": content_type} if content_type else {}
        )
    # SageMaker does not keep the order of hyperparameters.
    hyperparameters = dict(sorted(request.get("HyperParameters", {}).items()))
    files = {
        "hyperparameters": hyperparameters,
        "resourceconfig": resources,
        "inputdataconfig": channels,
    }
    if "CheckpointConfig" in request:
        files["checkpointconfig"] = request["CheckpointConfig"]
    return files


def _mode(request: Request, channel: Request) -> str:
    return str(channel.get("InputMode", request["AlgorithmSpecification"]["TrainingInputMode"]))


def _source(channel: Request) -> tuple[str, str]:
    """Where a channel's data is, and how hosts share it."""
    source = channel["DataSource"].get("S3DataSource")
    if source is None or source["S3DataType"] != "S3Prefix":
        name = channel["ChannelName"]
        raise ClientFault(f"channel {name}: the stand-in has prefixes in S3 alone")
    return source["S3Uri"], source.get("S3DataDistributionType", "FullyReplicated")


def _download(request: Request, channel: Request, paths: Paths, share: tuple[int, int]) -> None:
    name = channel["ChannelName"]
    if _mode(request, channel) == "Pipe":
        raise ClientFault(f"channel {name}: the stand-in has no pipes")
    uri, distribution = _source(channel)
    sharded = distribution == "ShardedByS3Key"
    if not _fetch(uri, paths.data(name), share if sharded else (0, 1)):
        raise ClientFault(f"Data download failed: no object at {uri}")


def _checkpoints(request: Request, paths: Paths) -> Path:
    given = request["CheckpointConfig"].get("LocalPath", contract.Checkpoints.local_path)
    local = paths.local(given)
    if not local.is_relative_to(paths.root):
        raise ClientFault(f"checkpoints at {given}: the stand-in has /opt/ml alone")
    return local


def _fetch(uri: str, directory: Path, share: tuple[int, int]) -> int:
    """Download what lies at a place; the number of objects there.

    Args:
        uri: A prefix, or one object.
        directory: Where they go.
        share: Which of how many hosts' shares to take.
    """
    from botocore.exceptions import ClientError

    directory.mkdir(parents=True, exist_ok=True)
    place = s3.place(uri)
    where = {"Bucket": place.bucket, "Prefix": place.prefix}
    try:
        pages = list(client("s3").get_paginator("list_objects_v2").paginate(**where))
    except ClientError as error:
        raise ClientFault(f"Data download failed: {uri}: {error}") from error
    keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
    base = place.prefix.rpartition("/")[0] if place.prefix in keys else place.prefix
    index, count = share
    for key in keys[index::count]:
        if not key.endswith("/"):
            target = directory / key.removeprefix(base).lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            client("s3").download_file(place.bucket, key, str(target))
    return len(keys)
