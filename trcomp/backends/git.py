"""A job's code out of a git repository, cloned where a plan can read it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trcomp.errors import BackendUnavailableError, Problem, SpecError
from trcomp.spec import GitConfig, JobSpec

_LAST = 500
"""Characters of what git says that are shown."""


@contextmanager
def cloned(spec: JobSpec) -> Iterator[JobSpec]:
    """The job with its code on this machine: itself, or its repository's clone for a while.

    Raises:
        BackendUnavailableError: git is not installed, or cannot clone.
        SpecError: Something in the repository leads out of it.
    """
    if spec.git_config is None:
        yield spec
        return
    with tempfile.TemporaryDirectory(prefix="trcomp-git-") as place:
        root = Path(place) / "clone"
        _clone(spec.git_config, root)
        _check_links(root)
        source = None if spec.source_dir is None else str(root / spec.source_dir)
        script = spec.entry_point if source is not None else str(root / spec.entry_point)
        yield spec.model_copy(
            update={
                "git_config": None,
                "source_dir": source,
                "entry_point": script,
                "dependencies": tuple(str(root / path) for path in spec.dependencies),
            }
        )


def _clone(config: GitConfig, root: Path) -> None:
    branch = [] if config.branch is None else ["--branch", config.branch]
    # One commit is enough, unless a certain one is asked for.
    depth = [] if config.commit is not None else ["--depth", "1"]
    _git(config, ["clone", "--quiet", *branch, *depth, "--", config.repo, str(root)])
    if config.commit is not None:
        _git(config, ["-C", str(root), "checkout", "--quiet", "--detach", config.commit])


def _git(config: GitConfig, arguments: Sequence[str]) -> None:
    # Nobody is there to answer: without credentials of its own git is to fail.
    environ = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ["git", *arguments], env=environ, capture_output=True, text=True, errors="replace"
        )
    except FileNotFoundError as error:
        raise BackendUnavailableError("git_config needs git.", "Install git.") from error
    if done.returncode != 0:
        raise BackendUnavailableError(
            f"git could not fetch {config.repo}: {done.stderr.strip()[-_LAST:]}",
            f"`git ls-remote {config.repo}` must work on this machine.",
        )


def _check_links(root: Path) -> None:
    """Links are followed when code is packed: those of a repository must stay inside it."""
    real = root.resolve()
    for directory, subdirectories, names in os.walk(root):
        for name in [*subdirectories, *names]:
            path = Path(directory, name)
            if path.is_symlink() and not path.resolve().is_relative_to(real):
                allowed = "a link of the repository leads out of it, to this machine's files."
                raise SpecError([Problem("git_config", str(path.relative_to(root)), allowed)])
