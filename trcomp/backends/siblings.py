"""What a script imports from beside itself, and what of it stays behind when it goes alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from trcomp.spec import JobSpec


def note(spec: JobSpec) -> str | None:
    """What whoever sends a script without its directory should know; None if nothing."""
    if spec.source_dir is not None or spec.git_config is not None:
        return None
    script = Path(spec.entry_point)
    sent = {Path(path).name for path in spec.dependencies}
    beside = [name for name in _siblings(script) if name.rstrip("/") not in sent]
    if not beside:
        return None
    return (
        f"{script.name} imports from {' and '.join(beside)}, which without source_dir stays "
        f"behind: source_dir={str(script.parent)!r} sends the whole directory."
    )


def _siblings(script: Path) -> list[str]:
    """The files and packages beside a script that it imports from, by name."""
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):  # Said elsewhere, or by Python in the job.
        return []
    found = []
    for name in sorted(set(_imported(tree))):
        file, package = script.with_name(f"{name}.py"), script.with_name(name)
        if file.is_file() and file != script:
            found.append(file.name)
        elif (package / "__init__.py").is_file():
            found.append(f"{name}/")
    return found


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
