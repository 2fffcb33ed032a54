"""Watches a step on trial: what it may not do is prevented, and the line that does it named.

A captured step is replayed without its Python code. So it must not read values of the device, and
must do nothing that the replay would leave out: print, draw on the host, look at a clock.
"""

from __future__ import annotations

import gc
import io
import linecache
import random
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trcomp.runtime.capture.code import is_script, script_frame
from trcomp.runtime.fallback import run_on_cpu
from trcomp.runtime.sync import _compute, evaluate, fetch, finish, sync
from trcomp.runtime.transfer import to_host


class Prevented(BaseException):
    """The step did what cannot be captured; no handler of its own should catch this."""


_ON_DEVICE = {
    run_on_cpu.__code__: "has an operator run on the CPU",
    to_host.__code__: "reads a value of the device",
    fetch.__code__: "reads a value of the device",
    evaluate.__code__: "has the device execute before the step's end",
    sync.__code__: "ends a step",
    finish.__code__: "waits for the device",
    _compute.__code__: "has the device execute before the step's end",
}
_BACKWARD = {
    torch.autograd.backward.__code__: "tensors",
    torch.autograd.grad.__code__: "outputs",
}
_TRUSTED = frozenset(["torch", "trcomp", "jax", "jaxlib", "numpy"])
_BUILTINS = {
    "print": "prints",
    "input": "asks for input",
    "open": "opens a file",
    "next": "takes the next of an iterator",
}
_MODULES = {
    "time": "looks at the clock",
    "posix": "asks the operating system",
    "_socket": "uses the network",
    "_random": "draws on the host",
}
_LOOKS = ("getstate", "setstate")
"""What torch does with a random stream around code that must not move it."""
_OBJECTS: tuple[tuple[type, str], ...] = (
    (random.Random, "draws on the host"),
    (io.IOBase, "reads or writes a file"),
)


class Observer:
    """What a function did, and what it was kept from.

    Attributes:
        functions: The code of the script that ran, and its globals.
        derived: Tensors that a backward pass began from.
        prevented: What the function may not do and where, if anything.
    """

    def __init__(self) -> None:
        self.functions: dict[types.CodeType, dict[str, Any]] = {}
        self.derived: list[torch.Tensor] = []
        self.prevented: str | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what this thread does.

        Raises:
            Prevented: It does what cannot be captured.
        """
        collects = gc.isenabled()
        gc.disable()  # What finalizers do is none of the step's doing.
        sys.setprofile(self._notice)
        try:
            yield
        finally:
            sys.setprofile(None)
            if collects:
                gc.enable()

    def _notice(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code in _ON_DEVICE:
                self._prevent(frame, _ON_DEVICE[code])
            elif code in _BACKWARD:
                self._note_backward(frame, _BACKWARD[code])
            elif code not in self.functions and is_script(code):
                self.functions[code] = frame.f_globals
        elif event == "c_call" and not self._is_trusted(frame):
            reason = _forbidden(argument, is_script(frame.f_code))
            if reason is not None:
                self._prevent(frame, reason)

    def _is_trusted(self, frame: types.FrameType | None) -> bool:
        """Whether a library is at work that is known, or Python's own for it."""
        while frame is not None:
            package = str(frame.f_globals.get("__name__")).partition(".")[0]
            if package not in sys.stdlib_module_names or is_script(frame.f_code):
                return package in _TRUSTED
            frame = frame.f_back
        return False

    def _note_backward(self, frame: types.FrameType, name: str) -> None:
        if frame.f_locals.get("retain_graph") or frame.f_locals.get("create_graph"):
            return
        given = frame.f_locals.get(name)
        self.derived += [given] if isinstance(given, torch.Tensor) else list(given or ())

    def _prevent(self, frame: types.FrameType, reason: str) -> None:
        self.prevented = f"{script_line(frame)} {reason}"
        raise Prevented(self.prevented)


def _forbidden(function: Any, in_script: bool) -> str | None:
    """Why a built-in function may not be called, if it may not."""
    name, module = function.__name__, getattr(function, "__module__", None)
    if module == "builtins" and name in _BUILTINS and (in_script or name != "next"):
        return _BUILTINS[name]
    if module in _MODULES:
        return _MODULES[module]
    if name in _LOOKS:
        return None
    owner = getattr(function, "__self__", None)
    for kind, reason in _OBJECTS:
        if isinstance(owner, kind):
            return reason
    return _MODULES.get(getattr(owner, "__name__", ""))


def script_line(frame: types.FrameType | None) -> str:
    """The innermost line of the script, as `file:line: text`."""
    own = script_frame(frame)
    if own is None:
        return "a library"
    name = own.f_code.co_filename
    return f"{name}:{own.f_lineno}: `{linecache.getline(name, own.f_lineno).strip()}`"


def line_storing(functions: dict[types.CodeType, dict[str, Any]], path: str) -> str | None:
    """A line of these functions that may have changed what lies at a path."""
    import dis

    for code in functions:
        line = code.co_firstlineno
        for instruction in dis.get_instructions(code):
            line = instruction.starts_line or line
            stores = instruction.opname.startswith("STORE_") and instruction.opname not in (
                "STORE_FAST",
                "STORE_SUBSCR",
            )
            if stores and instruction.argval == path.rpartition(".")[2]:
                text = linecache.getline(code.co_filename, line).strip()
                return f"{code.co_filename}:{line}: `{text}`"
    return None
