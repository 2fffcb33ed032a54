"""Which reads leave the step whole: what they need is computed aside, and again within the step.

Libraries look at their inputs while a step is being recorded: is any token padded, how long is the
longest sequence. Such an answer takes an operation or two; cutting the step for it would cost XLA
the fusion across the cut.
"""

from __future__ import annotations

from trcomp.runtime import ir
from trcomp.runtime.bodies import REGION
from trcomp.runtime.ir import Node, Value

_MAX_NODES = 4
_MAX_BYTES = 1 << 20
_MAX_READS = 8
"""Between two syncs. A script whose steps end with no barrier must not record for ever."""


class _Reads:
    since_sync = 0


def note_sync() -> None:
    """Everything pending is being computed."""
    _Reads.since_sync = 0


def takes(value: Value) -> bool:
    """Whether to compute a pending value aside. It is counted as done if so."""
    if _Reads.since_sync >= _MAX_READS or ir.is_apart():
        return False
    needed = _needed(value)
    if needed is None or not ir.is_pending_beyond(needed):
        return False
    _Reads.since_sync += 1
    return True


def _needed(value: Value) -> set[Node] | None:
    """The nodes that a value needs; None if they are many or large, or involve other ranks."""
    assert value.node is not None
    needed: set[Node] = set()
    stack = [value.node]
    num_bytes = 0
    while stack:
        node = stack.pop()
        if node in needed:
            continue
        needed.add(node)
        outputs = node.signature.outputs
        rule = node.signature.rule
        if len(needed) > _MAX_NODES or rule.collective or rule is REGION or None in outputs:
            return None
        num_bytes += sum(out.num_bytes for out in outputs if out is not None)
        if num_bytes > _MAX_BYTES:
            return None
        stack += [source for source, _ in node.sources if type(source) is Node]
    return needed
