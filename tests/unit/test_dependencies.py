"""Files and directories beside a job's script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trcomp import Estimator, SpecError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    for name in ("code/train.py", "lib/a.py", "lib/__pycache__/a.pyc", "lib/in/b.py", "one.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return tmp_path


def names(*words: Any, **more: Any) -> list[str]:
    return [file.destination for file in Estimator(*words, **more).plan().files]


def test_each_lies_beside_the_script_by_its_own_name(place: Path) -> None:
    given = [place / "lib", str(place / "one.py")]
    expected = ["lib/a.py", "lib/in/b.py", "one.py", "train.py"]
    assert names("train.py", place / "code", dependencies=given) == expected
    assert names(place / "code" / "train.py", dependencies=given) == expected
    (place / "lib" / ".trcompignore").write_text("in/\n")
    assert "lib/in/b.py" not in names("train.py", place / "code", dependencies=given)


def test_a_directory_has_its_name_however_it_is_given(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place / "lib" / "in")
    assert "lib/a.py" in names("train.py", place / "code", dependencies=[".."])


def test_two_of_one_name_are_refused(place: Path) -> None:
    (place / "other" / "lib").mkdir(parents=True)
    given = [place / "lib", place / "other" / "lib", place / "code" / "train.py", place / "no"]
    with pytest.raises(SpecError) as caught:
        Estimator("train.py", place / "code", dependencies=given)
    text = str(caught.value)
    assert "3 problems" in text
    assert "has a 'lib' already" in text
    assert "has a 'train.py' already" in text
    assert "there is no such file or directory" in text


def test_they_are_files_of_this_machine(place: Path) -> None:
    with pytest.raises(SpecError, match="on this machine is needed"):
        Estimator("train.py", place / "code", dependencies=["s3://bucket/lib"])
