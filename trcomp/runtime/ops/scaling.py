"""What `torch.amp.GradScaler` asks of the device: unscale, look for overflow, adapt the scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import torch

from trcomp.runtime.dispatch import implements
from trcomp.runtime.dtypes import cast, opmath
from trcomp.runtime.ops.registry import lowers
from trcomp.runtime.recording import Lifted, emit, put_all_back, put_back
from trcomp.runtime.storage import is_dense, output


@lowers("trcomp::unscale")
def _unscale(ctx: Any, grads: Any, found_inf: Any, inv_scale: Any) -> Any:
    unscaled = []
    for grad in grads:
        wide = cast(grad, opmath(grad.dtype))
        overflow = ~jnp.all(jnp.isfinite(wide))
        found_inf = jnp.where(overflow, jnp.ones_like(found_inf), found_inf)
        unscaled.append(wide * cast(inv_scale, wide.dtype))
    return (*unscaled, found_inf)


@implements("_amp_foreach_non_finite_check_and_unscale_")
def amp_foreach_non_finite_check_and_unscale_(
    self: Sequence[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor
) -> None:
    """Multiply gradients by `inv_scale` in place; set `found_inf` to 1 if any is not finite."""
    grads = list(self)
    if not grads:
        return
    outputs = []
    for tensor in (*grads, found_inf):
        size, stride = tuple(tensor.size()), tensor.stride()
        outputs.append(output(size, tensor.dtype, stride if is_dense(size, stride) else None))
    node = emit("trcomp::unscale", (grads, found_inf, inv_scale), outputs)
    put_all_back((*grads, found_inf), node)


@lowers("trcomp::update_scale")
def _update_scale(
    ctx: Any,
    scale: Any,
    growth_tracker: Any,
    found_inf: Any,
    growth_factor: Any,
    backoff_factor: Any,
    growth_interval: Any,
) -> Any:
    overflow = found_inf != 0
    count = growth_tracker + 1
    full = count == cast(growth_interval, count.dtype)
    grown = scale * cast(growth_factor, scale.dtype)
    grown = jnp.where(full & jnp.isfinite(grown), grown, scale)
    backed_off = scale * cast(backoff_factor, scale.dtype)
    return jnp.where(overflow, backed_off, grown), jnp.where(overflow | full, 0, count)


@implements("_amp_update_scale_")
def amp_update_scale_(
    self: torch.Tensor,
    growth_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> torch.Tensor:
    """Shrink the scale after an overflow; grow it after `growth_interval` steps without one."""
    numbers = [Lifted(scale_growth_factor), Lifted(scale_backoff_factor), Lifted(growth_interval)]
    outputs = [output(tuple(t.size()), t.dtype) for t in (self, growth_tracker)]
    node = emit("trcomp::update_scale", (self, growth_tracker, found_inf, *numbers), outputs)
    put_back(self, node, 0)
    put_back(growth_tracker, node, 1)
    return self
