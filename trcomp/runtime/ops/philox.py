"""Random bits in a graph, from the key that each draw brings: Philox, a counter-based generator."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from trcomp.runtime.dtypes import cast


def random_bits(key: Any, shape: tuple[int, ...], dtype: Any = np.uint32) -> Any:
    """Uniform unsigned integers.

    The counter starts at the key rather than at zero, so draws do not walk the same counters; two
    draws are the same only if their keys are.
    """
    word = cast(key, np.dtype("int64")).astype(np.uint64)
    state = jnp.stack([word, word ^ np.uint64(0x9E3779B97F4A7C15)])
    _, bits = lax.rng_bit_generator(state, shape, dtype, algorithm=lax.RandomAlgorithm.RNG_PHILOX)
    return bits


def uniform(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Floats in [0, 1), with as many random bits as float32 (24) or float64 (53) can tell apart."""
    if dtype == np.float64:
        bits = random_bits(key, shape, np.uint64) >> 11
        return bits.astype(np.float64) * 2.0**-53
    bits = random_bits(key, shape) >> 8
    return cast(bits.astype(np.float32) * np.float32(2.0**-24), np.dtype(dtype))


def normal(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Standard normal floats, by Box and Muller's transform of two uniform ones."""
    wide = np.float64 if dtype == np.float64 else np.float32
    count = math.prod(shape)
    pairs = uniform(key, (2, -(-count // 2)), wide)
    radius = jnp.sqrt(-2 * jnp.log1p(-pairs[0]))
    angle = wide(2 * math.pi) * pairs[1]
    flat = jnp.concatenate([radius * jnp.cos(angle), radius * jnp.sin(angle)])[:count]
    return cast(flat.reshape(shape), np.dtype(dtype))


def keep_mask(key: Any, shape: tuple[int, ...], probability: Any) -> Any:
    """Bools that are true with a probability, which may be traced."""
    return uniform(key, shape, np.float32) < cast(probability, np.dtype("float32"))
