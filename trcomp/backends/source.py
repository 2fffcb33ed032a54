"""The user's code as a list of files: what is copied into a job and what is left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trcomp.backends.base import FileCopy
from trcomp.errors import Problem, nearest
from trcomp.spec import JobSpec

IGNORE_FILE = ".trcompignore"
"""Lists, as .gitignore does, what of the source is no part of a job's code."""

IGNORED = (
    IGNORE_FILE,
    ".env",
    ".git/",
    ".hg/",
    ".svn/",
    ".hypothesis/",
    ".ipynb_checkpoints/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".tox/",
    "__pycache__/",
    "node_modules/",
)
"""What is left behind unless that file says otherwise (``!.env``); so is a virtual environment."""


def problems(spec: JobSpec) -> list[Problem]:
    """What is wrong with the entry point and source directory on this machine."""
    found: list[Problem] = []
    if not spec.entry_point.endswith(".py"):
        found.append(Problem("entry_point", spec.entry_point, "a Python script, *.py, is needed."))
    if spec.git_config is not None:  # Its files are known once it is cloned.
        return found
    if spec.source_uri is not None:
        return found + _uri_problems(spec)
    found += _dependency_problems(spec)
    if spec.source_dir is None:
        script = Path(spec.entry_point)
        if not os.path.isfile(script):
            near = nearest(script.name, [path.name for path in script.parent.glob("*.py")])
            suggestion = str(script.with_name(near)) if near else None
            found.append(Problem("entry_point", str(script), "there is no such file.", suggestion))
        return found
    root = Path(spec.source_dir)
    if not os.path.isdir(root):
        return [*found, Problem("source_dir", str(root), "there is no such directory.")]
    try:
        _ignored(root)
    except ValueError as error:
        allowed = f"{error}. Its lines are patterns as in .gitignore."
        return [*found, Problem("source_dir", str(root / IGNORE_FILE), allowed)]
    if not _inside(root, root / spec.entry_point):
        allowed = "a path inside source_dir, relative to it, is needed."
        found.append(Problem("entry_point", spec.entry_point, allowed))
    elif not os.path.isfile(root / spec.entry_point):
        allowed = f"there is no such file in {root}."
        suggestion = _nearest_script(root, spec.entry_point)
        found.append(Problem("entry_point", spec.entry_point, allowed, suggestion))
    return found


def plan_files(spec: JobSpec) -> tuple[FileCopy, ...]:
    """The files that reach the job's code directory, in order of their names.

    Symbolic links are followed, so that the job does not depend on what they point at later.
    """
    if spec.source_uri is not None or spec.git_config is not None:
        return ()
    if spec.source_dir is None:
        path = Path(spec.entry_point)
        files = [_copy(path, path.name)]
    else:
        files = _copies(Path(spec.source_dir))
    for dependency in map(Path, spec.dependencies):
        files += _copies(dependency, f"{dependency.name}/")
    return tuple(sorted(files, key=lambda file: Path(file.destination)))


def left_behind(spec: JobSpec) -> tuple[str, ...]:
    """What of source_dir is no part of the code; a directory stands for all that is in it."""
    if spec.source_dir is None or spec.source_uri is not None or spec.git_config is not None:
        return ()
    found: list[str] = []
    _walk(Path(spec.source_dir), found.append)
    return tuple(sorted(found))


def _copies(root: Path, prefix: str = "") -> list[FileCopy]:
    """The files of a directory, or the one file."""
    if root.is_file():
        return [_copy(root, prefix.rstrip("/"))]
    found = []
    for path in _walk(root):
        with suppress(FileNotFoundError):  # Gone since it was listed.
            found.append(_copy(path, prefix + path.relative_to(root).as_posix()))
    return found


def _dependency_problems(spec: JobSpec) -> list[Problem]:
    """Each must be there, and have a name of its own: SageMaker's SDK v2 lets them collide."""
    found = []
    root = None if spec.source_dir is None else Path(spec.source_dir)
    taken = {Path(spec.entry_point).name} if root is None else set()
    for path in map(Path, spec.dependencies):
        if not os.path.exists(path):
            found.append(Problem("dependencies", str(path), "there is no such file or directory."))
        elif path.name in taken or (root is not None and (root / path.name).exists()):
            allowed = f"the job's code has a {path.name!r} already; rename one of the two."
            found.append(Problem("dependencies", str(path), allowed))
        taken.add(path.name)
    return found


def _uri_problems(spec: JobSpec) -> list[Problem]:
    """What does not go with code that lies in S3 already."""
    if not spec.dependencies:
        return []
    allowed = "code in S3 is taken as it is; put them there, or give a source_dir on this machine."
    return [Problem("dependencies", list(spec.dependencies), allowed)]


def _nearest_script(root: Path, entry_point: str) -> str | None:
    """A script of the source that may have been meant: its path, or at least its name, is near."""
    scripts = [path.relative_to(root) for path in _walk(root) if path.suffix == ".py"]
    by_path = {script.as_posix(): script.as_posix() for script in scripts}
    by_name = {script.name: script.as_posix() for script in reversed(scripts)}
    for word, spellings in ((entry_point, by_path), (Path(entry_point).name, by_name)):
        near = nearest(word, list(spellings))
        if near is not None:
            return spellings[near]
    return None


def _copy(path: Path, destination: str) -> FileCopy:
    return FileCopy(source=path, destination=destination, size_bytes=path.stat().st_size)


def _walk(root: Path, leave: Callable[[str], object] = lambda name: None) -> list[Path]:
    """The files under a directory that are part of the code; `leave` is told of what is not."""
    files: list[Path] = []
    seen: set[Path] = set()
    ignored = _ignored(root)
    for directory, subdirectories, names in os.walk(root, followlinks=True):
        here = Path(directory)
        real = here.resolve()
        if real in seen:  # a link to a directory above, or to one that is copied already
            subdirectories.clear()
            continue
        seen.add(real)
        prefix = "" if here == root else f"{here.relative_to(root).as_posix()}/"
        entered = []
        for name in sorted(subdirectories):
            closed = not os.access(here / name, os.R_OK | os.X_OK, effective_ids=True)
            environment = os.path.exists(here / name / "pyvenv.cfg")
            if ignored(f"{prefix}{name}/") or closed or environment:
                leave(f"{prefix}{name}/")
            else:
                entered.append(name)
        subdirectories[:] = entered
        for name in names:
            if ignored(prefix + name):
                leave(prefix + name)
            else:
                files.append(here / name)
    return sorted(filter(os.path.isfile, files))


def _ignored(root: Path) -> Callable[[str], bool]:
    """Whether a path under the root, a directory's with a slash at its end, is left behind.

    Raises:
        ValueError: A line of the ignore file is no pattern.
    """
    # Here, not above: only a job with a source directory needs it.
    from pathspec import GitIgnoreSpec

    lines = list(IGNORED)
    with suppress(FileNotFoundError):
        lines += (root / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    return GitIgnoreSpec.from_lines(lines).match_file


def _inside(root: Path, path: Path) -> bool:
    return Path(os.path.normpath(path)).is_relative_to(os.path.normpath(root))
