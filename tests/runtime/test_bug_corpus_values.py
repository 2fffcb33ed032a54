"""What lazy tensors are known to get wrong about values: views, ties, dtypes, numbers.

The cases come from public reports against PyTorch/XLA and its users' projects; those about random
draws, layers, indexing and recompiles are tested with their subjects in the files beside this one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers

import trcomp.runtime as rt
from tests.runtime.agreement import assert_agrees, on_device
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime


@pytest.fixture(autouse=True)
def settled() -> None:
    rt.sync(wait=True)


# Views, aliases, in-place writes, ties.


def test_new_data_leaves_old_views_on_the_old_values() -> None:
    def run(x: torch.Tensor) -> Any:
        parameter = torch.nn.Parameter(x.detach().clone())
        view = parameter.detach()[1:]
        parameter.data = torch.full_like(parameter, 9)
        view.add_(1)
        return parameter.detach(), view

    assert_agrees(run, torch.arange(3.0))


def test_a_module_and_its_optimizer_follow_a_change_of_dtype() -> None:
    model = torch.nn.Linear(2, 2).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for dtype in (torch.bfloat16, torch.float64):
        model.to(dtype)
        assert {p.dtype for p in model.parameters()} == {dtype}
        optimizer.zero_grad()
        model(torch.ones(1, 2, dtype=dtype, device=DEVICE)).sum().backward()
        before = model.bias.tolist()
        optimizer.step()
        assert model.bias.tolist() == pytest.approx([b - 1 for b in before], rel=1e-2)
    assert model.half().weight.dtype == torch.float16


def test_several_writes_to_one_tensor_in_a_step_still_reuse_its_memory() -> None:
    x = torch.zeros(1000, device=DEVICE)
    rt.sync(wait=True)
    before = counters.donated_buffers
    x.add_(1).mul_(2)
    x[3] = 5.0
    x.view(10, 100)[0].neg_()
    rt.sync()
    assert counters.donated_buffers == before + 1
    assert x[:5].tolist() == [-2, -2, -2, -5, -2]


def test_a_write_through_flatten_reaches_the_base() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x.flatten().mul_(3)
        x.flatten(0, 1)[0] -= 1
        x.t().reshape(-1).add_(100)  # a copy: reaches nothing
        return x

    assert_agrees(run, torch.arange(4.0).view(2, 2))


def test_a_model_keeps_its_ties_and_number_of_parameters_on_the_device() -> None:
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2, tie_word_embeddings=True
    )
    model = transformers.GPT2LMHeadModel(config)
    count, names = model.num_parameters(), len(dict(model.named_parameters()))
    model.to(DEVICE)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert (model.num_parameters(), len(dict(model.named_parameters()))) == (count, names)
    model.to("cpu").to(DEVICE)
    assert model.lm_head.weight is model.transformer.wte.weight


def test_both_names_of_a_tied_weight_are_restored(tmp_path: Path) -> None:
    def made() -> torch.nn.Sequential:
        model = torch.nn.Sequential(torch.nn.Embedding(4, 3), torch.nn.Linear(3, 4, bias=False))
        model[1].weight = model[0].weight
        return model.to(DEVICE)

    model = made()
    model(torch.tensor([1], device=DEVICE)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    torch.save(model.state_dict(), tmp_path / "m")
    again = made()
    again.load_state_dict(torch.load(tmp_path / "m", weights_only=True))
    assert again[0].weight is again[1].weight
    assert again[1].weight.tolist() == model[0].weight.tolist()


def test_as_strided_reads_and_writes_overlapping_windows() -> None:
    def run(x: torch.Tensor) -> Any:
        x = x.clone()
        windows = x.as_strided((4, 3), (1, 1)).clone()
        x.as_strided((2, 2), (3, 1), 1).zero_()
        return windows, x, torch.as_strided(x, (3,), (2,))

    assert_agrees(run, torch.arange(6.0))


# Numbers and their dtypes.


PROMOTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "where with numbers": lambda h, w: torch.where(h > 0, 1.0, 0),
    "where with a number": lambda h, w: torch.where(w > 0, w, 0.5),
    "where with a 0-dim tensor": lambda h, w: torch.where(
        h > 0, h, torch.tensor(2.0, dtype=torch.float64, device=h.device)
    ),
    "cat": lambda h, w: torch.cat([h, w, w > 0]),
    "stack": lambda h, w: torch.stack([h, w]),
    "addcdiv": lambda h, w: torch.addcdiv(h.float(), h, w + 10),
    "addcmul": lambda h, w: torch.addcmul(h, h.double(), w),
    "lerp": lambda h, w: torch.lerp(h, h + 1, 0.25),
    "index_put of a number": lambda h, w: h.index_put((w.abs() % 2,), h.new_tensor(3)),
    "a host scalar on the left": lambda h, w: torch.tensor(2.5) * h,
    "a host scalar minus integers": lambda h, w: torch.tensor(2.5) - w,
    "a number to the power of integers": lambda h, w: 2 ** w.abs(),
    "integers over integers": lambda h, w: w / (w.abs() + 1),
    "sum of bools": lambda h, w: (w > 0).sum(),
    "mean of halves": lambda h, w: h.mean(),
    "arange times half": lambda h, w: torch.arange(3, device=h.device) * h,
}


@pytest.mark.parametrize("name", PROMOTIONS)
def test_dtypes_are_torchs(name: str) -> None:
    half, whole = torch.tensor([1.5, -2.0, 0.25]).bfloat16(), torch.tensor([3, -1, 0])
    assert_agrees(PROMOTIONS[name], half, whole)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_index_dtypes_are_taken_or_refused_as_on_the_cpu(dtype: torch.dtype) -> None:
    index = torch.tensor([1, 0, 1, 0]).to(dtype)

    def write(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[index] = 7.0
        return x

    def add(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x.index_put((index,), x[:1], accumulate=True)

    def outcome(function: Callable[..., Any], x: torch.Tensor, index: torch.Tensor) -> Any:
        try:
            return function(x, index).tolist()
        except (IndexError, RuntimeError) as error:
            return type(error)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "indexing with dtype torch.uint8")
        # torch refuses to write one number at a uint8 mask, by an accident of its fast path.
        writes = [] if dtype is torch.uint8 else [write]
        for function in (lambda x, i: x[i], add, *writes):
            due = outcome(function, torch.arange(4.0), index)
            assert outcome(function, torch.arange(4.0, device=DEVICE), index.to(DEVICE)) == due


def test_index_dtypes_that_are_no_index_are_refused() -> None:
    x = torch.arange(4.0, device=DEVICE)
    with pytest.raises((IndexError, RuntimeError), match="indices must be long"):
        x[torch.ones(2, device=DEVICE)]
    with pytest.raises(RuntimeError, match="int32/int64"):
        x.gather(0, torch.ones(2, device=DEVICE))


@pytest.mark.parametrize(
    "product",
    [
        torch.mm,
        lambda h, w: torch.bmm(h[None], w[None]),
        lambda h, w: torch.addmm(w, h, w),
        lambda h, w: torch.mv(h, w[0]),
        lambda h, w: F.linear(h, w),
        lambda h, w: F.conv1d(h[None], w[None]),
        lambda h, w: F.scaled_dot_product_attention(h[None], w[None], w[None]),
    ],
)
def test_an_input_that_was_not_cast_to_its_layers_dtype_is_refused(
    product: Callable[..., torch.Tensor],
) -> None:
    half, full = torch.ones(2, 2).bfloat16(), torch.ones(2, 2)
    for move in (lambda t: t, on_device):
        with pytest.raises(RuntimeError, match=r"dtype|type"):
            product(move(half), move(full))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gelus_gradient_has_the_dtype_of_its_input(dtype: torch.dtype) -> None:
    layer = torch.nn.Linear(3, 3).to(DEVICE)
    x = torch.ones(2, 3, device=DEVICE, requires_grad=True)
    with torch.autocast("xla", dtype=dtype):
        middle = layer(x)
        middle.retain_grad()
        loss = F.gelu(middle).float().sum()
    loss.backward()
    assert middle.dtype == middle.grad.dtype == dtype  # type: ignore[union-attr]
    assert x.grad is not None and x.grad.dtype == torch.float32


def test_batch_norm_in_eval_passes_gradients_by_its_running_statistics() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        layer = torch.nn.BatchNorm1d(3).eval()
        layer.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))  # type: ignore[union-attr]
        layer.running_var.copy_(torch.tensor([4.0, 5.0, 6.0]))  # type: ignore[union-attr]
        made: torch.Tensor = layer.to(x.device)(x)
        return made

    assert_agrees(run, torch.rand(4, 3).requires_grad_())


def test_max_pooling_gives_indices_and_gradients_and_can_be_undone() -> None:
    def run(x: torch.Tensor) -> Any:
        made, indices = F.max_pool2d(x, 2, return_indices=True)
        return made, indices, F.max_unpool2d(made * 2, indices, 2)

    x = torch.rand(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    assert_agrees(run, x.requires_grad_(), falls_back=True)


def test_a_loss_whose_every_target_is_ignored_trains_nothing() -> None:
    layer = torch.nn.Linear(2, 3).to(DEVICE)
    loss = F.cross_entropy(
        layer(torch.ones(2, 2, device=DEVICE)),
        torch.full((2,), -100, device=DEVICE),
        reduction="sum",
    )
    loss.backward()
    assert loss.item() == 0
    assert layer.weight.grad is not None and not layer.weight.grad.any().item()
