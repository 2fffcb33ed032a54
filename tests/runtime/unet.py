"""A small denoising UNet as Stable Diffusion has: blocks, attention, skips; and its scheduler."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def time_embedding(times: torch.Tensor, width: int) -> torch.Tensor:
    """Sines and cosines of the time at falling frequencies, `(batch, width)`."""
    powers = torch.arange(width // 2, device=times.device) / (width // 2)
    angles = times[:, None].float() * torch.exp(-math.log(10000.0) * powers)
    return torch.cat([angles.cos(), angles.sin()], -1)


class Block(nn.Module):
    """Two normalized convolutions with the time's embedding between them, around a skip."""

    def __init__(self, inputs: int, outputs: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)])
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(embedding, outputs)
        self.dropout = nn.Dropout(dropout)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, images: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        hidden = self.first(F.silu(self.norms[0](images)))
        hidden = hidden + self.time(F.silu(embedding))[:, :, None, None]
        hidden = self.second(self.dropout(F.silu(self.norms[1](hidden))))
        return self.skip(images) + hidden


class Attention(nn.Module):
    """Attention of every pixel to every pixel, or to a context."""

    def __init__(self, channels: int, context: int | None = None, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(4, channels)
        self.query = nn.Linear(channels, channels)
        self.pair = nn.Linear(context or channels, 2 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, images: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        pixels = self.norm(images).flatten(2).transpose(1, 2)
        key, value = self.pair(pixels if context is None else context).chunk(2, -1)
        parts = [
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(pixels), key, value)
        ]
        mixed = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        return images + self.out(mixed).transpose(1, 2).reshape(images.shape)


class UNet(nn.Module):
    """Predicts the noise in images, given the time and a context such as a text's states."""

    def __init__(self, channels: int = 16, context: int = 12, dropout: float = 0.0) -> None:
        super().__init__()
        self.channels = channels
        wide, embedding = 2 * channels, 4 * channels
        self.time = nn.Sequential(
            nn.Linear(channels, embedding), nn.SiLU(), nn.Linear(embedding, embedding)
        )
        self.enter = nn.Conv2d(3, channels, 3, padding=1)
        self.down = Block(channels, channels, embedding, dropout)
        self.shrink = nn.Conv2d(channels, wide, 3, 2, 1)
        self.inner = Block(wide, wide, embedding, dropout)
        self.pixels = Attention(wide)
        self.words = Attention(wide, context)
        self.grow = nn.Conv2d(wide, channels, 3, padding=1)
        self.up = Block(2 * channels, channels, embedding, dropout)
        self.norm = nn.GroupNorm(4, channels)
        self.leave = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(
        self, images: torch.Tensor, times: torch.Tensor, context: torch.Tensor
    ) -> torch.Tensor:
        embedding = self.time(time_embedding(times, self.channels))
        skip = self.down(self.enter(images), embedding)
        hidden = self.inner(self.shrink(skip), embedding)
        hidden = self.words(self.pixels(hidden), context)
        hidden = self.grow(F.interpolate(hidden, scale_factor=2.0, mode="nearest"))
        hidden = self.up(torch.cat([hidden, skip], 1), embedding)
        return self.leave(F.silu(self.norm(hidden)))


class Scheduler:
    """Deterministic denoising steps, written as such schedulers are: tables on the host, a search
    for the time's place by `nonzero`, and its number by `.item()`."""

    def __init__(self, num_steps: int, num_times: int = 100) -> None:
        betas = torch.linspace(0.0085**0.5, 0.012**0.5, num_times) ** 2
        self.kept = torch.cumprod(1 - betas, 0)
        self.times = torch.linspace(num_times - 1, 0, num_steps).round().long()

    def add_noise(
        self, images: torch.Tensor, noise: torch.Tensor, times: torch.Tensor
    ) -> torch.Tensor:
        """Images as noisy as they are at these times."""
        kept = self.kept.to(images.device)[times].view(-1, 1, 1, 1)
        return kept.sqrt() * images + (1 - kept).sqrt() * noise

    def step(self, noise: torch.Tensor, time: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Images one step cleaner, given the noise predicted at `time`, a 0-dim tensor."""
        place = (self.times == time.cpu()).nonzero().item()
        kept = self.kept[self.times[place]]
        last = place + 1 == len(self.times)
        before = torch.tensor(1.0) if last else self.kept[self.times[place + 1]]
        clean = (images - (1 - kept) ** 0.5 * noise) / kept**0.5
        return before**0.5 * clean + (1 - before) ** 0.5 * noise
