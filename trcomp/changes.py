"""Modules of others, changed right after they are first imported; nothing is imported for that."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Change = Callable[[Any], None]
"""Called with a module that has just been executed."""


class Changing(MetaPathFinder):
    """Finds modules where they are, and has them changed when they have been executed."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec; None for all others."""
        change = self._changes.get(fullname)
        spec = None if change is None else PathFinder.find_spec(fullname, path)
        if change is not None and spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, change)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader, change: Change) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def when_imported(changes: Mapping[str, Change]) -> None:
    """Change modules: at once those that are imported already, the others when they are.

    Args:
        changes: By the module's full name.
    """
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
    sys.meta_path.insert(0, Changing(changes))
