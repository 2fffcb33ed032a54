"""How exact float32 products are: torch's switches decide what XLA is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trcomp.runtime as rt
from tests.runtime.compiled import DEVICE, Counted
from trcomp.runtime import graph, ir
from trcomp.runtime.compiler import lower_graph

pytestmark = pytest.mark.runtime

EXACT, FAST = "HIGHEST", "HIGH"


@pytest.fixture(autouse=True)
def _as_torch_has_it() -> Iterator[None]:
    # torch's own testing modules, which other tests import, freeze the switches.
    with torch.backends.__allow_nonbracketed_mutation():
        yield
        torch.backends.fp32_precision = "none"
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True


def asked_of_xla(compute: Callable[[], Any]) -> set[str]:
    """The precisions of all products in what a computation lowers to."""
    rt.sync()
    made = compute()
    pending = ir.take_pending()
    text = lower_graph(graph.build(pending, donate=False)).as_text()
    ir.restore_pending(pending)
    del made
    found = re.findall(r"precision(?:_config)? = \[([^\]]*)\]", text)
    return {word for words in found for word in re.findall(r"[A-Z]+", words)}


def product() -> torch.Tensor:
    return torch.randn(2, 3).to(DEVICE) @ torch.randn(3, 2).to(DEVICE)


def trained() -> list[torch.Tensor]:
    layer = torch.nn.Linear(3, 2).to(DEVICE)
    query = torch.randn(1, 2, 4, 3).to(DEVICE)
    out = layer(F.scaled_dot_product_attention(query, query, query))
    return [out, *torch.autograd.grad(out.sum(), layer.parameters())]


def convolved() -> list[torch.Tensor]:
    layer = torch.nn.Conv2d(4, 4, 3).to(DEVICE)
    out = layer(torch.randn(1, 4, 9, 9).to(DEVICE))
    return [out, *torch.autograd.grad(out.sum(), layer.parameters())]


def recurrent() -> list[torch.Tensor]:
    layer = torch.nn.LSTM(3, 2).to(DEVICE)
    out, _ = layer(torch.randn(5, 1, 3).to(DEVICE))
    return [out, *torch.autograd.grad(out.sum(), layer.parameters())]


def allow_tf32(where: Any, allowed: bool) -> None:
    where.allow_tf32 = allowed


def choose(where: Any, name: str) -> None:
    where.fp32_precision = name


def choose_for_all(name: str) -> None:
    """Where nothing is chosen for one of them alone."""
    cudnn: Any = torch.backends.cudnn
    for where in (torch.backends.cuda.matmul, cudnn, cudnn.conv, cudnn.rnn):
        choose(where, "none")
    choose(torch.backends, name)


@pytest.mark.parametrize("compute", [product, trained])
def test_products_of_matrices_are_exact_by_default(compute: Callable[[], Any]) -> None:
    assert asked_of_xla(compute) == {EXACT}


@pytest.mark.parametrize("compute", [convolved, recurrent])
def test_convolutions_and_recurrent_layers_may_take_tf32_by_default(
    compute: Callable[[], Any],
) -> None:
    assert asked_of_xla(compute) == {FAST}


@pytest.mark.parametrize(
    "switch",
    [
        partial(torch.set_float32_matmul_precision, "high"),
        partial(torch.set_float32_matmul_precision, "medium"),
        partial(allow_tf32, torch.backends.cuda.matmul, True),
        partial(choose_for_all, "tf32"),
        partial(choose, torch.backends.cuda.matmul, "tf32"),
    ],
)
def test_products_of_matrices_take_tf32_where_a_script_allows_it(
    switch: Callable[[], None],
) -> None:
    switch()
    assert asked_of_xla(trained) == {FAST}


@pytest.mark.parametrize(
    "switch",
    [
        partial(allow_tf32, torch.backends.cudnn, False),
        partial(choose_for_all, "ieee"),
    ],
)
def test_convolutions_are_exact_where_a_script_wants_it(switch: Callable[[], None]) -> None:
    switch()
    assert asked_of_xla(convolved) == {EXACT}
    assert asked_of_xla(product) == {EXACT}


def test_another_precision_is_another_executable() -> None:
    kept = product()
    rt.sync()
    kept = kept @ kept
    rt.sync()
    torch.set_float32_matmul_precision("high")
    with Counted() as counted:
        kept = kept @ kept
        rt.sync()
        kept = kept @ kept
        rt.sync()
    assert counted.compiles == 1
    torch.set_float32_matmul_precision("highest")
    with Counted() as counted:
        kept = kept @ kept
        rt.sync()
    assert counted.compiles == 0
