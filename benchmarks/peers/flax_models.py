"""ViT, ResNet-50 and GPT-2 in flax, of the sizes that benchmarks/models.py has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn


class Model(NamedTuple):
    """A module, what to feed it (inputs, labels), and the loss of its output."""

    module: nn.Module
    batch: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
    loss: Callable[[jax.Array, jax.Array], jax.Array]


class Block(nn.Module):
    """A transformer's block, normalized before its parts."""

    width: int
    wide: int
    heads: int
    activation: Callable[[jax.Array], jax.Array]
    epsilon: float

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        y = nn.LayerNorm(self.epsilon)(x)
        x = x + nn.MultiHeadDotProductAttention(self.heads)(y, mask=mask)
        y = nn.LayerNorm(self.epsilon)(x)
        y = self.activation(nn.Dense(self.wide)(y))
        return x + nn.Dense(self.width)(y)


class ViT(nn.Module):
    """A Vision Transformer whose first token is classified."""

    width: int
    wide: int
    depth: int
    heads: int
    patch: int
    num_classes: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        size = (self.patch, self.patch)
        patches = nn.Conv(self.width, size, strides=size, padding="VALID")(images)
        x = patches.reshape(len(images), -1, self.width)
        first = self.param("first", nn.initializers.zeros, (1, 1, self.width))
        x = jnp.concatenate([jnp.tile(first, (len(images), 1, 1)), x], axis=1)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        for _ in range(self.depth):
            gelu = lambda y: nn.gelu(y, approximate=False)  # noqa: E731
            x = Block(self.width, self.wide, self.heads, gelu, 1e-12)(x)
        return nn.Dense(self.num_classes)(nn.LayerNorm(1e-12)(x)[:, 0])


class GPT2(nn.Module):
    """GPT-2 with its embedding as its head."""

    width: int
    depth: int
    heads: int
    num_positions: int
    vocabulary: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embed = nn.Embed(self.vocabulary, self.width)
        positions = nn.Embed(self.num_positions, self.width)(jnp.arange(tokens.shape[1]))
        x = embed(tokens) + positions
        mask = nn.make_causal_mask(tokens)
        for _ in range(self.depth):
            x = Block(self.width, 4 * self.width, self.heads, nn.gelu, 1e-5)(x, mask)
        return embed.attend(nn.LayerNorm(1e-5)(x))


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions."""

    width: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def normed(y: jax.Array, width: int, kernel: int, stride: int = 1) -> jax.Array:
            pad = kernel // 2
            y = nn.Conv(width, (kernel, kernel), stride, [(pad, pad)] * 2, use_bias=False)(y)
            return nn.BatchNorm(use_running_average=False, momentum=0.9)(y)

        y = nn.relu(normed(x, self.width // 4, 1))
        y = nn.relu(normed(y, self.width // 4, 3, self.stride))
        y = normed(y, self.width, 1)
        if x.shape != y.shape:
            x = normed(x, self.width, 1, self.stride)
        return nn.relu(x + y)


class ResNet50(nn.Module):
    """ResNet-50 in its usual layout (batch, height, width, channels)."""

    num_classes: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.Conv(64, (7, 7), 2, [(3, 3), (3, 3)], use_bias=False)(images)
        x = nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), [(1, 1), (1, 1)])
        for stage, depth in enumerate((3, 4, 6, 3)):
            for place in range(depth):
                x = Bottleneck(256 << stage, 2 if stage and not place else 1)(x)
        return nn.Dense(self.num_classes)(x.mean((1, 2)))


def _images(size: int) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    def batch(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.random.normal(key, (8, size, size, 3)), jax.random.randint(key, (8,), 0, 1000)

    return batch


def _tokens(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    tokens = jax.random.randint(key, (8, 128), 0, 8000)
    return tokens, tokens


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _next_token(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return _cross_entropy(logits[:, :-1], labels[:, 1:])


MODELS: dict[str, Any] = {
    "vit": Model(ViT(192, 768, 12, 3, 16, 1000), _images(224), _cross_entropy),
    "gpt2": Model(GPT2(256, 4, 4, 128, 8000), _tokens, _next_token),
    "resnet50-64px": Model(ResNet50(1000), _images(64), _cross_entropy),
}
