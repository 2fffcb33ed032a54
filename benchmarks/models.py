"""The models that are measured: real architectures from configs, random weights, dropout off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers


@dataclass(frozen=True)
class Model:
    """What to build and what to feed it."""

    build: Callable[[], torch.nn.Module]
    batch: Callable[[], dict[str, torch.Tensor]]
    num_samples: int


def _vit() -> Model:
    config = transformers.ViTConfig(
        num_labels=1000,
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=3,
        intermediate_size=768,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Model(lambda: transformers.ViTForImageClassification(config), _images(224), 8)


def _images(size: int) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {
        "pixel_values": torch.randn(8, 3, size, size),
        "labels": torch.randint(0, 1000, (8,)),
    }


def _bert() -> Model:
    config = transformers.BertConfig(
        vocab_size=8000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )

    def batch() -> dict[str, torch.Tensor]:
        return {
            "input_ids": torch.randint(0, 8000, (8, 128)),
            "labels": torch.randint(0, 2, (8,)),
        }

    return Model(lambda: transformers.BertForSequenceClassification(config), batch, 8)


def _gpt2() -> Model:
    config = transformers.GPT2Config(
        vocab_size=8000,
        n_embd=256,
        n_layer=4,
        n_head=4,
        n_positions=128,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )

    def batch() -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 8000, (8, 128))
        return {"input_ids": ids, "labels": ids}

    return Model(lambda: transformers.GPT2LMHeadModel(config), batch, 8)


def _resnet(layer: str, depths: list[int], widths: list[int], size: int) -> Model:
    config = transformers.ResNetConfig(
        layer_type=layer, depths=depths, hidden_sizes=widths, num_labels=1000
    )
    return Model(lambda: transformers.ResNetForImageClassification(config), _images(size), 8)


MODELS: dict[str, Callable[[], Model]] = {
    "vit": _vit,
    "bert": _bert,
    "gpt2": _gpt2,
    "resnet18-64px": lambda: _resnet("basic", [2, 2, 2, 2], [64, 128, 256, 512], 64),
    "resnet18-128px": lambda: _resnet("basic", [2, 2, 2, 2], [64, 128, 256, 512], 128),
    "resnet50-64px": lambda: _resnet("bottleneck", [3, 4, 6, 3], [256, 512, 1024, 2048], 64),
}


class Trainer:
    """One model being trained on one device."""

    def __init__(self, model: Model, device: str, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = model.build().to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, **options)
        self.batch = {name: tensor.to(device) for name, tensor in model.batch().items()}

    def forward(self) -> torch.Tensor:
        """The loss."""
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.model(**self.batch).loss
        return loss

    def step(self) -> torch.Tensor:
        """One whole training step; its loss."""
        loss = self.forward()
        loss.backward()
        self.optimizer.step()
        return loss.detach()
