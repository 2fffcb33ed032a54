"""Puts the torch_xla module tree on the import path of a worker, behind a real torch_xla."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from importlib.util import spec_from_file_location
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from trcomp.compat import accelerate, lightning, torchvision, transformers

TORCH_XLA_VERSION = "2.9.0+trcomp"
"""The torch_xla release whose names the tree has; frameworks compare it."""

_TREE = "torch_xla"
_ROOT = Path(__file__).parent / _TREE


class TreeFinder(MetaPathFinder, Loader):
    """Finds `torch_xla` in trcomp; its submodules are then found on its own path.

    Those that are out of scope are no files: they are made here, and refuse when they are used.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the tree, or of a module that is out of scope; None for all others."""
        if fullname == _TREE:
            return spec_from_file_location(
                _TREE, _ROOT / "__init__.py", submodule_search_locations=[str(_ROOT)]
            )
        if not fullname.startswith(f"{_TREE}.") or not _is_ours(sys.modules[_TREE]):
            return None
        refusals = import_module(f"{_TREE}._refused")
        if refusals.find(fullname) is None:
            return None
        return ModuleSpec(fullname, self, is_package=refusals.is_package(fullname))

    def exec_module(self, module: ModuleType) -> None:
        """Let every public name of a module be there, and say why it is not when it is used."""
        refusals = import_module(f"{_TREE}._refused")
        _, why, instead = refusals.find(module.__name__)
        module.__doc__ = f"Refused: {why}. {instead}"

        def name(wanted: str) -> type:
            if wanted.startswith("_"):
                raise AttributeError(f"module {module.__name__!r} has no {wanted!r}")
            made: type = refusals.refused(f"{module.__name__}.{wanted}", why, instead)
            setattr(module, wanted, made)
            return made

        vars(module)["__getattr__"] = name

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        """What `importlib.metadata` tells about torch_xla, unless a real one is installed."""
        name = None if context is None else context.name
        wanted = name is None or re.sub(r"[-_.]+", "_", name).lower() == _TREE
        return [_TreeDistribution()] if wanted and _installed() is None else []


class _TreeDistribution(Distribution):
    """The metadata that frameworks ask whether torch_xla is there, and of which release."""

    _TEXTS: ClassVar = {
        "METADATA": f"Metadata-Version: 2.1\nName: {_TREE}\nVersion: {TORCH_XLA_VERSION}\n"
        "Summary: torch_xla's module tree on trcomp's runtime\n",
        "top_level.txt": f"{_TREE}\n",
    }

    def read_text(self, filename: str) -> str | None:
        """A metadata file, None if there is none of that name."""
        return self._TEXTS.get(str(filename))

    def locate_file(self, path: str | PathLike[str]) -> Path:
        """Where a file of the tree is."""
        return _ROOT.parent / path


def _is_ours(tree: ModuleType) -> bool:
    return list(getattr(tree, "__path__", [])) == [str(_ROOT)]


def _installed() -> ModuleSpec | None:
    return PathFinder.find_spec(_TREE)


def install() -> None:
    """Make `import torch_xla` find trcomp's tree. Does nothing when it does already.

    The finder goes last, so an installed torch_xla wins; stderr says so once.
    """
    if any(isinstance(finder, TreeFinder) for finder in sys.meta_path):
        return
    sys.meta_path.append(TreeFinder())
    torchvision.install()
    installed = _installed()
    if installed is None:
        for framework in (accelerate, lightning, transformers):
            framework.install()
    else:
        print(
            f"trcomp: torch_xla is installed at {installed.origin} and is used as it is; "
            "uninstall it to run on trcomp's runtime.",
            file=sys.stderr,
        )
