"""SageMaker's limits on names, lengths and counts, read from botocore's model of the service."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

OPEN_ENUMS = frozenset({"TrainingInstanceType"})
"""Lists that SageMaker extends more often than botocore is upgraded: other values pass."""


class Fault(NamedTuple):
    """One thing that SageMaker's API would refuse about a request."""

    path: str
    """Where it is, such as ``InputDataConfig[0].ChannelName``."""
    got: object
    allowed: str


def faults(shape: str, value: Any, path: str = "") -> Iterator[Fault]:
    """Everything that SageMaker's API would refuse about a value, such as a whole request.

    Args:
        shape: A shape of SageMaker's API, such as ``CreateTrainingJobRequest``.
        value: The value to be sent.
        path: Where the value is, for the reader.
    """
    model = _shapes()[shape]
    kind = model["type"]
    types, name = _TYPES[kind]
    if not isinstance(value, types) or isinstance(value, bool) != (kind == "boolean"):
        yield Fault(path, value, f"SageMaker takes {name}.")
    elif kind == "structure":
        yield from _structure_faults(model, value, path)
    elif isinstance(value, str):
        if refusal := string_problem(shape, value):
            yield Fault(path, value, refusal)
    elif kind in {"map", "list"}:
        yield from _container_faults(shape, model, value, path)
    elif isinstance(value, int | float) and not _within(value, model):
        low, high = model.get("min"), model.get("max")
        allowed = f"{low} or more" if high is None else f"{low or 0} to {high}"
        yield Fault(path, value, f"SageMaker takes {allowed}.")


def string_problem(shape: str, text: str) -> str | None:
    """What SageMaker's API would refuse about a string, as a sentence; None if nothing.

    Args:
        shape: A string shape of SageMaker's API, such as ``TrainingJobName``.
        text: The value to be sent.
    """
    model = _shapes()[shape]
    low, high, pattern = model.get("min", 0), model.get("max"), model.get("pattern")
    if len(text) < low or (high is not None and len(text) > high):
        return f"SageMaker takes {low} to {high} characters, this has {len(text)}."
    if pattern is not None and _compiled(pattern).fullmatch(text) is None:
        return f"SageMaker takes text that matches {pattern}"
    if text not in model.get("enum", [text]) and shape not in OPEN_ENUMS:
        return f"SageMaker takes {', '.join(model['enum'])}."
    return None


def count_problem(shape: str, count: int) -> str | None:
    """What SageMaker's API would refuse about the size of a map or list; None if nothing."""
    high = _shapes()[shape].get("max")
    if high is not None and count > high:
        return f"SageMaker takes at most {high}."
    return None


def longest(shape: str) -> int:
    """The number of characters that SageMaker's API admits for a string shape."""
    return int(_shapes()[shape]["max"])


def instance_types() -> tuple[str, ...]:
    """Every instance type that this botocore knows for training."""
    return tuple(_shapes()["TrainingInstanceType"]["enum"])


@cache
def _shapes() -> dict[str, Any]:
    # Here, not above: reading the model takes 0.1 s, and only making a job needs it.
    from botocore.loaders import Loader

    shapes: dict[str, Any] = Loader().load_service_model("sagemaker", "service-2")["shapes"]
    return shapes


_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "structure": ((Mapping,), "an object"),
    "map": ((Mapping,), "an object"),
    "list": ((list, tuple), "a list"),
    "string": ((str,), "text"),
    "boolean": ((bool,), "True or False"),
    "integer": ((int,), "a whole number"),
    "long": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "double": ((int, float), "a number"),
}


def _structure_faults(model: Mapping[str, Any], value: Any, path: str) -> Iterator[Fault]:
    prefix = f"{path}." if path else ""
    for name in model.get("required", ()):
        if value.get(name) is None:
            yield Fault(f"{prefix}{name}", None, "SageMaker needs it.")
    for name, item in value.items():
        member = model["members"].get(name)
        if member is None:
            yield Fault(f"{prefix}{name}", item, "SageMaker has no such field.")
        elif item is not None:
            yield from faults(member["shape"], item, f"{prefix}{name}")


def _container_faults(
    shape: str, model: Mapping[str, Any], value: Any, path: str
) -> Iterator[Fault]:
    if refusal := count_problem(shape, len(value)):
        yield Fault(path, f"{len(value)} entries", refusal)
    if len(value) < model.get("min", 0):
        yield Fault(path, value, f"SageMaker takes at least {model['min']}.")
    if model["type"] == "list":
        for index, item in enumerate(value):
            yield from faults(model["member"]["shape"], item, f"{path}[{index}]")
        return
    for key, item in value.items():
        yield from faults(model["key"]["shape"], key, path)
        yield from faults(model["value"]["shape"], item, f"{path}[{key!r}]")


def _within(value: float, model: Mapping[str, Any]) -> bool:
    return bool(model.get("min", value) <= value <= model.get("max", value))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # The model's patterns are Java's, whose named classes, always inside sets here, re lacks.
    classes = {r"\p{L}": r"\w", r"\p{N}": r"\w", r"\p{Z}": r"\s", r"\p{Alnum}": "a-zA-Z0-9"}
    for java, python in classes.items():
        pattern = pattern.replace(java, python)
    return re.compile(pattern)
