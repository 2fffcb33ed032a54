"""Executables between a host and S3: taken before the workers start, left after they succeeded.

    s3://bucket/prefix/<device, jax, and a digest of versions and flags>/
        <what compiled it>/<graph>      as runtime/persistent.py names and checks them
        starts/<script>                 which of them a script used first (runtime/head_start.py)
        autotuning/<fusion>             what XLA found out about a GPU

`download` and `upload` are processes of their own: the entrypoint's own loads no AWS SDK. What goes
wrong there costs time, never the job: both end with code 0 and a line that says what happened.
Objects are written whole, with the digest of their contents; one that does not match is a miss.
Each host moves what its own ranks use: their files differ from those of other hosts' ranks.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trcomp import s3
from trcomp.env.executables import AUTOTUNING, STARTS
from trcomp.errors import in_one_line

_ENTRY = re.compile(
    rf"[0-9a-f]{{16}}/[0-9a-f]{{64}}|{STARTS}/[0-9a-f]{{32}}"
    rf"|{AUTOTUNING}/\w[\w.-]{{0,250}}(?<!\.part)"
)
"""All that is ever read, written or deleted under the prefix."""
_KEPT_BYTES = 8 * 2**30
"""How much is kept for one kind of device, versions and flags; what was stored first goes first."""
_DIGEST = "sha256"
_INTACT = "intact"
"""The file, beside what was downloaded, that lists it: all else there is new."""
_THREADS = 8
_CHUNK_BYTES = 1 << 20
_TOLD_EVERY_SECONDS = 5.0


@dataclass(frozen=True)
class _Object:
    name: str
    num_bytes: int


class _Moving:
    """Files on their way, several at once, with a line now and then; counts what arrives."""

    def __init__(self, verb: str, total_bytes: int) -> None:
        self._verb = verb
        self._total_bytes = total_bytes
        self._moved_bytes = 0

    def note(self, num_bytes: int) -> None:
        """So many bytes more have been moved."""
        self._moved_bytes += num_bytes

    def each(self, move: Callable[[str], bool], names: Sequence[str]) -> tuple[list[str], str]:
        """The names that were moved, and why the first of the others was not."""
        with ThreadPoolExecutor(_THREADS) as threads:
            futures: dict[Future[bool], str] = {threads.submit(move, name): name for name in names}
            pending = set(futures)
            while pending:
                _, pending = wait(pending, _TOLD_EVERY_SECONDS)
                if pending:
                    print(f"{self._verb} {_mb(self._moved_bytes)} of {_mb(self._total_bytes)}")
        errors = [error for future in futures if (error := future.exception()) is not None]
        moved = [n for future, n in futures.items() if not future.exception() and future.result()]
        return moved, in_one_line(errors[0]) if errors else "they are damaged"


def download(client: Any, place: s3.Place, directory: Path) -> str:
    """Take the newest executables that fit; what cannot be read is left out.

    Args:
        client: boto3's, of S3.
        place: Where they are.
        directory: Where they go.

    Returns:
        A line on what was done.
    """
    fitting, total = [], 0
    for found in reversed(_stored(client, place)):
        total += found.num_bytes
        if total > _KEPT_BYTES:
            break
        fitting.append(found)
    moving = _Moving("downloaded", sum(found.num_bytes for found in fitting))

    def fetch(name: str) -> bool:
        answer = client.get_object(Bucket=place.bucket, Key=place.key(name))
        chunks = answer["Body"].iter_chunks(_CHUNK_BYTES)
        return _write(directory / name, chunks, answer["Metadata"].get(_DIGEST), moving.note)

    names = [found.name for found in fitting]
    intact, reason = moving.each(fetch, names)
    (directory / _INTACT).write_text("".join(f"{name}\n" for name in intact))
    size = _mb(sum((directory / name).stat().st_size for name in intact))
    left = f"; {len(names) - len(intact)} left out: {reason}" if len(intact) < len(names) else ""
    return f"{len(intact)} files ({size}) from {place}{left}"


def upload(client: Any, place: s3.Place, directory: Path) -> str:
    """Leave what is new, after making room for it; see `download` for the arguments."""
    known = set()
    with suppress(FileNotFoundError):
        known = set((directory / _INTACT).read_text().splitlines())
    names = {str(path.relative_to(directory)) for path in directory.glob("*/*")}
    new = sorted(name for name in names - known if _ENTRY.fullmatch(name))
    if not new:
        return f"nothing new for {place}"
    sizes = {name: (directory / name).stat().st_size for name in new}
    _make_room(client, place, sum(sizes.values()), new)
    moving = _Moving("uploaded", sum(sizes.values()))

    def leave(name: str) -> bool:
        with (directory / name).open("rb") as file:
            digest = hashlib.file_digest(file, _DIGEST).hexdigest()
            file.seek(0)
            key = place.key(name)
            metadata = {_DIGEST: digest}
            client.put_object(Bucket=place.bucket, Key=key, Body=file, Metadata=metadata)
        moving.note(sizes[name])
        return True

    stored, reason = moving.each(leave, new)
    size = _mb(sum(sizes[name] for name in stored))
    left = f"; {len(new) - len(stored)} not stored: {reason}" if len(stored) < len(new) else ""
    return f"{len(stored)} new files ({size}) to {place}{left}"


def _stored(client: Any, place: s3.Place) -> list[_Object]:
    """What is stored at a place, oldest first."""
    found = []
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=place.bucket, Prefix=place.key("")
    )
    for item in (item for page in pages for item in page.get("Contents", [])):
        name = item["Key"].removeprefix(place.key(""))
        if _ENTRY.fullmatch(name):
            found.append((item["LastModified"], name, item["Size"]))
    return [_Object(name, size) for _, name, size in sorted(found)]


def _write(
    path: Path, chunks: Iterator[bytes], digest: str | None, note: Callable[[int], None]
) -> bool:
    """Write a file whole, if its contents have the digest; whether they do."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        part = Path(file.name)
        try:
            for chunk in chunks:
                found.update(chunk)
                file.write(chunk)
                note(len(chunk))
        except BaseException:
            part.unlink()
            raise
    if found.hexdigest() != digest:
        part.unlink()
        return False
    part.replace(path)
    return True


def _make_room(client: Any, place: s3.Place, wanted_bytes: int, new: Sequence[str]) -> None:
    stored = [found for found in _stored(client, place) if found.name not in set(new)]
    excess = sum(found.num_bytes for found in stored) + wanted_bytes - _KEPT_BYTES
    for found in stored:
        if excess <= 0:
            return
        client.delete_object(Bucket=place.bucket, Key=place.key(found.name))
        excess -= found.num_bytes


def _client() -> Any:
    # Here, not above: only these two processes of a host load the SDK.
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=5,
        read_timeout=60,
        retries={"total_max_attempts": 3, "mode": "standard"},
        max_pool_connections=_THREADS,
        # Objects have a digest of our own; not all that speaks S3 knows the newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.client("s3", config=config)


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"


def main() -> int:
    """``python -m trcomp.entrypoint.shared_cache download|upload URL DIRECTORY``"""
    direction, url, directory = sys.argv[1:]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    move = {"download": download, "upload": upload}[direction]
    try:
        print(move(_client(), s3.place(url), Path(directory)))
    except Exception as error:  # The job is worth more than the time that this would save.
        then = "compiles what it needs" if move is download else "has succeeded all the same"
        print(f"no {direction}: {url}: {in_one_line(error)}; the job {then}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
