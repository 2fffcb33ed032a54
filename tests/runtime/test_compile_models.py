"""The models of torch_xla's report on dynamo, small: compiled as on the CPU and as recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

import trcomp.runtime as rt
from tests.runtime import vision

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.usefixtures("quick_compiles"),
    # torch's own, as it traces.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]
Batch = Mapping[str, torch.Tensor]


class Classifier(nn.Module):
    """A network of images and its loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        made = self.network(images)
        return F.cross_entropy(made.logits if hasattr(made, "logits") else made, labels)


class Loss(nn.Module):
    """A model of transformers that gives its loss alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        return loss


def resnet(layer: str, depths: list[int]) -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=depths, layer_type=layer, num_labels=10
    )
    return Classifier(transformers.ResNetForImageClassification(config))


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Loss(transformers.BertForMaskedLM(config))


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=10,
    )
    return Classifier(transformers.ViTForImageClassification(config))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: resnet("basic", [1, 1]),
    "resnet50": lambda: resnet("bottleneck", [1, 1]),
    "resnext50_32x4d": lambda: Classifier(vision.resnext((1, 1))),
    "alexnet": lambda: Classifier(vision.alexnet()),
    "vgg16": lambda: Classifier(vision.vgg16()),
    "mobilenet_v2": lambda: Classifier(vision.mobilenet_v2()),
    "mnasnet1_0": lambda: Classifier(vision.mnasnet1_0()),
    "BERT_pytorch": bert,
    "timm_vision_transformer": vit,
}

ALIKE = {"resnet50", "vgg16", "mnasnet1_0"}
"""Made of the same layers, the same way, as another: the bottlenecks of ResNeXt, and so on."""


def batch_for(name: str) -> Batch:
    generator = torch.Generator().manual_seed(1)
    if name == "BERT_pytorch":
        tokens = torch.randint(0, 100, (4, 8), generator=generator)
        return {"input_ids": tokens, "labels": tokens}
    size = 64 if name == "alexnet" else 32
    return {
        "images": torch.randn(4, 3, size, size, generator=generator),
        "labels": torch.randint(0, 10, (4,), generator=generator),
    }


@pytest.fixture(autouse=True)
def _from_nothing() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Steps(NamedTuple):
    """What two training steps made, the second one's counts, and the model's state after them."""

    losses: torch.Tensor
    gradients: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]
    nodes: int
    compiles: int
    executions: int


def two_steps(name: str, device: str, compiled: bool = False) -> Steps:
    torch.manual_seed(0)
    model = MODELS[name]().to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run: Callable[..., Any] = torch.compile(model, backend="trcomp") if compiled else model
    batch = {key: value.to(device) for key, value in batch_for(name).items()}
    losses = []
    rt.sync()
    for _ in range(2):
        before = rt.metrics()
        optimizer.zero_grad()
        loss = run(**batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        del loss
        rt.sync()
    after = rt.metrics()
    return Steps(
        torch.stack(losses).cpu(),
        {key: parameter.grad.cpu() for key, parameter in model.named_parameters()},
        {key: value.cpu() for key, value in model.state_dict().items()},
        *(after[k] - before[k] for k in ("recorded_nodes", "compiles", "executions")),
    )


def assert_close(made: Steps, expected: Steps, tolerance: float) -> None:
    for mine, theirs in zip(made[:3], expected[:3], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if name in ALIKE else []) for name in MODELS],
)
def test_trains_as_on_the_cpu_and_as_recorded(name: str) -> None:
    made = two_steps(name, "xla", compiled=True)
    assert made.nodes <= 30
    assert made.compiles == 0
    assert made.executions == 1
    assert_close(made, two_steps(name, "cpu"), 1e-3)
    assert_close(made, two_steps(name, "xla"), 1e-5)
