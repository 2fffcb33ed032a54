"""The archive of a job's code: the same for the same files, and what a container takes from one."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from trcomp import ContractError, Estimator, SpecError
from trcomp.backends import bundle
from trcomp.backends.base import FileCopy
from trcomp.contract import Contract, Paths, Settings
from trcomp.entrypoint import code as entrypoint_code

ARCHIVE = "/opt/ml/input/data/code/sourcedir.tar.gz"


def files_of(root: Path) -> tuple[FileCopy, ...]:
    return Estimator("train.py", root).plan(job_name="job").files


def source(root: Path, **contents: str) -> Path:
    for name, text in {"train": "print()\n", **contents}.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def archive_of(root: Path) -> bytes:
    stream = io.BytesIO()
    assert bundle.write(files_of(root), stream) == bundle.digest(files_of(root))
    return stream.getvalue()


def test_equal_files_make_equal_archives_wherever_and_whenever_they_lie(tmp_path: Path) -> None:
    first = source(tmp_path / "a", helper="x = 1\n")
    second = source(tmp_path / "b", helper="x = 1\n")
    os.utime(second / "helper.py", (1, 1))
    (second / "train.py").chmod(0o600)
    assert archive_of(first) == archive_of(second)


@pytest.mark.parametrize("change", ["contents", "name", "mode"])
def test_what_a_script_could_notice_makes_another_archive(change: str, tmp_path: Path) -> None:
    root = source(tmp_path, helper="x = 1\n")
    before = bundle.digest(files_of(root))
    if change == "contents":
        (root / "helper.py").write_text("x = 2\n")
    elif change == "name":
        (root / "helper.py").rename(root / "other.py")
    else:
        (root / "helper.py").chmod(0o755)
    assert bundle.digest(files_of(root)) != before


def test_too_much_code_names_the_ten_largest_files(tmp_path: Path) -> None:
    files = tuple(
        FileCopy(source=tmp_path, destination=f"f{index}", size_bytes=index * 10 * 2**20)
        for index in range(12)
    )
    (problem,) = bundle.problems(files)
    text = str(problem)
    assert "660.0 MiB in 12 files" in text
    assert text.index("f11 (110.0 MiB)") < text.index("f2 (20.0 MiB)")
    assert "f1 (" not in text
    assert ".trcompignore" in text
    assert bundle.problems(files[:8]) == []


def unpack(contract: Contract, paths: Paths) -> None:
    entrypoint_code.unpack(contract, paths, paths.root)


def contract_of(submitted: str | None) -> Contract:
    settings = Settings(program="train.py", submit_directory=submitted)
    return Contract("job", ("algo-1",), "algo-1", {}, settings, "ml.m5.large")


def container(root: Path, archive: bytes | None) -> Paths:
    paths = Paths(root)
    paths.data("code").mkdir(parents=True)
    if archive is not None:
        (paths.data("code") / "sourcedir.tar.gz").write_bytes(archive)
    return paths


def test_a_container_unpacks_the_code_that_came_as_a_channel(tmp_path: Path) -> None:
    root = source(tmp_path / "source", helper="x = 1\n")
    (root / "helper.py").chmod(0o755)
    paths = container(tmp_path / "ml", archive_of(root))
    unpack(contract_of(ARCHIVE), paths)
    assert (paths.code / "train.py").read_text() == "print()\n"
    assert os.access(paths.code / "helper.py", os.X_OK)
    # Code that lies there already, as a local job's does, stays as it is.
    (paths.code / "train.py").write_text("mine")
    unpack(contract_of(ARCHIVE), paths)
    assert (paths.code / "train.py").read_text() == "mine"


def packed(name: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.type = kind
        entry.linkname = "/etc/passwd"
        archive.addfile(entry)
    return stream.getvalue()


@pytest.mark.parametrize(
    "archive",
    [
        packed("../out.py"),
        packed("/out.py"),
        packed("a/../../out.py"),
        packed("link", tarfile.SYMTYPE),
        packed("link", tarfile.LNKTYPE),
        packed("pipe", tarfile.FIFOTYPE),
    ],
    ids=["above", "absolute", "winding", "link", "hard-link", "pipe"],
)
def test_an_archive_reaches_nothing_but_its_own_directory(archive: bytes, tmp_path: Path) -> None:
    paths = container(tmp_path / "ml", archive)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ContractError, match="is refused"):
        unpack(contract_of(ARCHIVE), paths)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "archive", [None, b"no archive", packed("a")[:20]], ids=["none", "other", "cut"]
)
def test_a_broken_archive_is_told_of(archive: bytes | None, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="cannot be unpacked"):
        unpack(contract_of(ARCHIVE), container(tmp_path / "ml", archive))


def test_an_archive_that_would_fill_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entrypoint_code, "LARGEST_BYTES", 2**30)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        entry = tarfile.TarInfo("zeros")
        entry.size = 2**30 + 1
        archive.fileobj.write(entry.tobuf())  # type: ignore[union-attr]
    paths = container(tmp_path / "ml", stream.getvalue())
    with pytest.raises(ContractError, match="more than 1 GiB"):
        unpack(contract_of(ARCHIVE), paths)
    assert not paths.code.exists()
    monkeypatch.setattr(entrypoint_code, "MOST_FILES", 2)
    root = source(tmp_path / "source", a="", b="")
    with pytest.raises(ContractError, match="or 2 files"):
        unpack(contract_of(ARCHIVE), container(tmp_path / "other", archive_of(root)))


def test_a_container_copies_the_code_that_came_as_a_directory(tmp_path: Path) -> None:
    paths = container(tmp_path / "ml", None)
    source(paths.data("code"), **{"in/helper": "x = 1\n"})
    unpack(contract_of("/opt/ml/input/data/code"), paths)
    assert (paths.code / "train.py").read_text() == "print()\n"
    assert (paths.code / "in" / "helper.py").read_text() == "x = 1\n"


@pytest.mark.parametrize("place", ["http://x/sourcedir.tar.gz", "s3://Bucket/sourcedir.tar.gz"])
def test_code_that_was_left_elsewhere_is_told_of(place: str, tmp_path: Path) -> None:
    paths = container(tmp_path / "ml", None)
    with pytest.raises(ContractError, match="comes as a channel"):
        entrypoint_code.fetcher(contract_of(place), paths, {}, tmp_path)


def test_a_source_that_is_no_directory_is_refused_before_its_ignore_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no such directory"):
        Estimator("train.py", tmp_path / "nowhere")
