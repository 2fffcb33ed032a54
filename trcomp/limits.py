"""SageMaker's limits on names, lengths and counts, read from botocore's model of the service."""

from __future__ import annotations

import re
from functools import cache
from typing import Any


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
    if pattern is not None and re.fullmatch(pattern, text) is None:
        return f"SageMaker takes text that matches {pattern}"
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
