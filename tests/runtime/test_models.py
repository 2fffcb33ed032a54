"""Real models train on `xla` as on the CPU: same weights, same batches, dropout off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers

from tests.runtime.training import MakeBatch, MakeModel, MakeOptimizer, assert_same, train

pytestmark = pytest.mark.runtime


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5)
        )

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.layers(inputs), labels)


def _mlp() -> tuple[MakeModel, MakeBatch]:
    return Mlp, lambda g: {
        "inputs": torch.randn(8, 20, generator=g),
        "labels": torch.randint(0, 5, (8,), generator=g),
    }


def _vit() -> tuple[MakeModel, MakeBatch]:
    config = transformers.ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=10,
    )
    return lambda: transformers.ViTForImageClassification(config), _images(32)


def _images(size: int) -> MakeBatch:
    return lambda g: {
        "pixel_values": torch.randn(4, 3, size, size, generator=g),
        "labels": torch.randint(0, 10, (4,), generator=g),
    }


def _bert() -> tuple[MakeModel, MakeBatch]:
    config = transformers.BertConfig(
        vocab_size=200,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
    )

    def batch(generator: torch.Generator) -> dict[str, torch.Tensor]:
        mask = torch.ones(4, 12, dtype=torch.int64)
        mask[1, 7:] = 0
        return {
            "input_ids": torch.randint(0, 200, (4, 12), generator=generator),
            "attention_mask": mask,
            "labels": torch.randint(0, 3, (4,), generator=generator),
        }

    return lambda: transformers.BertForSequenceClassification(config), batch


def _gpt2() -> tuple[MakeModel, MakeBatch]:
    config = transformers.GPT2Config(
        vocab_size=200,
        n_positions=32,
        n_embd=48,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )

    def batch(generator: torch.Generator) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 200, (4, 12), generator=generator)
        return {"input_ids": ids, "labels": ids}

    return lambda: transformers.GPT2LMHeadModel(config), batch


def _resnet(layer: str, depths: list[int]) -> tuple[MakeModel, MakeBatch]:
    config = transformers.ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 48, 64],
        depths=depths,
        layer_type=layer,
        num_labels=10,
    )

    def make() -> torch.nn.Module:
        model = transformers.ResNetForImageClassification(config)
        # The usual start, each block the identity. With any other, batch norm over four images is
        # chaotic: PyTorch's own float32 and float64 runs part by 1e-2 within ten steps.
        for stage in model.resnet.encoder.stages:
            for block in stage.layers:
                torch.nn.init.zeros_(block.layer[-1].normalization.weight)
        return model

    return make, _images(64)


MODELS: dict[str, Callable[[], tuple[MakeModel, MakeBatch]]] = {
    "mlp": _mlp,
    "vit": _vit,
    "bert": _bert,
    "gpt2": _gpt2,
    "resnet18": lambda: _resnet("basic", [2, 2, 2, 2]),
    "resnet50": lambda: _resnet("bottleneck", [3, 4, 6, 3]),
}
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
}
CASES = [
    ("mlp", "adam"),
    ("vit", "adamw-fused"),
    ("bert", "sgd"),
    ("gpt2", "adam"),
    ("resnet18", "sgd"),
    ("resnet50", "sgd"),
    *(
        pytest.param(*case, marks=pytest.mark.long)
        for case in [
            ("mlp", "sgd"),
            ("vit", "sgd"),
            ("vit", "adam"),
            ("bert", "adamw-fused"),
            ("gpt2", "sgd"),
        ]
    ),
]
"""Each model, and each optimizer with a transformer; the rest is the same again."""


@pytest.mark.parametrize(("model", "optimizer"), CASES)
def test_training_agrees_with_the_cpu_and_compiles_at_most_twice(
    model: str, optimizer: str
) -> None:
    make_model, make_batch = MODELS[model]()
    runs = [train(d, make_model, make_batch, OPTIMIZERS[optimizer]) for d in ("xla", "cpu")]
    assert_same(*runs)
    assert runs[0].fallbacks == {}
    assert runs[0].compiles_after_second_step == 0
    # transformers reads whether a BERT mask hides anything: one more, small graph.
    assert runs[0].compiles <= (3 if model == "bert" else 2)


@pytest.mark.parametrize("model", ["mlp", "vit", "resnet18"])
def test_training_in_float64_agrees_to_the_last_digits(model: str) -> None:
    make_model, make_batch = MODELS[model]()
    runs = [
        train(d, make_model, make_batch, OPTIMIZERS["sgd"], steps=8, dtype=torch.float64)
        for d in ("xla", "cpu")
    ]
    assert_same(*runs, loss=1e-9, parameters=1e-9)
