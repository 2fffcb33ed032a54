"""`torch.func` and forward mode: gradients, Jacobians and batches of functions of the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from tests.runtime.agreement import assert_agrees, assert_alike
from trcomp.runtime.device import DEVICE

pytestmark = pytest.mark.runtime


def sample(*size: int) -> torch.Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(0)) + 0.5


TRANSFORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad": lambda x: torch.func.grad(lambda t: (t**3).sum())(x),
    "vjp": lambda x: torch.func.vjp(torch.sin, x)[1](x),
    "jvp": lambda x: torch.func.jvp(lambda t: t.sin() * t, (x,), (torch.ones_like(x),)),
    "vmap": lambda x: torch.func.vmap(lambda t: t * 2 + t.sum())(x),
    "vmap in place": lambda x: torch.func.vmap(lambda t: t.clone().mul_(t).add_(1))(x),
    "vmap over columns": lambda x: torch.func.vmap(torch.cumsum, (1, None), 1)(x, 0),
    "vmap of matmul": lambda x: torch.func.vmap(lambda t: t @ x.t())(x),
    "vmap of grad": lambda x: torch.func.vmap(torch.func.grad(lambda t: (t.exp() * t).sum()))(x),
    "jacrev": lambda x: torch.func.jacrev(lambda t: t.softmax(-1))(x[0]),
    "jacfwd": lambda x: torch.func.jacfwd(lambda t: t.softmax(-1))(x[0]),
    "hessian": lambda x: torch.func.hessian(lambda t: (t.sin() * t).sum())(x[0]),
    "grad of attention": lambda x: torch.func.grad(
        lambda t: F.scaled_dot_product_attention(t, t, t).square().sum()
    )(x[None]),
    "vmap of grad of attention": lambda x: torch.func.vmap(
        torch.func.grad(lambda t: F.scaled_dot_product_attention(t, t, t).square().sum())
    )(torch.stack([x[None], x[None] + 1])),
    "linearize": lambda x: torch.func.linearize(torch.tanh, x)[1](x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_function_transforms(name: str) -> None:
    assert_agrees(TRANSFORMS[name], sample(3, 4))


def test_gradients_per_sample() -> None:
    def run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        model = torch.nn.Linear(4, 2, device="meta")
        parameters = {"weight": weight, "bias": bias}

        def loss(parameters: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
            made = torch.func.functional_call(model, parameters, (row[None],))
            return F.layer_norm(made, (2,)).exp().sum()

        return torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)

    assert_agrees(run, sample(5, 4), sample(2, 4), sample(2))


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers_are_differentiated_by_torch_func(kind: Any, bias: bool) -> None:
    def run(x: torch.Tensor) -> Any:
        torch.manual_seed(0)
        layer = kind(4, 3, bias=bias).to(x.device)
        parameters = {name: p.detach() for name, p in layer.named_parameters()}

        def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = torch.func.functional_call(layer, parameters, (x,))[0]
            return made.square().sum()

        return torch.func.grad(loss, (0, 1))(parameters, x)

    assert_agrees(run, sample(2, 3, 4))


def test_ensembles_of_models() -> None:
    models = [torch.nn.Linear(3, 2).to(DEVICE) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)  # type: ignore[arg-type]
    x = sample(4, 3).to(DEVICE)

    def call(p: Any, b: Any) -> Any:
        return torch.func.functional_call(models[0], (p, b), (x,))

    made = torch.func.vmap(call)(parameters, buffers)
    assert_alike(made, torch.stack([m(x).detach().cpu() for m in models]))


def test_random_draws_under_vmap() -> None:
    x = torch.ones(50, 40, device=DEVICE)
    for randomness, rows in (("different", 50), ("same", 1)):
        made = torch.func.vmap(lambda t: F.dropout(t, 0.5), randomness=randomness)(x)
        assert len({tuple(row) for row in made.tolist()}) == rows
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(lambda t: F.dropout(t, 0.5))(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_forward_mode() -> None:
    def run(x: torch.Tensor) -> Any:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            return forward_ad.unpack_dual((dual.exp() * dual).sum(0)).tangent

    assert_agrees(run, sample(3, 2))
