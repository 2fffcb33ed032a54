"""Random draws: each takes one key, an input of the graph, so a draw never compiles anything."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from trcomp.runtime import draws, storage
from trcomp.runtime.dispatch import implements
from trcomp.runtime.draws import Key
from trcomp.runtime.dtypes import cast
from trcomp.runtime.ops import philox, refusals
from trcomp.runtime.ops.registry import lowers
from trcomp.runtime.recording import Lifted, emit, put_back, record
from trcomp.runtime.storage import output

Generator = torch.Generator | None


def next_key(generator: Generator) -> Key:
    """The next draw's key, from the device's stream or from a generator that the caller brought."""
    if generator is None:
        return draws.next_key()
    word = torch.empty((), dtype=torch.int64)
    return Lifted(int(word.random_(-(1 << 63), None, generator=generator)))


def _draw(name: str, self: torch.Tensor, generator: Generator, *arguments: Any) -> torch.Tensor:
    """Fill a tensor by a rule that is called with a key, the size and these arguments."""
    size, stride = tuple(self.size()), self.stride()
    out = output(size, self.dtype, stride if storage.is_dense(size, stride) else None)
    put_back(self, emit(name, (next_key(generator), size, *arguments), [out]), 0)
    return self


_HALF_BITS = {np.dtype(np.float16): 11, np.dtype(jnp.bfloat16): 8}


def _unit(ctx: Any, key: Any, size: tuple[int, ...]) -> Any:
    """Floats in [0, 1) in the dtype to compute in, none of which rounds to 1 in the output's."""
    drawn = philox.uniform(key, size, ctx.opmath if _is_float(ctx) else np.float32)
    bits = _HALF_BITS.get(ctx.dtype)
    return drawn if bits is None else jnp.floor(drawn * 2.0**bits) * 2.0**-bits


def _is_float(ctx: Any) -> bool:
    return bool(jnp.issubdtype(ctx.dtype, jnp.floating))


@lowers("trcomp::uniform")
def _uniform(ctx: Any, key: Any, size: tuple[int, ...], low: Any, high: Any) -> Any:
    drawn = _unit(ctx, key, size)
    low, high = cast(low, drawn.dtype), cast(high, drawn.dtype)
    return drawn * (high - low) + low


@implements("uniform_")
def uniform_(
    self: torch.Tensor, low: float = 0.0, high: float = 1.0, *, generator: Generator = None
) -> torch.Tensor:
    """Fill with numbers in [low, high)."""
    if low > high:
        raise RuntimeError(f"uniform_ expects from <= to, got from={low} and to={high}.")
    return _draw("trcomp::uniform", self, generator, Lifted(float(low)), Lifted(float(high)))


@lowers("trcomp::normal")
def _normal(ctx: Any, key: Any, size: tuple[int, ...], mean: Any, std: Any) -> Any:
    if jnp.issubdtype(ctx.dtype, jnp.complexfloating):
        part = np.dtype(np.float32 if ctx.dtype == np.complex64 else np.float64)
        pair = philox.normal(key, (2, *size), part) * math.sqrt(0.5)
        drawn = lax.complex(pair[0], pair[1])
    else:
        drawn = philox.normal(key, size, ctx.opmath)
    return drawn * cast(std, drawn.dtype) + cast(mean, drawn.dtype)


@implements("normal_")
def normal_(
    self: torch.Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator = None
) -> torch.Tensor:
    """Fill from a normal distribution."""
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    return _draw("trcomp::normal", self, generator, Lifted(float(mean)), Lifted(float(std)))


@implements("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def normal(mean: Any, std: Any = 1.0, *, generator: Generator = None) -> torch.Tensor:
    """One draw per element of `mean` and `std`, broadcast."""
    given = [x for x in (mean, std) if isinstance(x, torch.Tensor)]
    size = torch.broadcast_shapes(*(x.size() for x in given))
    drawn = torch.empty(size, dtype=given[0].dtype, device=given[0].device)
    return normal_(drawn, generator=generator).mul_(std).add_(mean)


@lowers("trcomp::log_normal")
def _log_normal(ctx: Any, key: Any, size: tuple[int, ...], mean: Any, std: Any) -> Any:
    return jnp.exp(_normal(ctx, key, size, mean, std))


@implements("log_normal_")
def log_normal_(
    self: torch.Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator = None
) -> torch.Tensor:
    """Fill with the exponential of normal draws."""
    if std <= 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    return _draw("trcomp::log_normal", self, generator, Lifted(float(mean)), Lifted(float(std)))


@lowers("trcomp::exponential")
def _exponential(ctx: Any, key: Any, size: tuple[int, ...], lambd: Any) -> Any:
    drawn = -jnp.log1p(-philox.uniform(key, size, ctx.opmath))
    # Zero has probability 0 and callers divide by the draw.
    return jnp.maximum(drawn, jnp.finfo(ctx.dtype).tiny) / cast(lambd, drawn.dtype)


@implements("exponential_")
def exponential_(
    self: torch.Tensor, lambd: float = 1.0, *, generator: Generator = None
) -> torch.Tensor:
    """Fill with positive draws of mean `1 / lambd`."""
    if lambd <= 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    return _draw("trcomp::exponential", self, generator, Lifted(float(lambd)))


@lowers("trcomp::cauchy")
def _cauchy(ctx: Any, key: Any, size: tuple[int, ...], median: Any, sigma: Any) -> Any:
    drawn = jnp.tan(math.pi * (philox.uniform(key, size, ctx.opmath) - 0.5))
    return cast(median, drawn.dtype) + cast(sigma, drawn.dtype) * drawn


@implements("cauchy_")
def cauchy_(
    self: torch.Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator = None
) -> torch.Tensor:
    """Fill from a Cauchy distribution."""
    if sigma <= 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    return _draw("trcomp::cauchy", self, generator, Lifted(float(median)), Lifted(float(sigma)))


@lowers("trcomp::geometric")
def _geometric(ctx: Any, key: Any, size: tuple[int, ...], p: Any) -> Any:
    drawn = philox.uniform(key, size, np.float64)
    return jnp.maximum(jnp.ceil(jnp.log1p(-drawn) / jnp.log1p(-cast(p, drawn.dtype))), 1)


@implements("geometric_")
def geometric_(self: torch.Tensor, p: float, *, generator: Generator = None) -> torch.Tensor:
    """Fill with the number of trials up to the first success."""
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    return _draw("trcomp::geometric", self, generator, Lifted(float(p)))


@lowers("trcomp::bernoulli")
def _bernoulli(ctx: Any, key: Any, size: tuple[int, ...], p: Any) -> Any:
    return philox.keep_mask(key, size, p)


@implements("bernoulli_.float")
def bernoulli_float_(
    self: torch.Tensor, p: float = 0.5, *, generator: Generator = None
) -> torch.Tensor:
    """Fill with ones at probability `p`, zeros elsewhere."""
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    return _draw("trcomp::bernoulli", self, generator, Lifted(float(p)))


@implements("bernoulli_.Tensor")
def bernoulli_tensor_(
    self: torch.Tensor, p: torch.Tensor, *, generator: Generator = None
) -> torch.Tensor:
    """Fill with ones, each at its own probability."""
    return _draw("trcomp::bernoulli", self, generator, p.to(self.device))


@implements("bernoulli.p")
def bernoulli_p(self: torch.Tensor, p: float, *, generator: Generator = None) -> torch.Tensor:
    """A tensor like `self` with ones at probability `p`."""
    return bernoulli_float_(torch.empty_like(self), p, generator=generator)


@lowers("trcomp::dropout")
def _dropout(ctx: Any, key: Any, input: Any, keep: Any) -> Any:
    mask = philox.keep_mask(key, input.shape, keep)
    scale = 1 / cast(keep, ctx.opmath)
    return jnp.where(mask, cast(input, ctx.opmath) * scale, 0), mask


@implements("native_dropout")
def native_dropout(
    input: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Zero elements at probability `p` and scale the rest; also where they were kept."""
    if train is False or not input.numel():
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    size, stride = tuple(input.size()), storage.stride_as(input, None)
    outputs = [output(size, input.dtype, stride), output(size, torch.bool, stride)]
    arguments = (next_key(None), input, Lifted(1.0 - p))
    dropped, mask = record("trcomp::dropout", arguments, outputs)
    return dropped, mask


@lowers("native_dropout_backward")
def native_dropout_backward(ctx: Any, grad_output: Any, mask: Any, scale: Any) -> Any:
    return jnp.where(mask, cast(grad_output, ctx.opmath) * cast(scale, ctx.opmath), 0)


@lowers("trcomp::randint")
def _randint(ctx: Any, key: Any, size: tuple[int, ...], low: Any, count: Any) -> Any:
    bits = lax.shift_right_logical(philox.random_bits(key, size, np.uint64), np.uint64(1))
    integer = np.dtype(np.int64)
    return lax.rem(bits.astype(integer), jnp.broadcast_to(cast(count, integer), size)) + cast(
        low, integer
    )


@implements("random_.from")
def random_from_(
    self: torch.Tensor, low: int, high: int | None, *, generator: Generator = None
) -> torch.Tensor:
    """Fill with integers in [low, high); without `high`, up to what the dtype holds."""
    if high is None:
        high = _largest(self.dtype) + 1
    if low >= high:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    count = min(high - low, (1 << 63) - 1)
    return _draw("trcomp::randint", self, generator, Lifted(low), Lifted(count))


@implements("random_.to")
def random_to_(self: torch.Tensor, high: int, *, generator: Generator = None) -> torch.Tensor:
    """Fill with integers in [0, high)."""
    return random_from_(self, 0, high, generator=generator)


@implements("random_")
def random_(self: torch.Tensor, *, generator: Generator = None) -> torch.Tensor:
    """Fill with integers from 0 to the largest that the dtype holds exactly."""
    return random_from_(self, 0, None, generator=generator)


def _largest(dtype: torch.dtype) -> int:
    if dtype is torch.bool:
        return 1
    if dtype.is_floating_point:
        return int(2 / torch.finfo(dtype).eps)
    return int(torch.iinfo(dtype).max)


@lowers("trcomp::randperm")
def _randperm(ctx: Any, key: Any, n: int) -> Any:
    bits = philox.random_bits(key, (n,), np.uint64)
    return lax.sort((bits, lax.iota(np.int64, n)), num_keys=1)[1]


@implements("randperm.generator")
def randperm_generator(
    n: int, *, generator: Generator, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    """The integers below `n` in random order."""
    out = output((n,), dtype or torch.int64)
    return record("trcomp::randperm", (next_key(generator), n), [out])[0]


@implements("randperm")
def randperm(n: int, **options: Any) -> torch.Tensor:
    """The integers below `n` in random order."""
    return randperm_generator(n, generator=None, **options)


@implements("multinomial")
def multinomial(
    self: torch.Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator = None,
) -> torch.Tensor:
    """Indices drawn with the probabilities in each row, which need not sum to 1."""
    refusals.multinomial(self, num_samples, replacement)
    weights = self.float() if self.dtype in (torch.float16, torch.bfloat16) else self
    if replacement and num_samples > 1:
        cumulative = weights.cumsum(-1)
        drawn = torch.empty(
            (*self.size()[:-1], num_samples), dtype=weights.dtype, device=self.device
        )
        drawn = uniform_(drawn, generator=generator) * cumulative[..., -1:]
        return torch.searchsorted(cumulative, drawn, right=True).clamp_(max=self.size(-1) - 1)
    if num_samples > self.size(-1):
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )
    # The largest of weight / exponential is a draw by weight; the next largest one without it.
    race = weights / exponential_(torch.empty_like(weights), generator=generator)
    return race.topk(num_samples, -1)[1]


@implements("rrelu_with_noise")
def rrelu_with_noise(
    self: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Generator = None,
) -> torch.Tensor:
    """Leaky ReLU whose slope is drawn per element in training; `noise` receives the slopes."""
    if not training:
        return torch.ops.aten.leaky_relu(self, (lower + upper) / 2)
    slopes = uniform_(torch.empty_like(self), lower, upper, generator=generator)
    noise.copy_(torch.where(self <= 0, slopes, 1))
    return self * noise
