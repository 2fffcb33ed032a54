"""Every module of PyTorch's own test data, forward and backward, as on the CPU."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch.testing._internal.common_modules import (
    FunctionInput,
    ModuleInfo,
    ModuleInput,
    module_db,
)
from torch.utils._pytree import tree_map

import trcomp.runtime as rt
from tests.runtime.agreement import assert_alike, leaves, on_device, weighted
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = [pytest.mark.runtime, pytest.mark.usefixtures("quick_compiles")]

MOST_SAMPLES = {torch.float64: 16, torch.float32: 4}
"""Of one module; a few have hundreds, which differ in one argument each."""

LARGE = {"nn.GRU", "nn.LSTM", "nn.RNN", "nn.Transformer", "nn.TransformerDecoderLayer"}
LARGE |= {"nn.TransformerEncoder", "nn.TransformerEncoderLayer", "nn.MultiheadAttention"}
"""A fourth as many samples of these."""

TOLERANCES = {torch.float64: (1e-9, 1e-9), torch.float32: (1e-4, 1e-4)}
"""(rtol, atol): gradients here are sums of hundreds of terms, where float32 loses digits."""


class Case(NamedTuple):
    """One sample of one module: what the CPU gives, what the device will give."""

    label: str
    expected: list[Any]
    actual: list[Any]


def as_leaf(argument: Any) -> Any:
    """A copy of a tensor that no other depends on."""
    if isinstance(argument, torch.Tensor):
        return argument.detach().clone().requires_grad_(argument.requires_grad)
    return argument


def samples(info: ModuleInfo, dtype: torch.dtype, training: bool) -> list[ModuleInput]:
    """Some of a module's samples, the same each time."""
    torch.manual_seed(0)
    found = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    found = [sample for sample in found if sample.forward_input is not None]
    limit = MOST_SAMPLES[dtype] // (4 if info.name in LARGE else 1)
    chosen = random.Random(training).sample(range(len(found)), min(limit, len(found)))
    return [found[i] for i in sorted(chosen)]


def run(module: torch.nn.Module, inputs: FunctionInput) -> list[Any]:
    """Outputs, then the gradients of all float inputs and parameters, then buffers."""
    made = leaves(module(*inputs.args, **inputs.kwargs))
    wanted = [
        leaf
        for leaf in (*leaves((inputs.args, inputs.kwargs)), *module.parameters())
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    parts = [weighted(t) for t in made if isinstance(t, torch.Tensor) and t.requires_grad]
    grads = torch.autograd.grad(sum(parts[1:], parts[0]), wanted, allow_unused=True)
    return [*made, *grads, *module.buffers()]


def cases(info: ModuleInfo, dtype: torch.dtype) -> Iterator[Case]:
    """A module's samples, computed on the CPU and recorded on the device."""
    for training in (True, False) if info.train_and_eval_differ else (True,):
        for i, sample in enumerate(samples(info, dtype, training)):
            arguments = sample.constructor_input
            torch.manual_seed(1)
            module = info.module_cls(*arguments.args, **arguments.kwargs).to(dtype).train(training)
            twin = copy.deepcopy(module).to(DEVICE)
            given = sample.forward_input
            inputs, moved = (
                FunctionInput(*tree_map(move, given.args), **tree_map(move, given.kwargs))
                for move in (as_leaf, on_device)
            )
            expected = run(module, inputs)
            if info.is_lazy:
                twin.load_state_dict(module.state_dict())
            mode = "training" if training else "evaluation"
            yield Case(f"sample {i}, {mode}: {sample.desc}", expected, run(twin, moved))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_module_agrees_with_the_cpu(info: ModuleInfo, dtype: torch.dtype) -> None:
    before = counters.fallbacks.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = list(cases(info, dtype))
    rt.sync()
    problems = {}
    for case in made:
        try:
            assert_alike(case.actual, case.expected, TOLERANCES)
        except AssertionError as error:
            problems[case.label] = str(error)
    assert problems == {}
    assert counters.fallbacks == before


def test_a_lazy_module_moves_before_it_has_shapes() -> None:
    layer = torch.nn.LazyLinear(3).to(DEVICE)
    assert layer(torch.ones(2, 5, device=DEVICE)).shape == (2, 3)
    assert layer.weight.device == DEVICE
    assert type(layer) is torch.nn.Linear
