"""Flat dataclasses read back from JSON: what others may have written is as declared, or refused."""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar, get_args, get_type_hints

T = TypeVar("T")


def read(kind: type[T], text: str | bytes) -> T:
    """The dataclass that a JSON text holds.

    Args:
        kind: A dataclass whose fields are text, switches, numbers, or one of them or None.
        text: The fields as a JSON object.

    Raises:
        ValueError: The text is something else: no object, other fields, a value of another type or
            a number that is not finite.
    """
    return made(kind, json.loads(text))


def made(kind: type[T], values: Any) -> T:
    """The dataclass of these JSON values.

    Raises:
        ValueError: They are something else.
    """
    if not isinstance(values, dict):
        raise ValueError(f"got {type(values).__name__}; an object is needed")
    allowed = _types(kind)
    for name, value in values.items():
        if name not in allowed:
            raise ValueError(f"no field is named {name!r}")
        # Exact types: to isinstance a bool is an int.
        if type(value) not in allowed[name] or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            raise ValueError(f"{name}: got {value!r}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _types(kind: type) -> dict[str, tuple[type, ...]]:
    """The types of each field; a whole number is a number too."""
    found = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(kind).items()}
    return {name: (*types, int) if float in types else types for name, types in found.items()}
