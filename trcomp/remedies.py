"""What to do about graphs that are compiled again, by what of them has changed.

Said by a job's log as it happens (runtime/announcements.py) and by `trcomp doctor JOB` (advice.py).
"""

from __future__ import annotations

READ_LATER = "read values after the step, not within it: xm.add_step_closure, or one step later"
_AVOIDABLE = {
    "shape": "give {what} few shapes: pad to one length, or to a few (buckets)",
    "last batch": "drop or pad the last batch: drop_last=True, or DeviceLoader's pad",
    "dtype": "give each step the same dtypes: cast once, before the loop",
    "number": "lift the number out: give a float always, or a tensor",
    "argument": "lift it out: give an operator a tensor there, or one of a few values",
    "operation": "record the same operations in each step: torch.where in place of `if`",
    "result": "keep the same tensors alive in each step",
    "read": READ_LATER,
    "cut": "keep {what} off the step, or let it run in each",
    "selection": "keep the shape: torch.where(mask, a, b) or times the mask, not a[mask]",
}
"""By the kind of a compile's cause, as `runtime.causes.Cause` has it."""
_NEEDED = {
    "mode": "nothing, if train() and eval() alternate: each is compiled once",
    "start": "nothing: the first step may differ from those after it",
}


def is_avoidable(kind: str) -> bool:
    """Whether a script can do without compiles of a kind; those of other kinds any job needs."""
    return kind in _AVOIDABLE


def remedy(kind: str, example: str) -> str:
    """What to do about a compile, without a capital; empty where nothing is to be said.

    Args:
        kind: Of its cause.
        example: What changed, in words; an input that it names is named.
    """
    text = _AVOIDABLE.get(kind) or _NEEDED.get(kind, "")
    name, is_input, _ = example.partition(" (")
    return text.format(what=name if is_input else "what varies")
