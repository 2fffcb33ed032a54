"""Random programs of views and in-place writes: every tensor agrees with its twin on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import trcomp.runtime as rt
from trcomp.runtime.device import DEVICE

pytestmark = pytest.mark.runtime

Draw = st.DrawFn
MAX_TENSORS = 8
MAX_ELEMENTS = 512


def strides(tensor: torch.Tensor) -> list[int]:
    """Strides that mean something: of a tensor with elements, in dimensions with several."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [s for n, s in pairs if n > 1] if tensor.numel() else []


class Twins:
    """Tensors on the device and their twins on the CPU, made by the same steps."""

    def __init__(self, size: list[int], dtype: torch.dtype) -> None:
        base = torch.arange(1, 1 + torch.Size(size).numel()).reshape(size).to(dtype)
        self.host = [base]
        self.device = [base.to(DEVICE)]

    def apply(self, i: int, name: str, *arguments: Any, keep: bool) -> None:
        """Call a method of tensor `i` on both sides; keep what it returns."""
        note(f"t{i} {tuple(self.host[i].shape)}.{name}{arguments}")

        def on(side: list[torch.Tensor]) -> Any:
            given = [side[a.index] if isinstance(a, Twin) else a for a in arguments]
            return getattr(side[i], name)(*given)

        made = [on(self.host), on(self.device)]
        if keep and len(self.host) < MAX_TENSORS:
            self.host.append(made[0])
            self.device.append(made[1])

    def check(self) -> None:
        """Compare every live tensor with its twin: elements, size, strides, offset."""
        for host, device in zip(self.host, self.device, strict=True):
            assert device.dtype == host.dtype
            assert strides(device) == strides(host)
            assert device.storage_offset() == host.storage_offset()
            torch.testing.assert_close(device.cpu(), host, rtol=0, atol=0)


class Twin(int):
    """Stands for tensor number `index` in a call's arguments."""

    @property
    def index(self) -> int:
        """The number."""
        return int(self)


def dims(draw: Draw, tensor: torch.Tensor) -> int:
    """A dimension of a tensor, counted from either end."""
    return draw(st.integers(-tensor.dim(), tensor.dim() - 1))


def factors(draw: Draw, count: int) -> list[int]:
    """A size of `count` elements."""
    size = []
    while count > 1 and len(size) < 3:
        part = draw(st.sampled_from([n for n in range(1, count + 1) if count % n == 0]))
        size.append(part)
        count //= part
    return [*size, count]


def view_step(draw: Draw, tensor: torch.Tensor) -> tuple[str, tuple[Any, ...]]:
    """A view of a tensor: a method's name and arguments."""
    if not tensor.dim():
        return draw(st.sampled_from([("reshape", (1, 1)), ("unsqueeze", (0,)), ("detach", ())]))
    d, e = dims(draw, tensor), dims(draw, tensor)
    extent = tensor.size(d)
    kinds = ["reshape", "permute", "narrow", "unsqueeze", "squeeze", "detach", "transpose", "step"]
    kinds += ["expand", "chunk", "strided", "view_as"]
    kinds += ["select", "unfold"] if extent else []
    kinds += ["diagonal"] if tensor.dim() > 1 and d % tensor.dim() != e % tensor.dim() else []
    kind = draw(st.sampled_from(kinds))
    match kind:
        case "reshape":
            return "reshape", tuple(factors(draw, tensor.numel())) if tensor.numel() else (0, 2)
        case "view_as":
            return "flatten", ()
        case "permute":
            return "permute", tuple(draw(st.permutations(range(tensor.dim()))))
        case "narrow":
            start = draw(st.integers(0, extent))
            return "narrow", (d, start, draw(st.integers(0, extent - start)))
        case "step":
            part = slice(draw(st.integers(0, 3)), draw(st.integers(0, 9)), draw(st.integers(1, 3)))
            return "__getitem__", ((slice(None),) * (d % tensor.dim()) + (part,),)
        case "select":
            return "select", (d, draw(st.integers(-extent, extent - 1)))
        case "transpose":
            return "transpose", (d, e)
        case "unsqueeze":
            return "unsqueeze", (d,)
        case "squeeze":
            return "squeeze", draw(st.sampled_from([(), (d,)]))
        case "expand":
            return "expand", (2, *tensor.shape)
        case "chunk":
            return "narrow", (d, extent // 2, extent - extent // 2)
        case "unfold":
            size = draw(st.integers(1, extent))
            return "unfold", (d, size, draw(st.integers(1, 3)))
        case "diagonal":
            return "diagonal", (draw(st.integers(-2, 2)), d, e)
        case "strided":
            return strided_step(draw, tensor)
    return "detach", ()


def strided_step(draw: Draw, tensor: torch.Tensor) -> tuple[str, tuple[Any, ...]]:
    """`as_strided` within the tensor's storage."""
    held = tensor.untyped_storage().nbytes() // tensor.element_size()
    if not held:
        return "detach", ()
    offset = draw(st.integers(0, held - 1))
    size, stride, reach = [], [], held - 1 - offset
    for _ in range(draw(st.integers(0, 2))):
        step = draw(st.integers(1, 5))
        extent = draw(st.integers(1, 1 + min(reach // step, 4)))
        reach -= (extent - 1) * step
        size.append(extent)
        stride.append(step)
    return "as_strided", (tuple(size), tuple(stride), offset)


def is_writable(tensor: torch.Tensor) -> bool:
    """Whether no two elements of a tensor share a place."""
    places = torch.zeros(tensor.untyped_storage().nbytes() // tensor.element_size())
    marks = places.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    index = torch.arange(places.numel()).as_strided(
        tensor.shape, tensor.stride(), tensor.storage_offset()
    )
    return index.unique().numel() == marks.numel()


def write_step(draw: Draw, twins: Twins, i: int) -> tuple[str, tuple[Any, ...]]:
    """An in-place write into tensor `i`."""
    tensor = twins.host[i]
    sources = [
        Twin(k)
        for k, other in enumerate(twins.host)
        if other.shape == tensor.shape and other.untyped_storage() is not tensor.untyped_storage()
    ]
    kinds = ["add_", "mul_", "fill_", "zero_", "masked", "index"]
    kinds += ["copy_", "add_other"] if sources else []
    kind = draw(st.sampled_from(kinds))
    number = draw(st.integers(-3, 3))
    match kind:
        case "add_" | "mul_" | "fill_":
            return kind, (number,)
        case "copy_":
            return "copy_", (draw(st.sampled_from(sources)),)
        case "add_other":
            return "add_", (draw(st.sampled_from(sources)),)
        case "masked":
            return "masked_fill_", (torch.ones((), dtype=torch.bool), number)
        case "index" if tensor.dim() and tensor.size(0):
            return "__setitem__", (draw(st.integers(0, tensor.size(0) - 1)), number)
    return "zero_", ()


def copy_step(draw: Draw) -> tuple[str, tuple[Any, ...]]:
    """A tensor of its own storage."""
    return draw(st.sampled_from([("clone", ()), ("contiguous", ()), ("add", (1,)), ("neg", ())]))


def step(draw: Draw, twins: Twins) -> None:
    """One step of a program."""
    i = draw(st.integers(0, len(twins.host) - 1))
    tensor = twins.host[i]
    kind = draw(st.sampled_from(["view", "view", "write", "write", "copy", "sync"]))
    if kind == "sync":
        rt.sync()
    elif kind == "view" and tensor.numel() <= MAX_ELEMENTS:
        name, arguments = view_step(draw, tensor)
        twins.apply(i, name, *arguments, keep=True)
    elif kind == "write" and is_writable(tensor):
        name, arguments = write_step(draw, twins, i)
        twins.apply(i, name, *arguments, keep=False)
    elif kind == "copy":
        name, arguments = copy_step(draw)
        twins.apply(i, name, *arguments, keep=True)


@st.composite
def programs(draw: Draw) -> Twins:
    """Twins after a random program."""
    size = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    twins = Twins(size, draw(st.sampled_from([torch.float32, torch.int64, torch.bfloat16])))
    for _ in range(draw(st.integers(1, 9))):
        step(draw, twins)
    return twins


@settings(
    max_examples=10_000 if settings.get_current_profile_name() == "thorough" else 60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(programs())
def test_programs_of_views_and_writes_agree_with_the_cpu(twins: Twins) -> None:
    twins.check()


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[2:5],
        lambda x: x[:, 1:4],
        lambda x: x[1],
        lambda x: x[:, -1],
        lambda x: x[::2, ::3],
        lambda x: x[1:3, 2].unsqueeze(0).expand(4, 2),
        lambda x: x.view(2, 3, 6).permute(2, 0, 1),
        lambda x: x.view(36)[4:].view(4, 8),
        lambda x: x.view(9, 4)[1:, 1:3].unsqueeze(-1),
        lambda x: x.chunk(3, 1)[1],
        # As a vision transformer's patches: the rows of a square image behind other tokens.
        lambda x: x.view(2, 18)[:, 2:].view(2, 4, 4).transpose(1, 2),
    ],
)
@pytest.mark.parametrize("write", [False, True])
def test_slices_transposes_reshapes_and_broadcasts_need_no_gather(
    view: Callable[[torch.Tensor], torch.Tensor], write: bool
) -> None:
    host = torch.arange(36.0).view(6, 6)
    device = host.clone().to("xla")
    rt.sync()
    before = rt.metrics()["gathers"]
    if write and 0 in view(host).stride():
        pytest.skip("torch refuses to write through a broadcast")
    for base in (host, device):
        if write:
            view(base).mul_(-1)
    seen = view(device) + 1
    assert torch.equal(seen.cpu(), view(host) + 1)
    assert torch.equal(device.cpu(), host)
    assert rt.metrics()["gathers"] == before


@st.composite
def parts(draw: Draw) -> tuple[tuple[int, ...], tuple[slice | int, ...], tuple[slice | int, ...]]:
    """A size, and two parts of equal size of a tensor of it."""
    size, left, right = [], [], []
    for _ in range(draw(st.integers(1, 4))):
        extent = draw(st.integers(1, 5))
        size.append(extent)
        if draw(st.booleans()):
            left.append(draw(st.integers(0, extent - 1)))
            right.append(draw(st.integers(0, extent - 1)))
            continue
        count, step = draw(st.integers(1, extent)), draw(st.integers(1, 2))
        count = min(count, (extent - 1) // step + 1)
        for part in (left, right):
            first = draw(st.integers(0, extent - 1 - (count - 1) * step))
            part.append(slice(first, first + (count - 1) * step + 1, step))
    return tuple(size), tuple(left), tuple(right)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(parts(), st.booleans())
def test_parts_anywhere_of_what_is_computed_are_read_and_written(
    drawn: tuple[Any, Any, Any], turned: bool
) -> None:
    size, left, right = drawn
    host = torch.arange(math.prod(size), dtype=torch.float32).view(size)
    device = host.to("xla")
    rt.sync()
    for base in (host, device):
        seen, target = base[left], base[right]
        order = sorted(range(seen.dim()), reverse=turned)
        target.permute(order).copy_(seen.permute(order) * 2 - 1)
    assert torch.equal(device.cpu(), host)


def test_a_copy_that_does_not_fit_is_an_error_at_once() -> None:
    target = torch.zeros(2, 4, device="xla")
    with pytest.raises(RuntimeError, match="size"):
        target.copy_(torch.ones(2, 3, device="xla"))
    assert target.copy_(torch.ones(4)).sum().item() == 8
