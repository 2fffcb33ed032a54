"""Whose code is whose: the script's own functions, modules and classes, and those of libraries."""

from __future__ import annotations

import sys
import sysconfig
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_LIBRARIES = (str(Path(__file__).parents[2]), *sysconfig.get_paths().values())
_TYPED = ("<stdin>", "<ipython")
_GIVEN = "<string>"
"""What `python -c` runs is called so, and what dataclasses and named tuples generate."""
_OF_DATACLASSES = "__create_fn__."


def is_script(code: types.CodeType) -> bool:
    """Whether code is the script's own: no library's, and not generated."""
    generated = code.co_qualname.startswith(_OF_DATACLASSES)
    return not generated and _is_scripts_file(code.co_filename)


@cache
def _is_scripts_file(name: str) -> bool:
    if name.startswith("<"):
        given = name == _GIVEN and not hasattr(sys.modules["__main__"], "__file__")
        return given or name.startswith(_TYPED)
    return not name.startswith(_LIBRARIES)


def script_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """The innermost frame, from this one outwards, that runs code of the script's own."""
    while frame is not None and not is_script(frame.f_code):
        frame = frame.f_back
    return frame


def is_script_module(module: types.ModuleType | None) -> bool:
    """Whether a module is the script's own."""
    if module is None:
        return False
    return not (getattr(module, "__file__", None) or "").startswith(_LIBRARIES) and (
        module.__name__ not in sys.builtin_module_names
    )


def is_script_class(kind: type) -> bool:
    """Whether a class is the script's own."""
    return is_script_module(sys.modules.get(kind.__module__))


def is_plain(kind: type) -> bool:
    """Whether no library has methods that use an object's attributes."""
    return all(is_script_class(base) for base in kind.__mro__ if base is not object)


def slots_of(kind: type) -> Iterator[str]:
    """Attributes of a class's objects that are not in their `__dict__`."""
    for base in kind.__mro__:
        names = base.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__"):
                yield name
