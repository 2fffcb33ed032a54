"""Channels in S3 of a job on this machine: looked up before anything is written, then fetched."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trcomp import s3
from trcomp.backends.aws import client, told
from trcomp.backends.base import Frozen
from trcomp.backends.local_plan import InputLink, LocalPlan
from trcomp.errors import BackendUnavailableError, Problem
from trcomp.inputs import Input

_AT_ONCE = 8
_PURPOSE = "read the channel {!r} from {}"


class Object(Frozen):
    """One object of a channel."""

    bucket: str
    key: str
    path: Path
    """Where it goes."""


def problems(item: Input) -> list[Problem]:
    """What of a channel in S3 a job on this machine cannot do: each host gets all of a prefix."""
    field, found = f"inputs[{item.channel!r}]", s3.faults(item.uri)
    words = {"s3_data_type": "S3Prefix", "distribution": "FullyReplicated", "compression": "None"}
    return [Problem(field, item.uri, fault) for fault in found] + [
        Problem(f"{field}.{word}", getattr(item, word), f"a local job takes {only!r} only.")
        for word, only in words.items()
        if getattr(item, word) not in {None, only}
    ]


def listed(plan: LocalPlan) -> list[Object]:
    """The objects of all channels in S3, by SageMaker's rule: every key that begins so.

    Raises:
        BackendUnavailableError: S3 cannot be reached, refuses, or a channel has no object.
    """
    return [found for link in plan.inputs if link.uri for found in _listed(link, link.uri)]


def fetch(objects: Iterable[Object]) -> None:
    """Write objects to their places.

    Raises:
        BackendUnavailableError: One cannot be fetched.
        OSError: One cannot be written.
    """

    def one(item: Object) -> None:
        item.path.parent.mkdir(parents=True, exist_ok=True)
        with told(f"fetch {s3.SCHEME}{item.bucket}/{item.key}"):
            reader.download_file(item.bucket, item.key, str(item.path))

    objects = list(objects)
    if objects:
        reader = client("s3")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(one, objects))


def _listed(link: InputLink, uri: str) -> Iterable[Object]:
    place = s3.place(uri)
    where = {"Bucket": place.bucket, "Prefix": place.prefix}
    with told(_PURPOSE.format(link.channel, uri)):
        pages = list(client("s3").get_paginator("list_objects_v2").paginate(**where))
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
    # Keys that end with a slash stand for directories; consoles make them.
    keys = [key for key in keys if not key.endswith("/")]
    if not keys:
        raise BackendUnavailableError(
            f"The channel {link.channel!r} has no object: none under {uri}.",
            f"`aws s3 ls {uri}` shows what there is.",
        )
    base = place.prefix.rpartition("/")[0] if place.prefix in keys else place.prefix
    for key in keys:
        # A key may hold "..", which leads nowhere in S3.
        name = "/".join(part for part in key.removeprefix(base).split("/") if part.strip("."))
        yield Object(bucket=place.bucket, key=key, path=link.source / name)
