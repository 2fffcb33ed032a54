"""Every optimizer of PyTorch's own test data trains as on the CPU, in each of its forms."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

import trcomp.runtime as rt
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = [pytest.mark.runtime, pytest.mark.usefixtures("quick_compiles")]

STEPS = 5

FORMS: dict[str, dict[str, bool]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "differentiable": {"differentiable": True},
    "capturable": {"foreach": False, "capturable": True},
    "capturable-foreach": {"foreach": True, "capturable": True},
}
"""Arguments that choose how an optimizer computes, not what."""


class Training:
    """One optimizer on one device, a step at a time."""

    def __init__(
        self, info: OptimizerInfo, device: Any, dtype: torch.dtype, keywords: dict[str, Any]
    ) -> None:
        generator = torch.Generator().manual_seed(0)

        def draw(*size: int) -> torch.Tensor:
            return torch.randn(size, generator=generator, dtype=dtype).to(device)

        self.inputs, self.targets = draw(6, 4), draw(6, 2)
        self.leaves = [draw(4, 5).requires_grad_(), draw(5, 2).requires_grad_()]
        if info.name != "Muon":  # takes matrices alone
            self.leaves.append(draw(5).requires_grad_())
        self.parameters = self.leaves
        if keywords.get("differentiable"):
            # Such a step is part of the graph, so it can't write into leaves.
            self.parameters = [leaf.clone() for leaf in self.leaves]
        self.derivatives: tuple[torch.Tensor, ...] = ()
        self.keywords = keywords
        self.optimizer = info.optim_cls(self.parameters, **keywords)

    def loss(self) -> torch.Tensor:
        """The loss of a small network; sets the parameters' gradients."""
        first, second, *bias = self.parameters
        hidden = torch.tanh(self.inputs @ first + (bias[0] if bias else 0))
        loss = (hidden @ second - self.targets).square().mean()
        grads = torch.autograd.grad(loss, self.parameters, retain_graph=True)
        for parameter, grad in zip(self.parameters, grads, strict=True):
            parameter.grad = grad
        return loss.detach()

    def step(self) -> None:
        """One step of the optimizer."""
        if isinstance(self.optimizer, torch.optim.LBFGS):
            self.optimizer.step(self.loss)
            return
        self.loss()
        self.optimizer.step()
        if self.keywords.get("differentiable") and not self.derivatives:
            # Of the first step alone: the next one writes into what its derivative needs.
            total = torch.stack([parameter.square().sum() for parameter in self.parameters]).sum()
            self.derivatives = torch.autograd.grad(total, self.leaves, retain_graph=True)

    def results(self) -> list[torch.Tensor]:
        """The parameters, and the derivatives if there are any."""
        return [tensor.detach().cpu() for tensor in (*self.parameters, *self.derivatives)]


def configurations(info: OptimizerInfo, form: str) -> list[dict[str, Any]]:
    """The keywords of an optimizer's samples, for those samples that a form takes."""
    made = []
    for sample in info.optim_inputs_func(device="cuda"):
        keywords = {k: v for k, v in sample.kwargs.items() if k != "capturable"}
        capturable = "capturable" in sample.kwargs
        numbers = [v for v in keywords.values() if isinstance(v, torch.Tensor)]
        if numbers and form == "foreach":
            continue  # a tensor as learning rate: torch wants the capturable form
        if capturable and not form.startswith("capturable"):
            continue
        made.append(keywords | arguments(info, form))
    # Graphs that count steps are large; the last samples are those with most arguments.
    return made[-3:] if form.startswith("capturable") else made


def arguments(info: OptimizerInfo, form: str) -> dict[str, bool]:
    """The form as arguments of this optimizer."""
    return {
        name: value
        for name, value in FORMS[form].items()
        if name in info.supported_impls or name == "capturable"
    }


def forms(info: OptimizerInfo) -> Iterator[str]:
    """The forms that an optimizer has."""
    yield "loop"
    yield from (f for f in ("foreach", "fused", "differentiable") if f in info.supported_impls)
    if info.has_capturable_arg:
        yield "capturable"
        yield "capturable-foreach"


CASES = [
    pytest.param(info, form, dtype, id=f"{info.name}-{form}-{str(dtype).removeprefix('torch.')}")
    for info in optim_db
    if not info.only_supports_sparse_grads
    for form in forms(info)
    for dtype in (torch.float64, torch.float32)
    if dtype is torch.float64 or form in ("foreach", "fused")
]


def reference(info: OptimizerInfo, dtype: torch.dtype, keywords: dict[str, Any]) -> Training:
    """The same on the CPU, which has no capturable form."""
    if "capturable" in keywords:
        keywords = {k: v for k, v in keywords.items() if k != "capturable"} | {"foreach": False}
    return Training(info, "cpu", dtype, copy.deepcopy(keywords))


def tolerance(info: OptimizerInfo, form: str, dtype: torch.dtype) -> float:
    """What the coarsest arithmetic of a step allows."""
    if info.name == "Muon":
        return 1e-2  # iterates in bfloat16, whatever the parameters are
    if form.startswith("capturable"):
        return 1e-5  # counts steps on the device, in float32; the CPU counts them in Python
    return 1e-9 if dtype is torch.float64 else 1e-4


@pytest.mark.parametrize(("info", "form", "dtype"), CASES)
def test_training_agrees_with_the_cpu(info: OptimizerInfo, form: str, dtype: torch.dtype) -> None:
    before = counters.fallbacks.copy()
    chosen = configurations(info, form)
    if dtype is torch.float32:
        chosen = chosen[:1]
    pairs = [
        (reference(info, dtype, keywords), Training(info, DEVICE, dtype, copy.deepcopy(keywords)))
        for keywords in chosen
    ]
    compiles = []
    for _ in range(STEPS):
        for expected, actual in pairs:
            expected.step()
            actual.step()
        rt.sync()
        compiles.append(counters.compiles)
    allowed = tolerance(info, form, dtype)
    for expected, actual in pairs:
        for got, wanted in zip(actual.results(), expected.results(), strict=True):
            torch.testing.assert_close(
                got,
                wanted,
                rtol=allowed,
                atol=allowed,
                msg=lambda text, keywords=actual.keywords: f"{keywords}: {text}",
            )
    assert counters.fallbacks == before
    # LBFGS reads values to decide how it goes on, differentiable steps make one growing graph.
    if info.name != "LBFGS" and form != "differentiable":
        assert compiles[-1] == compiles[1]


def test_sparse_gradients_are_refused_by_name() -> None:
    table = torch.nn.Embedding(5, 3, sparse=True).to(DEVICE)
    with pytest.raises((RuntimeError, NotImplementedError), match=r"(?i)sparse"):
        table(torch.tensor([1, 2], device=DEVICE)).sum().backward()
