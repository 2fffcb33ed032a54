"""`scan_layers`: layers one after another, recorded unrolled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .._missing import missing

__getattr__ = missing(__name__)


def scan_layers(
    layers: Iterable[torch.nn.Module],
    input_data: Any,
    partition_fn: Any = None,
    is_layer_pure: bool = False,
) -> Any:
    """The last layer's output, each layer given the one's before; they need not be alike.

    Args:
        layers: Modules of one argument.
        input_data: The first one's.
        partition_fn: As the next, accepted: there is nothing of the kind to choose.
        is_layer_pure: Accepted.
    """
    data = input_data
    for layer in layers:
        data = layer(data)
    return data
