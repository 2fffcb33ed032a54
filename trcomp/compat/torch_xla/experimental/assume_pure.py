"""`assume_pure`: functions that may be traced once; here they are recorded at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .._missing import missing
from .._refused import internal, refused

__getattr__ = missing(__name__)

j2t_autograd = refused(
    "j2t_autograd",
    "JAX functions cannot be called on the device's tensors",
    "Write the function with torch's operators.",
)
make_fake_inputs = internal("torch_xla.experimental.assume_pure.make_fake_inputs")
prepare_computation_inputs = internal(
    "torch_xla.experimental.assume_pure.prepare_computation_inputs"
)


def assume_pure(fn: Callable[..., Any], *, add_rng_seed_argument: bool = False) -> Any:
    """The function as it is; `torch.compile(fn, backend="trcomp")` records it once."""
    return fn


def assume_pure_torch(func: Callable[..., Any], use_cache: bool = False) -> Any:
    """The function as it is."""
    return func


class PureModule(torch.nn.Module):
    """Calls the module it holds.

    Args:
        module: Any.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives."""
        return self._module(*args, **kwargs)
