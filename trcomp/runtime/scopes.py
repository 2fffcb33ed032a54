"""Where in the script an operation comes from, in XLA's own terms: a name like a path, and a line.

    with record_function("loss"):  ──┐
    Encoder.forward, its layer 0   ──┼─> "loss/Encoder/layers/0"  ──named_scope──> HLO's metadata
    train.py:53                    ──┘                                              traces, dumps

Looking costs as much as recording, so it is done only in a job that writes traces or dumps. What a
backward pass records has the place of the forward operation that it is of.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import fx

from trcomp import flags

if TYPE_CHECKING:
    from trcomp.runtime.ir import Node

_CALL = torch.nn.Module._call_impl.__code__
_MOST_FORWARD = 50_000
"""Forward operations kept for backward passes to come."""


class Asked:
    """Whether places are looked up: from `install` on."""

    on = False


class Origin(NamedTuple):
    """A place in the script."""

    scope: str
    traceback: Any
    """As jax keeps it, to be told of its own operations."""


class _Names(threading.local):
    def __init__(self) -> None:
        self.open: list[str] = []
        self.traced: str | None = None
        """The module that a node of a traced graph is of."""


_names = _Names()
_forward: dict[int, Origin] = {}
"""By the number that autograd gives to the node of a backward pass."""
_paths: WeakKeyDictionary[torch.nn.Module, dict[int, str]] = WeakKeyDictionary()


def install() -> None:
    """Look from now on, if the job writes traces or dumps."""
    if not (flags.PROFILE_STEPS.get() or flags.DEBUG.get()) or Asked.on:
        return
    from jax.extend import source_info_util

    for library in (Path(torch.__file__).parent, Path(__file__).parents[1]):
        source_info_util.register_exclusion(f"{library}/")
    # jax's first use in a thread runs generated code, which a step on trial may not.
    source_info_util.current()
    _register_record_function()
    Asked.on = True


@contextmanager
def within(name: str) -> Iterator[None]:
    """What this thread records in the block has this name before its own."""
    _names.open.append(name)
    try:
        yield
    finally:
        _names.open.pop()


@contextmanager
def tracing(traced: fx.Node) -> Iterator[None]:
    """What this thread records in the block is of a node of a graph that torch traced."""
    forward = traced.meta.get("fwd_nn_module_stack")
    modules = forward or traced.meta.get("nn_module_stack") or {}
    path, _ = next(reversed(modules.values()), ("", ""))
    parts = ["backward" if forward else "", *re.findall(r"\w+", path.partition("]")[2])]
    _names.traced = _joined(parts)
    try:
        yield
    finally:
        _names.traced = None


def note(node: Node) -> None:
    """A node has just been recorded."""
    node.origin = _origin()


@contextmanager
def lowering(node: Node) -> Iterator[None]:
    """What jax traces in the block is of this node."""
    origin = getattr(node, "origin", None)
    if origin is None:
        yield
        return
    import jax
    from jax.extend import source_info_util

    operator = node.signature.rule.name.rpartition("::")[2].partition(".")[0]
    with ExitStack() as stack:
        stack.enter_context(source_info_util.user_context(origin.traceback))
        stack.enter_context(jax.named_scope(_joined([origin.scope, operator])))
        yield


def _origin() -> Origin:
    from jax.extend import source_info_util

    backward = torch._C._current_autograd_node()
    if backward is not None:
        found = _forward.get(backward._sequence_nr())
        if found is not None:
            return Origin(_joined(["backward", found.scope]), found.traceback)
    module = _module_path() if _names.traced is None else _names.traced
    origin = Origin(_joined([*_names.open, module]), source_info_util.current().traceback)
    if torch.is_grad_enabled():
        # The node of the backward pass is made before the operation is recorded.
        if len(_forward) >= _MOST_FORWARD:
            _forward.clear()
        _forward.setdefault(torch._C._autograd._get_sequence_nr() - 1, origin)
    return origin


def _module_path() -> str:
    """The innermost module that is being called, by its place in the outermost: `Net/layers/0`."""
    inner: Any = None
    outer: Any = None
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            outer = frame.f_locals["self"]
            inner = outer if inner is None else inner
        frame = frame.f_back  # type: ignore[assignment]
    if inner is None:
        return ""
    names = _paths.get(outer)
    if names is None or id(inner) not in names:
        names = _paths[outer] = {id(part): path for path, part in outer.named_modules()}
    path = names.get(id(inner), type(inner).__name__)
    return _joined([type(outer).__name__, *path.split(".")])


def _joined(parts: Iterable[str]) -> str:
    return "/".join(filter(None, parts))


def _register_record_function() -> None:
    """Have the script's `record_function` name what is recorded in it, and show in jax's traces."""
    import jax

    kind: Any = torch.profiler.record_function
    enter, leave = kind.__enter__, kind.__exit__

    @wraps(enter)
    def entered(self: Any) -> Any:
        _names.open.append(self.name)
        self._trcomp_mark = jax.profiler.TraceAnnotation(self.name)
        self._trcomp_mark.__enter__()
        return enter(self)

    @wraps(leave)
    def left(self: Any, *error: Any) -> Any:
        _names.open.pop()
        self._trcomp_mark.__exit__(*error)
        return leave(self, *error)

    kind.__enter__, kind.__exit__ = entered, left
