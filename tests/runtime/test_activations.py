"""Activations and their gradients, in float32 and bfloat16, at ordinary and extreme inputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import trcomp.runtime as rt
from tests.runtime.agreement import assert_agrees
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 2.0),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 1.5),
    "celu": lambda x: F.celu(x, 0.7),
    "selu": F.selu,
    "softplus": lambda x: F.softplus(x, 2.0, 5.0),
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.3, -1.0),
    "glu": lambda x: F.glu(x.reshape(2, -1), 0),
    "rrelu in evaluation": lambda x: F.rrelu(x, training=False),
}

INPUTS = torch.cat([torch.linspace(-4, 4, 41) + 0.013, torch.tensor([0.0, 30.0, -30.0])])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    assert_agrees(ACTIVATIONS[name], INPUTS.to(dtype).requires_grad_())


def test_prelu_trains_its_slope() -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert_agrees(F.prelu, x, torch.tensor([0.1, 0.2, 0.3]).requires_grad_())


def test_nan_passes_through() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    for name in ("relu", "gelu", "silu", "hardtanh", "relu6", "softshrink", "leaky_relu"):
        assert_agrees(ACTIVATIONS[name], nan)


def test_in_place_forms() -> None:
    for activation in (F.relu_, F.hardtanh_, F.leaky_relu_, F.elu_):
        assert_agrees(lambda x, f=activation: f(x * 1), INPUTS.clone().requires_grad_())


def test_another_slope_compiles_nothing() -> None:
    x = torch.linspace(-1, 1, 5, device=DEVICE)
    rt.sync()

    def run(slope: float) -> torch.Tensor:
        made = F.leaky_relu(x, slope) + F.elu(x, slope) + F.softplus(x, slope)
        rt.sync()
        return made

    run(0.3)
    compiles = counters.compiles
    run(0.4)
    run(1.0)
    assert counters.compiles == compiles


def test_second_derivatives() -> None:
    x = torch.linspace(-2, 2, 9).requires_grad_()

    def curvature(x: torch.Tensor) -> torch.Tensor:
        total = (torch.tanh(x) + F.silu(x) + torch.sigmoid(x) + F.gelu(x)).sum()
        (slope,) = torch.autograd.grad(total, x, create_graph=True)
        return slope * 1

    assert_agrees(curvature, x)
