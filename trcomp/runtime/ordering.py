"""Collectives as every rank means them, though each rank has a program of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from trcomp.runtime.client import AXIS


def after(value: jax.Array, earlier: jax.Array | None) -> jax.Array:
    """What a collective is given: `value`, computed after `earlier`, and on this rank alone.

    XLA takes all ranks' programs to be one. A rank that reads a value early has two where others
    have one, and XLA would merge and reorder the collectives of each as it likes, so that ranks
    answer each other's with something else. And what is a constant here, XLA would not reduce at
    all: it would take it for everyone's. A barrier of XLA's does not keep it from either. That the
    place of a write depends on the earlier result and on the rank does: it is the first element,
    over itself.
    """
    if not value.size:
        return value
    place = lax.axis_index(AXIS).astype(jnp.int32)
    if earlier is not None and earlier.size:
        first = earlier.reshape(-1)[0]
        place += (first.real if jnp.iscomplexobj(first) else first).astype(jnp.int32)
    zero = lax.clamp(jnp.int32(0), place, jnp.int32(0))
    flat = value.reshape(-1)
    return lax.dynamic_update_slice(flat, flat[:1], (zero,)).reshape(value.shape)
