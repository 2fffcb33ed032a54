"""Input: one channel of training data, from a place or from an object that describes one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from trcomp import rules, s3, sdk
from trcomp.errors import Problem, SpecError

FILE_SYSTEMS = {"efs": "EFS", "fsxlustre": "FSxLustre"}
"""Schemes of file systems that hosts mount, and SageMaker's names for them."""
_MOUNTED = re.compile(rf"({'|'.join(FILE_SYSTEMS)})://(fs-[0-9a-f]+)(/.*)")
_DATASET = re.compile(r"arn:[^:]+:sagemaker:[^:]+:[^:]+:hub-content/.+")


class Input(BaseModel):
    """One channel of training data. All but its place means something to SageMaker only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    channel: str
    uri: str
    """``file:///absolute/path`` of a directory or file, ``s3://bucket/prefix``,
    ``efs://FILE-SYSTEM/directory``, ``fsxlustre://FILE-SYSTEM/directory``, or a dataset's ARN."""
    content_type: str | None = None
    input_mode: str | None = None
    """``File``, ``FastFile`` or ``Pipe``; None is the job's input_mode."""
    distribution: str = "FullyReplicated"
    """``ShardedByS3Key`` gives each host its part of the objects."""
    s3_data_type: str = "S3Prefix"
    """What uri names: a prefix, or with ``ManifestFile`` a list of objects."""
    compression: str | None = None
    record_wrapping: str | None = None
    shuffle_seed: int | None = None
    """Shuffles the order of objects anew in each epoch."""
    attribute_names: tuple[str, ...] = ()
    instance_groups: tuple[str, ...] = ()
    """The groups whose hosts get the channel; none named: all."""
    accept_eula: bool | None = None
    """Accepts the license of a model that its hub guards."""
    hub_content_arn: str | None = None
    """Where in SageMaker's hub the S3 data belongs to."""
    access_mode: str = "ro"
    """``rw`` lets the script write to a file system."""

    @property
    def path(self) -> Path | None:
        """The data's place on this machine, None if it lies elsewhere."""
        return local_path(self.uri)


class TrainingInput:
    """A channel in S3, in the words of SageMaker's SDK v2.

    Args:
        s3_data: ``s3://bucket/prefix``, or the list of objects that s3_data_type says.
        distribution: ``ShardedByS3Key`` gives each host its part of the objects.
        compression: ``Gzip``; Pipe mode unpacks it.
        content_type: The data's MIME type.
        record_wrapping: ``RecordIO``, for Pipe mode.
        s3_data_type: ``S3Prefix``, ``ManifestFile`` or ``AugmentedManifestFile``.
        instance_groups: Names of the groups whose hosts get the channel; None: all.
        input_mode: ``File``, ``FastFile`` or ``Pipe``; None: the job's.
        attribute_names: Of an augmented manifest.
        shuffle_seed: Shuffles the order of objects anew in each epoch.
        accept_eula: Accepts the license of a model that its hub guards.
        hub_content_arn: The hub's content that the data belongs to.
    """

    def __init__(
        self,
        s3_data: str | Path,
        distribution: str | None = None,
        compression: str | None = None,
        content_type: str | None = None,
        record_wrapping: str | None = None,
        s3_data_type: str = "S3Prefix",
        instance_groups: list[str] | None = None,
        input_mode: str | None = None,
        attribute_names: list[str] | None = None,
        shuffle_seed: int | None = None,
        accept_eula: bool | None = None,
        hub_content_arn: str | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        given["uri"] = given.pop("s3_data")
        self.words = {name: value for name, value in given.items() if value is not None}


class FileSystemInput:
    """A channel in a file system that hosts mount, in the words of SageMaker's SDK v2.

    The job needs `subnets` and `security_group_ids` from which the file system can be reached.

    Args:
        file_system_id: ``fs-…``.
        file_system_type: ``EFS`` or ``FSxLustre``.
        directory_path: A directory in it; of FSx it starts with the file system's mount name.
        file_system_access_mode: ``ro``, or ``rw`` if the script may write there.
        content_type: The data's MIME type.
    """

    def __init__(
        self,
        file_system_id: str,
        file_system_type: str,
        directory_path: str,
        file_system_access_mode: str = "ro",
        content_type: str | None = None,
    ) -> None:
        kinds = {kind.lower(): scheme for scheme, kind in FILE_SYSTEMS.items()}
        scheme = kinds.get(file_system_type.lower(), file_system_type)
        self.words: dict[str, Any] = {
            "uri": f"{scheme}://{file_system_id}/{directory_path.lstrip('/')}",
            "access_mode": file_system_access_mode,
        }
        if content_type is not None:
            self.words["content_type"] = content_type


_FIELDS = {
    "ContentType": "content_type",
    "InputMode": "input_mode",
    "CompressionType": "compression",
    "RecordWrapperType": "record_wrapping",
    "ShuffleConfig.Seed": "shuffle_seed",
}
"""SageMaker's fields of any channel, and ours."""

_S3 = "DataSource.S3DataSource"
_S3_FIELDS = {
    f"{_S3}.S3Uri": "uri",
    f"{_S3}.S3DataType": "s3_data_type",
    f"{_S3}.S3DataDistributionType": "distribution",
    f"{_S3}.AttributeNames": "attribute_names",
    f"{_S3}.InstanceGroupNames": "instance_groups",
    f"{_S3}.ModelAccessConfig.AcceptEula": "accept_eula",
    f"{_S3}.HubAccessConfig.HubContentArn": "hub_content_arn",
}
"""Those of a channel in S3."""

_MOUNT = "DataSource.FileSystemDataSource"
_ELSEWHERE = {
    f"{_MOUNT}.FileSystemId",
    f"{_MOUNT}.FileSystemType",
    f"{_MOUNT}.DirectoryPath",
    f"{_MOUNT}.FileSystemAccessMode",
    "DataSource.DatasetSource.DatasetArn",
}
"""Those of other channels."""

_MODEL = "application/x-sagemaker-model"
"""What SageMaker's SDK v2 calls a model that training starts from."""

REACHED = {"ChannelName", *_FIELDS, *_S3_FIELDS, *_ELSEWHERE}
"""Every field of a channel that an `Input` can say."""


class Described:
    """A channel in words of `Input`, as it was described by whoever had it."""

    def __init__(self, words: dict[str, Any]) -> None:
        self.words = words


def of_form(config: Mapping[str, Any]) -> Described:
    """A channel out of the request's own form.

    Raises:
        SpecError: The form has fields that no channel has.
    """
    words, problems = _of_form(config, "inputs")
    if problems:
        raise SpecError(problems)
    return Described(words)


class _Twice:
    """Stands for two channels of one name."""

    def __init__(self, place: object) -> None:
        self.place = place


def to_uri(place: str | Path) -> str:
    """A place as a URI; a path or ``file://`` becomes ``file:///absolute``, others stay."""
    text = str(place)
    if s3.is_url(text) or _MOUNTED.fullmatch(text) or _DATASET.fullmatch(text):
        return text
    return "file://" + str(Path(os.path.expanduser(text.removeprefix("file://"))).absolute())


def local_path(uri: str) -> Path | None:
    """The path of a ``file://`` URI; None for any other."""
    return Path(uri.removeprefix("file://")) if uri.startswith("file://") else None


def to_inputs(value: Any) -> tuple[list[Input], list[Problem]]:
    """The channels that `fit` was given, and what is wrong with them.

    Args:
        value: One place or TrainingInput (channel "training"), a dict of them by channel, or a list
            of objects that name their channel, as those of SageMaker's SDK v3.
    """
    channels = _by_channel(value)
    problems = list(rules.channels_problems([str(name) for name in channels]))
    inputs = []
    for name, given in channels.items():
        field = f"inputs[{name!r}]"
        words, found = _words(given, field)
        found = found or _place_problems(field, words.get("uri"))
        if not found:
            inputs.append(Input(channel=str(name), **words | {"uri": to_uri(words["uri"])}))
        problems += found
    return inputs, problems


def with_model(value: Any, channel: str, place: str) -> Any:
    """What `fit` was given, and a trained model that the job starts from as a channel more.

    Two channels of one name are a problem, which `to_inputs` finds.
    """
    channels = dict({} if value is None else _by_channel(value))
    model = TrainingInput(place, content_type=_MODEL, input_mode="File")
    return channels | {channel: _Twice(place) if channel in channels else model}


def to_channel(item: Input) -> dict[str, Any]:
    """A channel in SageMaker's form, without what is unset."""
    channel: dict[str, Any] = {"ChannelName": item.channel}
    mounted = _MOUNTED.fullmatch(item.uri)
    if mounted is not None:
        scheme, identity, directory = mounted.groups()
        put(channel, f"{_MOUNT}.FileSystemId", identity)
        put(channel, f"{_MOUNT}.FileSystemType", FILE_SYSTEMS[scheme])
        put(channel, f"{_MOUNT}.DirectoryPath", directory)
        put(channel, f"{_MOUNT}.FileSystemAccessMode", item.access_mode)
    elif _DATASET.fullmatch(item.uri):
        put(channel, "DataSource.DatasetSource.DatasetArn", item.uri)
    in_s3 = "DataSource" not in channel
    for path, word in (_FIELDS | _S3_FIELDS if in_s3 else _FIELDS).items():
        value = getattr(item, word)
        if value not in (None, ()):
            put(channel, path, list(value) if isinstance(value, tuple) else value)
    return channel


def put(values: dict[str, Any], path: str, value: object) -> None:
    """Set a value inside objects, by its path such as ``ShuffleConfig.Seed``."""
    *outer, name = path.split(".")
    for part in outer:
        values = values.setdefault(part, {})
    values[name] = value


def _by_channel(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    named = [getattr(item, "channel_name", None) for item in value] if _is_list(value) else [None]
    if all(isinstance(name, str) for name in named):
        return dict(zip(named, value, strict=True))
    name = getattr(value, "channel_name", None)
    return {name if isinstance(name, str) else "training": value}


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _place_problems(field: str, place: object) -> list[Problem]:
    if isinstance(place, str) and (_MOUNTED.fullmatch(place) or _DATASET.fullmatch(place)):
        return []
    if isinstance(place, str) and place.startswith(tuple(f"{name}://" for name in FILE_SYSTEMS)):
        allowed = "a file system is efs://fs-0123abcd/directory, or fsxlustre:// likewise."
        return [Problem(field, place, allowed)]
    return rules.place_problems(field, place)


def _words(given: Any, field: str) -> tuple[dict[str, Any], list[Problem]]:
    """Our words for a place, or for an object that describes one."""
    if isinstance(given, _Twice):
        allowed = "model_uri's channel has that name too; give another model_channel_name."
        return {}, [Problem(field, given.place, allowed)]
    if isinstance(given, TrainingInput | FileSystemInput | Described):
        return dict(given.words), []
    config = getattr(given, "config", None)
    if isinstance(config, Mapping):  # SageMaker's form of a channel, which SDK v2's own keeps
        return _of_form(config, field)
    if hasattr(given, "data_source"):
        return _of_form(sdk.channel_form(given), field)
    if hasattr(given, "s3_data"):
        return {
            "uri" if name == "s3_data" else name: value
            for name in ("s3_data", *Input.model_fields)
            if (value := getattr(given, name, None)) is not None
        }, []
    return {"uri": given}, []


def _of_form(config: Mapping[str, Any], field: str) -> tuple[dict[str, Any], list[Problem]]:
    """Our words for SageMaker's form of a channel."""
    leaves = {path: value for path, value in sdk.leaves(config) if value is not None}
    words: dict[str, Any] = {}
    kind = str(leaves.pop(f"{_MOUNT}.FileSystemType", ""))
    if kind:
        directory = leaves.pop(f"{_MOUNT}.DirectoryPath", "")
        words = FileSystemInput(leaves.pop(f"{_MOUNT}.FileSystemId", ""), kind, directory).words
        words["access_mode"] = leaves.pop(f"{_MOUNT}.FileSystemAccessMode", "ro")
    for path in ("DataSource.DatasetSource.DatasetArn", "DataSource.FileDataSource.FileUri"):
        if path in leaves:
            words["uri"] = leaves.pop(path)
    leaves.pop("DataSource.FileDataSource.FileDataDistributionType", None)
    leaves.pop("ChannelName", None)
    known = _FIELDS | _S3_FIELDS
    words |= {known[path]: value for path, value in leaves.items() if path in known}
    unknown = [
        Problem(f"{field}.{path}", value, "SageMaker's channels have no such field.")
        for path, value in leaves.items()
        if path not in known
    ]
    return words, unknown
