"""Executables in S3: whole or not there, no more than fit, and never a reason for a job to fail."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import s3_server
from tests.s3_server import BUCKET
from trcomp import s3
from trcomp.entrypoint import shared_cache
from trcomp.entrypoint.shared_cache import download, upload

PLACE = s3.Place(BUCKET, "team/cpu-jax1-0123")
FOLDER = "0123456789abcdef"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with s3_server.running(monkeypatch) as client:
        yield client


def entry(number: int) -> str:
    return f"{FOLDER}/{number:064x}"


def made(directory: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    directory.mkdir(exist_ok=True)
    return directory


def found(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.glob("*/*")}


def keys(client: Any) -> list[str]:
    listed = client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
    return sorted(item["Key"].removeprefix(f"{PLACE.prefix}/") for item in listed)


def mover(direction: str, directory: Path, url: str = str(PLACE), **environ: str) -> str:
    """What the process that moves executables prints; it must end well."""
    command = [sys.executable, "-P", "-m", "trcomp.entrypoint.shared_cache"]
    done = subprocess.run(
        [*command, direction, url, str(directory)],
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout


def test_what_one_host_left_another_finds(client: Any, tmp_path: Path) -> None:
    files = {entry(1): b"one", entry(2): b"two" * 1000, "autotuning/ab-1.textproto": b"fast"}
    first = made(tmp_path / "first", {**files, "autotuning/x.part": b"", f"{FOLDER}/tmp": b""})
    (first / "stray").write_text("stray")
    assert mover("upload", first) == f"3 new files (0.0 MB) to {PLACE}\n"
    assert keys(client) == sorted(files)
    second = made(tmp_path / "second", {})
    assert mover("download", second) == f"3 files (0.0 MB) from {PLACE}\n"
    assert found(second) == files
    assert {path.stat().st_mode & 0o77 for path in second.glob("*/*")} == {0}


def test_only_what_is_new_is_stored(client: Any, tmp_path: Path) -> None:
    upload(client, PLACE, made(tmp_path / "first", {entry(1): b"one"}))
    stored = client.head_object(Bucket=BUCKET, Key=PLACE.key(entry(1)))["LastModified"]
    second = made(tmp_path / "second", {})
    download(client, PLACE, second)
    assert upload(client, PLACE, second) == f"nothing new for {PLACE}"
    made(second, {entry(2): b"two"})
    assert upload(client, PLACE, second).startswith("1 new files")
    assert keys(client) == [entry(1), entry(2)]
    assert client.head_object(Bucket=BUCKET, Key=PLACE.key(entry(1)))["LastModified"] == stored


@pytest.mark.parametrize("damage", [b"on", b"", b"onX"], ids=["cut", "empty", "changed"])
def test_a_damaged_object_is_a_miss_and_replaced_by_whoever_compiles_it_anew(
    damage: bytes, client: Any, tmp_path: Path
) -> None:
    first = made(tmp_path / "first", {entry(1): b"one", entry(2): b"two"})
    upload(client, PLACE, first)
    key = PLACE.key(entry(1))
    digest = client.head_object(Bucket=BUCKET, Key=key)["Metadata"]
    client.put_object(Bucket=BUCKET, Key=key, Body=damage, Metadata=digest)
    second = made(tmp_path / "second", {})
    said = download(client, PLACE, second)
    assert said == f"1 files (0.0 MB) from {PLACE}; 1 left out: they are damaged"
    assert found(second) == {entry(2): b"two"}
    made(second, {entry(1): b"one again"})
    upload(client, PLACE, second)
    third = made(tmp_path / "third", {})
    download(client, PLACE, third)
    assert found(third) == {entry(1): b"one again", entry(2): b"two"}


def test_other_objects_under_the_prefix_are_neither_read_nor_deleted(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = ["model.tar.gz", f"{FOLDER}/notes.txt", f"{FOLDER}/../../../etc/x", "a/b/c"]
    digest = {"sha256": hashlib.sha256(b"x").hexdigest()}
    for name in others:
        client.put_object(Bucket=BUCKET, Key=PLACE.key(name), Body=b"x", Metadata=digest)
    monkeypatch.setattr(shared_cache, "_KEPT_BYTES", 3)
    upload(client, PLACE, made(tmp_path / "first", {entry(1): b"one"}))
    assert keys(client) == sorted([*others, entry(1)])
    second = made(tmp_path / "second", {})
    download(client, PLACE, second)
    assert found(second) == {entry(1): b"one"}


def test_what_was_stored_first_makes_room(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_cache, "_KEPT_BYTES", 9)
    for number in (3, 1, 2):
        upload(client, PLACE, made(tmp_path / str(number), {entry(number): b"1234"}))
    assert len(keys(client)) == 2
    assert entry(2) in keys(client)
    monkeypatch.setattr(shared_cache, "_KEPT_BYTES", 5)
    later = made(tmp_path / "later", {})
    download(client, PLACE, later)
    assert len(found(later)) == 1


def test_hosts_that_store_the_same_at_once_leave_it_whole(client: Any, tmp_path: Path) -> None:
    data = {entry(number): bytes([number]) * 100_000 for number in range(8)}
    hosts = [made(tmp_path / str(host), data) for host in range(2)]
    command = [sys.executable, "-P", "-m", "trcomp.entrypoint.shared_cache", "upload", str(PLACE)]
    movers = [subprocess.Popen([*command, str(host)], stdout=subprocess.PIPE) for host in hosts]
    for process in movers:
        assert b"8 new files" in process.communicate()[0]
    later = made(tmp_path / "later", {})
    download(client, PLACE, later)
    assert found(later) == data


NOBODY = {
    "AWS_ACCESS_KEY_ID": "",
    "AWS_SECRET_ACCESS_KEY": "",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nowhere",
    "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
}


@pytest.mark.parametrize(
    ("environ", "url", "reason"),
    [
        (NOBODY, str(PLACE), "NoCredentialsError: Unable to locate credentials"),
        ({"AWS_PROFILE": "nobody"}, str(PLACE), "ProfileNotFound"),
        ({}, "s3://no-such-bucket/x", "NoSuchBucket"),
        ({"AWS_ENDPOINT_URL": "http://user:s3cret@127.0.0.1:9"}, str(PLACE), "connect"),
    ],
)
@pytest.mark.parametrize("direction", ["download", "upload"])
def test_a_place_that_cannot_be_used_is_one_line_and_no_failure(
    direction: str, environ: dict[str, str], url: str, reason: str, client: Any, tmp_path: Path
) -> None:
    said = mover(direction, made(tmp_path / "host", {entry(1): b"one"}), url, **environ)
    assert said.startswith(f"no {direction}: {url}: ") or "not stored: " in said
    assert reason in said
    assert said.count("\n") == 1
    assert "s3cret" not in said


def test_denied_access_is_one_line_and_no_failure(client: Any, tmp_path: Path) -> None:
    from moto.core import set_initial_no_auth_action_count

    host = made(tmp_path / "host", {entry(1): b"one"})
    with_rules = set_initial_no_auth_action_count(0)
    for direction in ("download", "upload"):
        said = with_rules(mover)(direction, host)
        assert "(InvalidAccessKeyId)" in said or "(AccessDenied)" in said
        assert said.count("\n") == 1


def test_long_transfers_tell_how_far_they_are(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shared_cache, "_TOLD_EVERY_SECONDS", 0)
    upload(client, PLACE, made(tmp_path / "first", {entry(1): b"1" * 3_000_000}))
    download(client, PLACE, made(tmp_path / "second", {}))
    said = capsys.readouterr().out
    assert "uploaded 0.0 MB of 3.0 MB" in said
    assert "downloaded" in said
