"""`torch.xla` and `torch.accelerator`: what torch's own code asks of a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import trcomp.runtime as rt
from trcomp.errors import DeviceError
from trcomp.runtime.device import DEVICE
from trcomp.runtime.forks import quiet_fork
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime
xla = torch.xla  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def settled() -> None:
    rt.sync(wait=True)


def test_there_is_one_stream_whoever_makes_it() -> None:
    stream = torch.Stream(device="xla")
    assert stream == torch.Stream() == xla.Stream() == xla.current_stream() == xla.default_stream()
    assert stream == torch.accelerator.current_stream()
    assert isinstance(stream, torch.Stream) and stream.device == DEVICE
    assert not isinstance(stream, torch.Event) and not issubclass(int, torch.Stream)
    with xla.stream(xla.Stream(priority=-1)) as inner, inner:
        xla.set_stream(inner)
        torch.accelerator.set_stream(inner)
    with pytest.raises(DeviceError, match="xla:0 alone"):
        torch.Stream(device="xla:1")


def test_streams_in_order_need_no_waits() -> None:
    x, before = torch.ones(3, device=DEVICE), counters.early_syncs
    side = xla.Stream()
    side.wait_stream(xla.current_stream())
    with xla.stream(side):
        y = x * 2
        y.record_stream(side)
        event = side.record_event()
    xla.current_stream().wait_event(event)
    event.wait()
    assert counters.early_syncs == before
    assert (y + 1).tolist() == [3, 3, 3]


def test_waiting_for_an_event_computes_what_was_recorded_before_it() -> None:
    before = counters.executions
    event = torch.Event(device="xla")
    assert event.query()  # not recorded: there is nothing to wait for
    event.synchronize()
    assert counters.executions == before
    y = torch.ones(3, device=DEVICE) * 5
    event.record()
    assert counters.executions == before
    event.synchronize()
    assert counters.executions == before + 1
    assert event.query()
    z = y + 1
    while not event.query():
        pass
    assert z.tolist() == [6, 6, 6]


def test_polling_a_stream_ends() -> None:
    y = torch.ones(3, device=DEVICE) + 1
    while not xla.current_stream().query():
        pass
    assert y.tolist() == [2, 2, 2]
    z = y + 1
    xla.current_stream().synchronize()
    assert z.tolist() == [3, 3, 3]


def test_the_time_between_events_is_that_of_the_work_between_them() -> None:
    begin, end = (torch.Event(device="xla", enable_timing=True) for _ in range(2))
    x = torch.ones(300, 300, device=DEVICE)
    begin.record()
    for _ in range(20):
        x = x @ x / 300
    end.record()
    torch.accelerator.synchronize()
    elapsed = begin.elapsed_time(end)
    assert 0.05 < elapsed < 60_000
    assert elapsed == -end.elapsed_time(begin)
    with pytest.raises(ValueError, match="enable_timing"):
        begin.elapsed_time(torch.Event(device="xla"))
    with pytest.raises(ValueError, match="recorded"):
        begin.elapsed_time(xla.Event(enable_timing=True))


def test_memory_is_counted() -> None:
    xla.reset_peak_memory_stats()
    before = xla.memory_allocated()
    x = torch.ones(1000, 1000, device=DEVICE)
    rt.sync(wait=True)
    assert xla.memory_allocated() - before == pytest.approx(4e6, rel=0.01)
    assert torch.accelerator.memory_allocated() == xla.memory_allocated()
    assert x.sum().item() == 1e6
    del x
    rt.sync(wait=True)
    assert xla.memory_allocated() - before < 1e6
    assert xla.max_memory_allocated() - before >= 4e6
    assert torch.accelerator.max_memory_allocated() - before >= 4e6
    torch.accelerator.reset_peak_memory_stats()
    assert xla.max_memory_allocated() - before < 1e6
    assert xla.memory_reserved() >= xla.memory_allocated()
    assert xla.memory_stats()["allocated_bytes.all.current"] == xla.memory_allocated()
    for empty in (xla.empty_cache, torch.accelerator.empty_cache):
        empty()


def test_the_device_is_described() -> None:
    properties = xla.get_device_properties()
    assert properties.name == xla.get_device_name(0)
    assert (properties.major, properties.minor) == xla.get_device_capability("xla:0")
    free, total = xla.mem_get_info()
    assert 0 < free <= total == properties.total_memory
    assert torch.accelerator.get_memory_info()[1] == total
    assert torch.bfloat16 in torch.accelerator.get_device_capability()["supported_dtypes"]
    assert xla.is_bf16_supported()
    with pytest.raises(DeviceError):
        xla.get_device_properties(1)


def test_torch_accelerator_is_the_device() -> None:
    assert torch.accelerator.is_available()
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None and accelerator.type == "xla"
    torch.accelerator.set_device_index(0)
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == 0
    x = torch.ones(2, device=torch.accelerator.current_accelerator()) * 3
    before = counters.executions
    torch.accelerator.synchronize()
    assert counters.executions == before + 1
    assert x.tolist() == [3, 3]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_pins_memory_gives_its_batches(workers: int) -> None:
    loader: Any = DataLoader(torch.arange(6.0), batch_size=3, pin_memory=True, num_workers=workers)
    with quiet_fork():
        batches = list(loader)
    got = [batch.to(DEVICE, non_blocking=True).sum().item() for batch in batches]
    assert got == [3, 12]
