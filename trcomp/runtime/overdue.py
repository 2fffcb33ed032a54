"""Scripts that never end a step: what is recorded is computed before it grows without bound.

A loop on the device alone, such as sampling from a diffusion model, reads and moves nothing.
It is cut where one operation recurs, so that every piece of it is the same graph.
"""

from __future__ import annotations

from trcomp import flags
from trcomp.runtime import ir
from trcomp.runtime.ir import Signature
from trcomp.runtime.sync import evaluate

LIMIT = flags.MAX_PENDING.get()
"""Recorded values from which a step is overdue."""


class _Place:
    signature: Signature | None = None
    """Before which operation the last cut was."""


def cuts_before(signature: Signature) -> bool:
    """Compute what is pending, if this operation is where to; the caller's operands change then."""
    if ir.is_apart():
        return False
    recurs = _Place.signature is None or signature is _Place.signature
    if not recurs and ir.num_pending() < 2 * LIMIT:
        return False
    _Place.signature = signature
    evaluate()
    return True
