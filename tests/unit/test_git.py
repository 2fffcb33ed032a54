"""Code out of a git repository: what is cloned, what is refused, and that nothing is left."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from trcomp import BackendUnavailableError, JobSpec, SpecError
from trcomp.backends import git


def run(root: Path, *arguments: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    names = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a"}
    environ = {**os.environ, **own, **names, "GIT_COMMITTER_EMAIL": "a@b"}
    done = subprocess.run(
        ["git", "-C", str(root), *arguments],
        env=environ,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two commits on main and one on another branch."""
    root = tmp_path / "repository"
    (root / "src").mkdir(parents=True)
    (root / "lib").mkdir()
    run(root, "init", "--quiet", "--initial-branch", "main")
    for text in ("first", "second"):
        (root / "src" / "train.py").write_text(f"print({text!r})\n")
        (root / "lib" / "help.py").write_text("")
        run(root, "add", "--all")
        run(root, "commit", "--quiet", "--message", text)
    run(root, "checkout", "--quiet", "-b", "other")
    (root / "src" / "train.py").write_text("print('other')\n")
    run(root, "commit", "--quiet", "--all", "--message", "other")
    run(root, "checkout", "--quiet", "main")
    return root


def spec_of(repository: Path, **words: Any) -> JobSpec:
    config = {"repo": f"file://{repository}"} | words.pop("git_config", {})
    given = {"job_name": "a", "entry_point": "train.py", "source_dir": "src"} | words
    return JobSpec.of(git_config=config, **given)


def test_a_branch_or_a_commit(repository: Path) -> None:
    first = run(repository, "rev-parse", "main~1")
    for config, text in (
        ({}, "second"),
        ({"branch": "other"}, "other"),
        ({"commit": first}, "first"),
        ({"branch": "main", "commit": first}, "first"),
    ):
        with git.cloned(spec_of(repository, git_config=config)) as spec:
            assert spec.source_dir is not None
            script = Path(spec.source_dir, spec.entry_point)
            assert script.read_text() == f"print({text!r})\n"
            assert spec.git_config is None
        assert not script.exists()


def test_a_script_and_dependencies_of_the_repository(repository: Path) -> None:
    words: dict[str, Any] = {"source_dir": None, "dependencies": ["lib"]}
    with git.cloned(spec_of(repository, entry_point="src/train.py", **words)) as spec:
        assert Path(spec.entry_point).is_file()
        assert [Path(path, "help.py").is_file() for path in spec.dependencies] == [True]


def test_a_job_without_a_repository_is_left_as_it_is() -> None:
    plain = JobSpec.of(job_name="a", entry_point="train.py")
    with git.cloned(plain) as spec:
        assert spec is plain


def test_what_git_cannot_fetch_is_told_in_its_words(repository: Path) -> None:
    with (
        pytest.raises(BackendUnavailableError, match="nobody not found"),
        git.cloned(spec_of(repository, git_config={"branch": "nobody"})),
    ):
        pass
    with (
        pytest.raises(BackendUnavailableError, match="git ls-remote"),
        git.cloned(spec_of(repository.with_name("nowhere"))),
    ):
        pass


def test_a_link_out_of_the_repository_is_refused(repository: Path) -> None:
    (repository / "src" / "key").symlink_to("/etc/hostname")
    run(repository, "add", "--all")
    run(repository, "commit", "--quiet", "--message", "link")
    with pytest.raises(SpecError, match="leads out of it"), git.cloned(spec_of(repository)):
        pass


def test_without_git_it_is_told(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with (
        pytest.raises(BackendUnavailableError, match="Install git"),
        git.cloned(spec_of(repository)),
    ):
        pass
