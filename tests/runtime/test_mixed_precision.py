"""Autocast regions: dtypes by CUDA's lists, nesting, custom functions, training."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trcomp.runtime as rt
from trcomp.runtime.device import DEVICE

pytestmark = pytest.mark.runtime
HALVES = [torch.bfloat16, torch.float16]


def ones(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(size, dtype=dtype, device=DEVICE)


IN_HALF: dict[str, Callable[[], torch.Tensor]] = {
    "matmul": lambda: ones(2, 3) @ ones(3, 2),
    "bmm": lambda: torch.bmm(ones(1, 2, 3), ones(1, 3, 2)),
    "addmm": lambda: torch.addmm(ones(2), ones(2, 3), ones(3, 2)),
    "baddbmm": lambda: torch.baddbmm(ones(1, 2, 2), ones(1, 2, 3), ones(1, 3, 2)),
    "mv": lambda: torch.mv(ones(2, 3), ones(3)),
    "einsum": lambda: torch.einsum("ij,jk->ik", ones(2, 3), ones(3, 2)),
    "linear": lambda: F.linear(ones(2, 3), ones(4, 3), ones(4)),
    "conv1d": lambda: F.conv1d(ones(1, 2, 5), ones(3, 2, 2)),
    "conv2d": lambda: F.conv2d(ones(1, 2, 5, 5), ones(3, 2, 2, 2)),
    "conv_transpose2d": lambda: F.conv_transpose2d(ones(1, 2, 5, 5), ones(2, 3, 2, 2)),
    "prelu": lambda: F.prelu(ones(2, 3), ones(1)),
    "attention": lambda: F.scaled_dot_product_attention(*[ones(1, 1, 4, 4)] * 3),
    "lstm_cell": lambda: torch.nn.LSTMCell(3, 4).to(DEVICE)(ones(2, 3))[0],
}

IN_FULL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "log": torch.log,
    "rsqrt": torch.rsqrt,
    "pow": lambda h: h**2.5,
    "pow of a number": lambda h: 2.0**h,
    "softplus": F.softplus,
    "softmax": lambda h: h.softmax(-1),
    "log_softmax": lambda h: F.log_softmax(h, -1),
    "layer_norm": lambda h: F.layer_norm(h, (4,)),
    "group_norm": lambda h: F.group_norm(h, 2),
    "sum": torch.sum,
    "sum over dims": lambda h: h.sum(0),
    "prod": torch.prod,
    "cumsum": lambda h: h.cumsum(0),
    "norm": torch.linalg.vector_norm,
    "logsumexp": lambda h: h.logsumexp(0),
    "mse_loss": lambda h: F.mse_loss(h, h),
    "l1_loss": lambda h: F.l1_loss(h, h),
    "nll_loss": lambda h: F.nll_loss(h, torch.zeros(2, dtype=torch.long, device=DEVICE)),
    "cross_entropy": lambda h: F.cross_entropy(h, torch.zeros(2, dtype=torch.long, device=DEVICE)),
    "binary_cross_entropy_with_logits": lambda h: F.binary_cross_entropy_with_logits(h, h),
    "cosine_similarity": lambda h: F.cosine_similarity(h, h),
    "kl_div": lambda h: F.kl_div(h, h, reduction="sum"),
}

AS_THEY_ARE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "mul": lambda h: h * 2,
    "mean": torch.mean,
    "max": torch.max,
    "dropout": lambda h: F.dropout(h, 0.5),
    "max_pool2d": lambda h: F.max_pool2d(h.view(1, 1, 2, 4), 2),
}


@pytest.mark.parametrize("dtype", HALVES)
def test_products_and_convolutions_run_in_the_regions_dtype(dtype: torch.dtype) -> None:
    with torch.autocast("xla", dtype=dtype):
        assert {name: make().dtype for name, make in IN_HALF.items()} == dict.fromkeys(
            IN_HALF, dtype
        )


@pytest.mark.parametrize("dtype", HALVES)
def test_what_needs_range_runs_in_float32_and_the_rest_as_it_is(dtype: torch.dtype) -> None:
    half = ones(2, 4, dtype=dtype)
    with torch.autocast("xla", dtype=dtype):
        full = {name: f(half).dtype for name, f in IN_FULL.items()}
        same = {name: f(half).dtype for name, f in AS_THEY_ARE.items()}
    assert full == dict.fromkeys(IN_FULL, torch.float32)
    assert same == dict.fromkeys(AS_THEY_ARE, dtype)


def test_mixed_operands_take_the_widest_dtype() -> None:
    half, full = ones(3, dtype=torch.float16), ones(3)
    with torch.autocast("xla", dtype=torch.float16):
        assert torch.cat([half, full]).dtype == torch.float32
        assert torch.stack([half, half]).dtype == torch.float16
        assert torch.addcmul(half, half, full).dtype == torch.float32
        assert (half + full).dtype == torch.float32
        assert torch.dot(half, full).dtype == torch.float32
        place = (torch.tensor([0], device=DEVICE),)
        assert torch.index_put(full, place, half[:1]).dtype == torch.float32


def test_float64_and_integers_are_left_alone() -> None:
    double, whole = ones(2, 2, dtype=torch.float64), ones(2, 2, dtype=torch.int64)
    with torch.autocast("xla", dtype=torch.bfloat16):
        assert (double @ double).dtype == double.exp().dtype == torch.float64
        assert (whole @ whole).dtype == whole.sum().dtype == torch.int64
        assert torch.ones(2, 2).exp().dtype == torch.float32  # on the host


def test_regions_nest_and_can_be_switched_off() -> None:
    x = ones(2, 2)
    assert torch.autocast("xla").fast_dtype == torch.bfloat16  # as torch_xla
    with torch.autocast("xla", dtype=torch.bfloat16):
        outer = x @ x
        with torch.autocast("xla", dtype=torch.float16):
            inner = x @ x
        with torch.autocast("xla", enabled=False):
            off = x @ x
        again = x @ x
        assert torch.is_autocast_enabled("xla")
    assert not torch.is_autocast_enabled("xla")
    assert [t.dtype for t in (outer, inner, off, again, x @ x)] == [
        torch.bfloat16,
        torch.float16,
        torch.float32,
        torch.bfloat16,
        torch.float32,
    ]


def test_a_region_can_be_a_decorator() -> None:
    @torch.autocast("xla", dtype=torch.bfloat16)
    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    assert product(ones(2, 2)).dtype == torch.bfloat16


def test_a_dtype_that_is_no_half_is_refused_as_on_cuda() -> None:
    with pytest.warns(UserWarning, match="not supported"):
        region = torch.autocast("xla", dtype=torch.float32)
    with region:
        assert not torch.is_autocast_enabled("xla")


def test_binary_cross_entropy_is_refused_as_on_cuda() -> None:
    with (
        torch.autocast("xla", dtype=torch.float16),
        pytest.raises(RuntimeError, match="unsafe to autocast"),
    ):
        F.binary_cross_entropy(ones(2), ones(2))


@pytest.mark.parametrize("cache", [True, False])
def test_a_weight_changed_inside_a_region_is_read_anew(cache: bool) -> None:
    weight = torch.nn.Parameter(ones(2, 2))
    with torch.autocast("xla", dtype=torch.bfloat16, cache_enabled=cache):
        before = F.linear(ones(1, 2), weight)
        with torch.no_grad():
            weight.mul_(3)
        after = F.linear(ones(1, 2), weight)
    assert (before.tolist(), after.tolist()) == ([[2, 2]], [[6, 6]])


def test_a_weight_used_several_times_is_cast_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRCOMP_DEBUG", "1")
    monkeypatch.setenv("TRCOMP_REPORT_DIR", str(tmp_path / "trcomp"))
    weight = torch.nn.Parameter(ones(5, 11))
    rt.sync()
    with torch.autocast("xla", dtype=torch.bfloat16):
        assert torch.is_autocast_cache_enabled()
        middle = F.linear(ones(3, 11), weight)
        torch.clear_autocast_cache()
        result = F.linear(middle @ weight, weight)
    result.float().sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype is torch.float32 and weight.grad.isfinite().all().item()
    programs = [path.read_text() for path in tmp_path.glob("compiler/*.hlo.txt")]
    casts = [re.findall(r" = bf16\[5,11\]\S* convert\(", text) for text in programs]
    assert [len(found) for found in casts if found] == [1]


@pytest.mark.parametrize("dtype", HALVES)
def test_training_in_a_region_follows_the_cpu(dtype: torch.dtype) -> None:
    runs = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv1d(2, 8, 3, padding=1),
            torch.nn.BatchNorm1d(8),
            torch.nn.GELU(),
            torch.nn.Flatten(),
            torch.nn.LayerNorm(32),
            torch.nn.Linear(32, 3),
        ).to(device)
        x, y = torch.randn(6, 2, 4).to(device), torch.tensor([0, 1, 2, 0, 1, 2]).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses = []
        for _ in range(6):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=dtype):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            rt.sync()
            losses.append(loss.item())
        assert all(p.grad is not None and p.grad.dtype == p.dtype for p in model.parameters())
        runs.append(losses)
    assert runs[1] == pytest.approx(runs[0], rel=0.03)
    assert runs[1][-1] < runs[1][0]


class Squared(torch.autograd.Function):
    """Records the dtypes it meets."""

    seen: list[Any] = []  # noqa: RUF012

    @staticmethod
    @torch.amp.custom_fwd(device_type="xla", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Squared.seen += [x.dtype, torch.is_autocast_enabled("xla")]
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="xla")
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        Squared.seen += [grad.dtype, torch.is_autocast_enabled("xla")]
        return grad @ x.t() + x.t() @ grad


def test_custom_functions_cast_their_inputs_and_run_backward_likewise() -> None:
    Squared.seen.clear()
    x = ones(2, 2, dtype=torch.bfloat16).requires_grad_()
    with torch.autocast("xla", dtype=torch.bfloat16):
        made = Squared.apply(x)
    made.sum().backward()
    assert made.dtype == torch.float32
    assert Squared.seen == [torch.float32, False, torch.float32, False]
    assert x.grad is not None and x.grad.tolist() == [[4, 4], [4, 4]]


def test_a_checkpoint_recomputes_in_the_regions_dtype() -> None:
    layer = torch.nn.Linear(3, 3).to(DEVICE)
    with torch.autocast("xla", dtype=torch.bfloat16):
        made = torch.utils.checkpoint.checkpoint(layer, ones(2, 3), use_reentrant=False)
    assert made.dtype == torch.bfloat16
    made.sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32
