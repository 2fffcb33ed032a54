"""What a channel brings to a host: objects of S3 as files, or a stream of records."""

from __future__ import annotations

import gzip
import json
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trcomp import s3
from trcomp.backends.aws import client

Request = Mapping[str, Any]
T = TypeVar("T")

_RECORD = 0xCED7230A
"""The magic number before each record of RecordIO, MXNet's format."""


class ClientFault(Exception):
    """The job cannot run, by its owner's fault."""


@dataclass(frozen=True)
class Object:
    """An object of S3, and its path below the channel's directory."""

    bucket: str
    key: str
    path: str

    def read(self) -> bytes:
        """What is in it."""
        answer = _call("get_object", self.uri, Bucket=self.bucket, Key=self.key)
        content: bytes = answer["Body"].read()
        return content

    @property
    def uri(self) -> str:
        """Where it is."""
        return f"s3://{self.bucket}/{self.key}"


@dataclass(frozen=True)
class Share:
    """One host among those of a job: which part of a channel that is shared it gets."""

    index: int
    count: int

    def of(self, items: Sequence[T]) -> Sequence[T]:
        """The host's part."""
        return items[self.index :: self.count]


ALL = Share(0, 1)


def mode(request: Request, channel: Request) -> str:
    """``File``, ``FastFile`` or ``Pipe``."""
    return str(channel.get("InputMode", request["AlgorithmSpecification"]["TrainingInputMode"]))


def download(channel: Request, directory: Path, share: Share) -> None:
    """Write a channel's objects below a directory.

    Raises:
        ClientFault: They cannot be had.
    """
    fetch(_shared(channel, share, _objects(channel)), directory)


def fetch(objects: Sequence[Object], directory: Path) -> None:
    """Write objects below a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for item in objects:
        target = directory / item.path
        target.parent.mkdir(parents=True, exist_ok=True)
        client("s3").download_file(item.bucket, item.key, str(target))


def listed(uri: str) -> list[Object]:
    """The objects at a prefix; one of just that key is among them.

    Raises:
        ClientFault: S3 refuses.
    """
    from botocore.exceptions import ClientError

    place = s3.place(uri)
    where = {"Bucket": place.bucket, "Prefix": place.prefix}
    try:
        pages = list(client("s3").get_paginator("list_objects_v2").paginate(**where))
    except ClientError as error:
        raise ClientFault(f"Data download failed: {uri}: {error}") from error
    keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
    base = place.prefix.rpartition("/")[0] if place.prefix in keys else place.prefix
    return [
        Object(place.bucket, key, key.removeprefix(base).lstrip("/"))
        for key in keys
        if not key.endswith("/")
    ]


def records(channel: Request, share: Share, epoch: int) -> Iterator[bytes]:
    """What a pipe brings in one epoch, piece by piece.

    Raises:
        ClientFault: An object cannot be had.
    """
    wrapped = channel.get("RecordWrapperType") == "RecordIO"
    items = list(pieces(channel))
    if "ShuffleConfig" in channel:
        random.Random(f"{channel['ShuffleConfig']['Seed']} {epoch}").shuffle(items)
    for item in _shared(channel, share, items):
        for piece in item:
            content = piece.read() if isinstance(piece, Object) else piece
            if channel.get("CompressionType") == "Gzip" and isinstance(piece, Object):
                content = gzip.decompress(content)
            yield _record(content) if wrapped else content


def pieces(channel: Request) -> list[list[Object | bytes]]:
    """What stays together in a channel: an object, or the attributes of a line of a manifest.

    Raises:
        ClientFault: They cannot be had.
    """
    source = _source(channel)
    if source["S3DataType"] != "AugmentedManifestFile":
        return [[item] for item in _objects(channel)]
    names = source.get("AttributeNames", [])
    with _understood(source["S3Uri"]) as text:
        return [_attributes(json.loads(line), names) for line in text.splitlines() if line.strip()]


def _attributes(line: Mapping[str, Any], names: Sequence[str]) -> list[Object | bytes]:
    """The attributes of a line in their order: an object for what is called ``…-ref``, or text."""
    found: list[Object | bytes] = []
    for name in names:
        value = line[name]
        if name.endswith("-ref"):
            found.append(_object(str(value), str(value)))
        else:
            found.append((value if isinstance(value, str) else json.dumps(value)).encode())
    return found


def _objects(channel: Request) -> list[Object]:
    source = _source(channel)
    uri = source["S3Uri"]
    if source["S3DataType"] == "ManifestFile":
        with _understood(uri) as text:
            first, *suffixes = json.loads(text)
            found = [_object(first["prefix"] + suffix, suffix) for suffix in suffixes]
    else:
        found = listed(uri)
    if not found:
        raise ClientFault(f"Data download failed: no object at {uri}")
    return found


def _source(channel: Request) -> Request:
    source: Request | None = channel["DataSource"].get("S3DataSource")
    kinds = ("S3Prefix", "ManifestFile", "AugmentedManifestFile")
    if source is None or source["S3DataType"] not in kinds:
        allowed = "the stand-in has prefixes and manifests in S3 alone"
        raise ClientFault(f"channel {channel['ChannelName']}: {allowed}")
    return source


def _shared(channel: Request, share: Share, items: Sequence[T]) -> Sequence[T]:
    kind = _source(channel).get("S3DataDistributionType")
    return share.of(items) if kind == "ShardedByS3Key" else items


@contextmanager
def _understood(uri: str) -> Iterator[str]:
    """A manifest's text; what cannot be made of it is its owner's fault."""
    content = _object(uri, "").read()
    try:
        yield content.decode()
    except (ValueError, TypeError, KeyError) as error:
        raise ClientFault(f"Data download failed: the manifest {uri}: {error!r}") from error


def _object(uri: str, path: str) -> Object:
    bucket, _, key = uri.removeprefix(s3.SCHEME).partition("/")
    return Object(bucket, key, path.lstrip("/"))


def _call(operation: str, uri: str, **arguments: Any) -> Any:
    from botocore.exceptions import ClientError

    try:
        return getattr(client("s3"), operation)(**arguments)
    except ClientError as error:
        raise ClientFault(f"Data download failed: {uri}: {error}") from error


def _record(content: bytes) -> bytes:
    """A record of RecordIO: magic number, length, content, zeros up to a multiple of four."""
    return struct.pack("<II", _RECORD, len(content)) + content + b"\0" * (-len(content) % 4)
