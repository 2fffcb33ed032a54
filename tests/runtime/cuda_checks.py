"""What a script may ask of `torch.cuda` and around it; each function raises where it is wrong."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import trcomp.runtime as rt
from trcomp.errors import DeviceError, DeviceMemoryError, UnsupportedError


def devices() -> None:
    """Counts, names and places; asking for a device that the host lacks."""
    assert torch.cuda.is_available()
    assert (torch.cuda.device_count(), torch.cuda.current_device()) == (1, 0)
    assert torch.cuda.get_device_capability() >= (8, 0)
    assert torch.cuda.get_device_properties("cuda:0").total_memory > 0
    assert torch.cuda.get_device_name(0)
    assert torch.cuda.is_bf16_supported()
    torch.cuda.set_device("cuda:0")
    with torch.cuda.device(0), torch.cuda.device_of(torch.ones(1)):
        assert torch.ones(1, device="cuda").device.index == 0
    for ask in (lambda: torch.cuda.set_device(1), lambda: torch.ones(1).to("cuda:1")):
        with pytest.raises(DeviceError, match="invalid device ordinal: got cuda:1"):
            ask()


def placement() -> None:
    """Every way to name the device ends on it; what is there already stays the same tensor."""
    x = torch.ones(3, 4)
    ways: list[Any] = ["cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0), 0]
    for way in ways:
        on = x.to(way)
        assert str(on.device) == "cuda:0"
        assert on.is_cuda
        assert not on.is_cpu
        assert on.to(way) is on
        assert torch.zeros(2, device=way).device == on.device
        assert torch.tensor([1.0], device=way).device == on.device
    assert on.cuda() is on
    assert on.cuda(0, non_blocking=True) is on
    assert on.to(on.device) is on
    assert on.to("cuda", copy=True) is not on
    assert on.to("cuda", torch.float64).dtype is torch.float64
    assert on.to(torch.zeros(1).cuda()) is on
    assert not on.cpu().is_cuda
    likes = [torch.zeros_like(x, device="cuda"), x.new_ones(2, device="cuda"), on.new_tensor([3])]
    makers = [torch.arange(3, device="cuda"), torch.randperm(4, device="cuda")]
    moved = torch.nn.utils.rnn.pack_sequence([x]).cuda().data
    for made in (*likes, *makers, moved, torch.as_tensor([1], device="cuda"), x.long().cuda()):
        assert made.device == on.device
    with pytest.raises(RuntimeError, match=r"at least two devices, cuda:0 and cpu"):
        on + x


def modules() -> None:
    """Parameters stay the objects that an optimizer holds, and ties stay tied."""
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    for move in (model.cuda, lambda: model.to(torch.cuda.current_device()), model.cpu):
        move()
        assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    model.to("cuda:0")
    before = parameters[0].detach().clone()
    model(torch.randn(4, 3).cuda()).square().sum().backward()
    optimizer.step()
    assert not torch.equal(before, model[0].weight)
    assert {b.device.type for b in model.buffers()} == {"cuda"}
    parallel = nn.DataParallel(nn.Linear(3, 2)).cuda()
    assert parallel(torch.ones(2, 3).cuda()).shape == (2, 2)
    assert list(parallel.state_dict()) == ["module.weight", "module.bias"]


def printing() -> None:
    """A tensor prints as a GPU's does."""
    x = torch.tensor([1.0, 2.5], device="cuda")
    assert repr(x) == "tensor([1.0000, 2.5000], device='cuda:0')"
    assert repr(x[0]) == "tensor(1., device='cuda:0')"
    assert (
        f"{x[1].item():.1f} {x.tolist()} {bool((x > 0).all())} {len(x)}" == "2.5 [1.0, 2.5] True 2"
    )
    assert x.cpu().numpy().tolist() == [1.0, 2.5]
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        x.numpy()
    assert not hasattr(x, "__cuda_array_interface__")


def memory() -> None:
    """What is allocated grows with what is kept and shrinks when it goes."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    held = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() >= before + held.nbytes
    assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] >= held.nbytes
    assert "allocated" in torch.cuda.memory_summary()
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    del held
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.memory_allocated() <= before + 4096
    assert torch.cuda.memory_reserved() >= 0
    assert issubclass(DeviceMemoryError, torch.cuda.OutOfMemoryError)


def streams() -> None:
    """Events time what ran; streams keep the order."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    x = torch.ones(64, 64, device="cuda")
    start.record()
    y = x @ x
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 0
    assert torch.cuda.Event(True).query()
    side = torch.cuda.Stream(device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        z = y + 1
    torch.cuda.current_stream().wait_stream(side)
    z.record_stream(torch.cuda.current_stream())
    assert z[0, 0].item() == 65
    torch.cuda.nvtx.range_push("part")
    torch.cuda.nvtx.range_pop()
    with torch.cuda.nvtx.range("part"):
        assert not torch.cuda.is_current_stream_capturing()


def randomness() -> None:
    """Seeds and states repeat what is drawn."""

    def draw(**words: Any) -> list[float]:
        return torch.rand(3, device="cuda", **words).tolist()

    state, states = torch.cuda.get_rng_state(), torch.cuda.get_rng_state_all()
    first = draw()
    torch.cuda.set_rng_state(state)
    assert draw() == first
    torch.cuda.set_rng_state_all(states)
    assert draw() == first
    for seed in (torch.cuda.manual_seed, torch.cuda.manual_seed_all, torch.manual_seed):
        seed(5)
        second = draw()
        seed(5)
        assert draw() == second
    with torch.random.fork_rng():
        draw()
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert generator.device.type == "cuda"
    third = draw(generator=generator)
    assert draw(generator=generator.manual_seed(3)) == third


def pinning() -> None:
    """Pinned memory is plain memory that says it is pinned."""
    pinned = torch.ones(3).pin_memory()
    assert pinned.is_pinned()
    assert not torch.ones(3).is_pinned()
    assert pinned.to("cuda", non_blocking=True).tolist() == [1.0] * 3
    assert torch.empty(3, pin_memory=True).shape == (3,)
    for workers in (0, 1):
        loader = DataLoader(torch.arange(4.0), 2, pin_memory=True, num_workers=workers)
        batches = [batch.cuda(non_blocking=True) for batch in loader]
        assert torch.cat(batches).tolist() == [0.0, 1.0, 2.0, 3.0]


def checkpoints() -> None:
    """A file of tensors is that of a GPU, and goes wherever `map_location` says."""
    x = torch.arange(4.0).cuda()
    file = io.BytesIO()
    torch.save({"x": x, "part": x[1:3], "layer": nn.Linear(2, 2).cuda().state_dict()}, file)

    def load(**words: Any) -> Any:
        file.seek(0)
        return torch.load(file, **words)

    assert b"cuda:0" in file.getvalue()
    for where in (None, "cuda", "cuda:0", torch.device("cuda"), lambda s, _: s.cuda(0)):
        loaded = load(map_location=where)
        assert str(loaded["x"].device) == "cuda:0"
        assert loaded["part"].tolist() == [1.0, 2.0]
        assert loaded["x"].untyped_storage() is not None
    for where in ("cpu", {"cuda:0": "cpu"}, lambda s, _: s):
        assert load(map_location=where)["x"].device.type == "cpu"
    for made in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert made.device == x.device
        assert made.tolist() == x.tolist()
    from_cpu = io.BytesIO()
    torch.save(torch.ones(2), from_cpu)
    from_cpu.seek(0)
    assert torch.load(from_cpu, map_location="cuda:0").is_cuda


def switches() -> None:
    """The switches of CUDA's libraries are accepted."""
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.enable_flash_sdp(True)
    assert torch.backends.cuda.is_built()
    query = torch.randn(1, 2, 4, 8).cuda()
    kernels = torch.nn.attention.SDPBackend
    with torch.nn.attention.sdpa_kernel([kernels.FLASH_ATTENTION, kernels.MATH]):
        out = nn.functional.scaled_dot_product_attention(query, query, query)
    assert out.shape == query.shape
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        query + 1
    assert any(event.key == "aten::add" for event in profile.key_averages())
    assert torch.cuda.nccl.version() >= (2, 10)


def mixed_precision() -> None:
    """`torch.autocast("cuda")` in all its spellings is the device's."""
    x = torch.ones(2, 2, device="cuda")
    spellings: list[Any] = [
        lambda: torch.autocast("cuda"),
        lambda: torch.amp.autocast(device_type="cuda", dtype=torch.float16),
        torch.cuda.amp.autocast,
    ]
    for make in spellings:
        with make():
            assert torch.is_autocast_enabled()
            assert (x @ x).dtype is torch.float16
            assert (x @ x).softmax(-1).dtype is torch.float32
            with torch.autocast("cuda", enabled=False):
                assert (x @ x).dtype is torch.float32
            with torch.autocast("cuda", dtype=torch.float32):
                assert (x @ x).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ x).dtype is torch.float32
    assert not torch.is_autocast_enabled("cuda")
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    weight = nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [1.0, 1.0]
    assert scaler.get_scale() == 4.0


def compiled() -> None:
    """`torch.compile`, as scripts write it, trains as what it compiles does."""
    torch.manual_seed(0)
    plain: Any = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2)
    ).cuda()
    model: Any = torch.compile(copy.deepcopy(plain), mode="max-autotune", fullgraph=True)
    inputs = torch.randn(8, 4, device="cuda")
    losses = []
    for each in (plain, model):
        optimizer = torch.optim.AdamW(each.parameters(), lr=0.1, weight_decay=0.1)
        step: Any = optimizer.step if each is plain else torch.compile(optimizer.step)
        losses.append([])
        for _ in range(4):
            optimizer.zero_grad()
            loss = each(inputs).square().mean()
            loss.backward()
            step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4), losses
    nodes = rt.metrics()["recorded_nodes"]
    with torch.no_grad():
        model.eval()(inputs)
    assert rt.metrics()["recorded_nodes"] == nodes + 1


def traced_devices() -> None:
    """Traced code sees the device as the script does, and makes its tensors there."""

    def doubled(x: torch.Tensor) -> torch.Tensor:
        factor = 2 if x.is_cuda and x.device.type == "cuda" and str(x.device) == "cuda:0" else 0
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            one = (x[None] @ x[:, None]).dtype is torch.bfloat16
        more = torch.zeros(3, device=x.device) + torch.arange(3, device="cuda").to(x.device)
        return factor * one * (x + more)

    x = torch.ones(3, device="cuda")
    for backend in ("inductor", "cudagraphs", "trcomp"):
        function: Any = torch.compile(doubled, backend=backend, fullgraph=True)
        assert function(x).tolist() == [2.0, 4.0, 6.0]
        torch._dynamo.reset()


def scripted() -> None:
    """`torch.jit.script` still knows torch's own functions."""

    def padded(x: torch.Tensor, count: int) -> torch.Tensor:
        return torch.cat([x, torch.zeros(count)])

    script: Any = torch.jit.script
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert script(padded)(torch.ones(1), 2).tolist() == [1.0, 0.0, 0.0]


def default_types() -> None:
    """The spelling before `set_default_device`."""
    torch.set_default_tensor_type("torch.cuda.DoubleTensor")
    made = torch.ones(2)
    torch.set_default_tensor_type("torch.FloatTensor")
    assert (made.dtype, made.device.type) == (torch.float64, "cuda")
    assert torch.ones(1).device.type == "cpu"


def refusals() -> None:
    """What cannot run says what to do instead."""
    function: Any = nn.Linear(2, 2)
    extension: Any = importlib.import_module("torch.utils.cpp_extension")
    comm: Any = importlib.import_module("torch.cuda.comm")
    cases: list[tuple[Any, str]] = [
        (torch.cuda.CUDAGraph, "Call the function itself"),
        (lambda: torch.cuda.graph(None), "Call the function itself"),
        (lambda: torch.cuda.make_graphed_callables(function, ()), "Call the function itself"),
        (lambda: comm.broadcast(torch.ones(1), [0]), "one rank per device"),
        (lambda: torch.cuda.nccl.all_reduce([]), "one rank per device"),
        (lambda: extension.CUDAExtension("a", ["a.cu"]), "enabled=False"),
        (lambda: extension.load("a", ["a.cu"]), "enabled=False"),
        (lambda: extension.load_inline("a", "", "code"), "enabled=False"),
        (torch.cuda.MemPool, "leave the call out"),
    ]
    for ask, instead in cases:
        with pytest.raises(UnsupportedError, match=instead):
            ask()


CHECKS = [
    devices,
    placement,
    modules,
    printing,
    memory,
    streams,
    randomness,
    pinning,
    checkpoints,
    switches,
    mixed_precision,
    compiled,
    traced_devices,
    scripted,
    default_types,
    refusals,
]
