"""Puts the torch_xla module tree on the import path of a worker, behind a real torch_xla."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

_TREE = "torch_xla"
_ROOT = Path(__file__).parent / _TREE


class TreeFinder(MetaPathFinder):
    """Finds `torch_xla` in trcomp; its submodules are then found on its own path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The tree's spec, None for all other modules."""
        if fullname != _TREE:
            return None
        return spec_from_file_location(
            _TREE, _ROOT / "__init__.py", submodule_search_locations=[str(_ROOT)]
        )


def install() -> None:
    """Make `import torch_xla` find trcomp's tree. Does nothing when it does already.

    The finder goes last, so an installed torch_xla wins; stderr says so once.
    """
    if any(isinstance(finder, TreeFinder) for finder in sys.meta_path):
        return
    sys.meta_path.append(TreeFinder())
    installed = PathFinder.find_spec(_TREE)
    if installed is not None:
        print(
            f"trcomp: torch_xla is installed at {installed.origin} and is used as it is; "
            "uninstall it to run on trcomp's runtime.",
            file=sys.stderr,
        )
