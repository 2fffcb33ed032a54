"""The models that are measured: real architectures from configs, random weights, dropout off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from benchmarks import vision


@dataclass(frozen=True)
class Model:
    """What to build and what to feed it; called with a batch it gives an output with its loss."""

    build: Callable[[], torch.nn.Module]
    batch: Callable[[], dict[str, torch.Tensor]]
    num_samples: int


class _Classifier(torch.nn.Module):
    """A network of images in the form of transformers' classifiers."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.network(pixel_values)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        return transformers.modeling_outputs.ImageClassifierOutput(loss=loss, logits=logits)


def _images(
    batch: int, size: int, num_classes: int = 1000
) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {
        "pixel_values": torch.randn(batch, 3, size, size),
        "labels": torch.randint(0, num_classes, (batch,)),
    }


_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _vit(
    width: int,
    wide: int,
    depth: int,
    heads: int,
    size: int,
    patch: int,
    batch: int,
    num_classes: int,
) -> Model:
    config = transformers.ViTConfig(
        image_size=size,
        patch_size=patch,
        num_labels=num_classes,
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=wide,
        **_NO_DROPOUT,
    )
    batches = _images(batch, size, num_classes)
    return Model(lambda: transformers.ViTForImageClassification(config), batches, batch)


def _bert(width: int, wide: int, depth: int, vocabulary: int, batch: int, length: int) -> Model:
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=4,
        intermediate_size=wide,
        **_NO_DROPOUT,
    )

    def make() -> dict[str, torch.Tensor]:
        return {
            "input_ids": torch.randint(0, vocabulary, (batch, length)),
            "labels": torch.randint(0, 2, (batch,)),
        }

    return Model(lambda: transformers.BertForSequenceClassification(config), make, batch)


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
    return Model(lambda: transformers.ResNetForImageClassification(config), _images(8, size), 8)


def _network(build: Callable[[int], torch.nn.Module]) -> Callable[[], Model]:
    return lambda: Model(lambda: _Classifier(build(1000)), _images(8, 64), 8)


MODELS: dict[str, Callable[[], Model]] = {
    "vit": lambda: _vit(192, 768, 12, 3, 224, 16, 8, 1000),
    "bert": lambda: _bert(256, 1024, 4, 8000, 8, 128),
    "gpt2": _gpt2,
    "resnet18-64px": lambda: _resnet("basic", [2, 2, 2, 2], [64, 128, 256, 512], 64),
    "resnet18-128px": lambda: _resnet("basic", [2, 2, 2, 2], [64, 128, 256, 512], 128),
    "resnet50-64px": lambda: _resnet("bottleneck", [3, 4, 6, 3], [256, 512, 1024, 2048], 64),
    "resnext50_32x4d-64px": _network(vision.resnext50_32x4d),
    "alexnet-64px": _network(vision.alexnet),
    "mobilenet_v2-64px": _network(vision.mobilenet_v2),
    "mnasnet1_0-64px": _network(vision.mnasnet1_0),
    "vgg16-64px": _network(vision.vgg16),
    "vit-tiny": lambda: _vit(48, 96, 2, 4, 32, 8, 4, 10),
    "bert-tiny": lambda: _bert(48, 96, 2, 200, 4, 12),
}


class Trainer:
    """One model being trained on one device."""

    def __init__(self, model: Model, device: Any, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = model.build().to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, **options)
        self.batch = {name: tensor.to(device) for name, tensor in model.batch().items()}
        self.update: Callable[[], Any] = self.optimizer.step

    def forward(self) -> torch.Tensor:
        """The loss."""
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.model(**self.batch).loss
        return loss

    def step(self) -> torch.Tensor:
        """One whole training step; its loss."""
        loss = self.forward()
        loss.backward()
        self.update()
        return loss.detach()
