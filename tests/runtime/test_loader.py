"""The prefetching loader: order of batches and step marks, errors, structure, clean ends, forks."""

from __future__ import annotations

import gc
import threading
import traceback
import warnings
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset

import trcomp.runtime as rt
from tests.runtime.rank_scripts import run_ranks, run_script
from trcomp.errors import ForkedProcessError, SpecError
from trcomp.runtime.batches import map_tensors, num_samples
from trcomp.runtime.metrics import counters
from trcomp.runtime.prefetch import PrefetchLoader

pytestmark = pytest.mark.runtime

Pair = namedtuple("Pair", ["inputs", "labels"])


class Encoding(UserDict):  # type: ignore[type-arg]
    """Stands for transformers' BatchEncoding: a UserDict that carries more than its items."""

    def __init__(self, data: dict[str, Any], note: str = "") -> None:
        super().__init__(data)
        self.note = note


class Ordered(OrderedDict):  # type: ignore[type-arg]
    pass


@dataclass(frozen=True)
class Sample:
    inputs: torch.Tensor
    name: str


class Numbers(Dataset[torch.Tensor]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


class Spoilt(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            raise KeyError("sample 5 is spoilt")
        return super().__getitem__(index)


class OnDevice(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(1, device="xla")


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "trcomp-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not prefetch_threads()


def recorded(source: Any, **words: Any) -> tuple[PrefetchLoader, list[str]]:
    """A loader whose moves do nothing and whose step marks are written down."""
    events: list[str] = []
    return PrefetchLoader(source, lambda b: b, lambda: events.append("step"), **words), events


def test_a_step_mark_comes_after_each_batch_and_none_before_the_first() -> None:
    loader, events = recorded([1, 2, 3])
    for batch in loader:
        events.append(f"batch {batch}")
    assert events == ["batch 1", "step", "batch 2", "step", "batch 3", "step"]


def test_marks_every_few_batches_and_at_the_end() -> None:
    loader, events = recorded([1, 2, 3], batches_per_step=2)
    for batch in loader:
        events.append(f"batch {batch}")
    assert events == ["batch 1", "batch 2", "step", "batch 3", "step"]


@given(st.lists(st.integers(), max_size=20), st.integers(1, 5))
def test_all_batches_arrive_once_in_order(items: list[int], depth: int) -> None:
    loader, _ = recorded(items, prefetch=depth)
    assert list(loader) == items
    assert list(loader) == items, "a second epoch"


def test_keeps_no_more_batches_ahead_than_asked() -> None:
    taken: list[int] = []

    def source() -> Iterator[int]:
        for index in range(20):
            taken.append(index)
            yield index

    loader, _ = recorded(source(), prefetch=2)
    iterator = iter(loader)
    next(iterator)
    assert len(taken) <= 4  # one handed over, two ready, one in the making
    iterator.close()


def test_the_next_batch_is_made_during_the_step() -> None:
    second_made = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        second_made.set()
        yield 2

    loader, _ = recorded(source())
    iterator = iter(loader)
    next(iterator)
    assert second_made.wait(30)
    iterator.close()


def test_an_error_of_the_dataset_reaches_the_caller_with_its_traceback() -> None:
    loader, events = recorded(DataLoader(Spoilt(10), batch_size=2))
    seen = []
    with pytest.raises(KeyError, match="sample 5 is spoilt") as caught:
        for batch in loader:
            seen.append(batch.shape[0])
    assert seen == [2, 2]
    assert "__getitem__" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert events == ["step", "step"]


def test_an_error_of_the_move_reaches_the_caller() -> None:
    def move(batch: Any) -> Any:
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        list(PrefetchLoader([1], move, lambda: None))


def test_an_early_break_ends_the_thread_and_a_new_epoch_starts_afresh() -> None:
    loader, _ = recorded(DataLoader(Numbers(100), batch_size=2))
    for _ in range(3):
        for batch in loader:
            assert batch[0].item() == 0
            break
        assert not prefetch_threads()
    assert len(list(loader)) == 50


def test_a_loader_that_fails_to_start_raises_in_the_caller() -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            raise RuntimeError("no data")

    loader, _ = recorded(Broken())
    with pytest.raises(RuntimeError, match="no data"):
        next(iter(loader))


def test_two_iterations_at_once_do_not_disturb_each_other() -> None:
    loader, _ = recorded([1, 2, 3])
    assert [(a, b) for a in loader for b in loader] == [
        (a, b) for a in (1, 2, 3) for b in (1, 2, 3)
    ]


def test_length_and_attributes_are_the_loaders() -> None:
    source = DataLoader(Numbers(10), batch_size=3)
    loader, _ = recorded(source)
    assert len(loader) == 4
    assert loader.dataset is source.dataset
    assert loader.batch_size == 3
    assert loader.sampler is source.sampler
    with pytest.raises(AttributeError, match="no_such_word"):
        _ = loader.no_such_word


def test_an_iterable_dataset_has_no_length() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    loader, _ = recorded(DataLoader(Stream(), batch_size=None))
    assert list(loader) == [0, 1, 2]
    with pytest.raises(TypeError):
        len(loader)


def test_counts_that_make_no_sense_are_refused_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        recorded([1], prefetch=0, batches_per_step=-1)
    assert len(caught.value.problems) == 2


def test_time_waited_and_samples_are_counted() -> None:
    waited, samples = counters.input_wait_seconds, counters.samples
    loader, _ = recorded(DataLoader(Numbers(10), batch_size=4))
    list(loader)
    assert counters.samples - samples == 10
    assert counters.input_wait_seconds > waited


STRUCTURES = [
    torch.ones(2),
    [torch.ones(2), 3],
    (torch.ones(2), "name"),
    Pair(torch.ones(2), torch.zeros(2)),
    {"a": torch.ones(2), "b": [torch.ones(1)]},
    Ordered(b=torch.ones(2), a=torch.ones(2)),
    Encoding({"ids": torch.ones(2)}, note="kept"),
    Sample(torch.ones(2), "kept"),
    None,
    "text",
]


@pytest.mark.parametrize("batch", STRUCTURES, ids=lambda b: type(b).__name__)
def test_structure_is_kept_and_the_batch_untouched(batch: Any) -> None:
    moved = map_tensors(batch, lambda tensor: tensor + 1)
    assert type(moved) is type(batch)
    before, after = torch.utils._pytree.tree_flatten(batch), torch.utils._pytree.tree_flatten(moved)
    if isinstance(batch, torch.Tensor | list | tuple | dict):
        assert before[1] == after[1]
    if isinstance(batch, Encoding):
        assert moved.note == "kept"
        assert batch["ids"].tolist() == [1, 1] and moved["ids"].tolist() == [2, 2]
    if isinstance(batch, Sample):
        assert moved.name == "kept"
        assert batch.inputs.tolist() == [1, 1] and moved.inputs.tolist() == [2, 2]


def test_a_packed_sequence_keeps_its_batch_sizes_on_the_cpu() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = map_tensors(packed, lambda tensor: tensor.to("meta"))
    assert moved.data.device.type == "meta"
    assert moved.batch_sizes.tolist() == [2, 2, 1]


def test_transformers_batch_encoding_keeps_its_type() -> None:
    transformers = pytest.importorskip("transformers")
    batch = transformers.BatchEncoding({"input_ids": torch.ones(2, 3)})
    moved = map_tensors(batch, lambda tensor: tensor + 1)
    assert type(moved) is transformers.BatchEncoding
    assert moved.input_ids.sum() == 12 and batch.input_ids.sum() == 6


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.ones(4, 2), 4),
        ((torch.ones(3), torch.ones(5)), 3),
        ({"name": "x", "ids": torch.ones(6)}, 6),
        ([], 0),
        (torch.tensor(1.0), 0),
        ("text", 0),
    ],
)
def test_samples_of_a_batch(batch: Any, samples: int) -> None:
    assert num_samples(batch) == samples


# On the device.


def test_batches_lie_on_the_device_and_hold_their_values() -> None:
    loader = rt.DeviceLoader(DataLoader(Numbers(6), batch_size=2))
    batches = list(loader)
    assert all(batch.device == rt.device() for batch in batches)
    assert [batch.flatten().tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]


def test_the_step_mark_computes_what_the_step_recorded() -> None:
    total = torch.zeros(1, device=rt.device())
    executions, early = counters.executions, counters.early_syncs
    for batch in rt.DeviceLoader(DataLoader(Numbers(4), batch_size=1), rt.device()):
        total += batch.sum()
    assert counters.executions - executions >= 4
    assert counters.early_syncs == early
    assert total.item() == 6


def test_a_batch_that_changes_after_it_was_handed_over_does_not_change_on_the_device() -> None:
    held = torch.ones(1000)

    def source() -> Iterator[torch.Tensor]:
        for value in range(3):
            held.fill_(value)
            yield held

    values = [batch.sum().item() for batch in rt.DeviceLoader(source(), prefetch=2)]
    assert values == [0, 1000, 2000]


def test_forked_workers_start_under_a_running_runtime_without_a_word() -> None:
    torch.ones(2, device=rt.device()).sum().item()  # the runtime runs
    loader = rt.DeviceLoader(DataLoader(Numbers(8), batch_size=2, num_workers=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert sum(batch.sum().item() for batch in loader) == 28


def test_a_plain_data_loader_forks_without_a_word_too(tmp_path: Path) -> None:
    script = """
    import torch
    import trcomp.runtime as rt

    torch.ones(2, device=rt.device()).sum().item()
    print(len(list(torch.utils.data.DataLoader(range(4), num_workers=2))))
    """
    ended = run_script(script, tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "4\n", "")


def test_the_loader_may_be_the_first_to_use_the_device(tmp_path: Path) -> None:
    script = """
    import torch
    import trcomp.runtime as rt

    batches = iter(rt.DeviceLoader([torch.ones(2)] * 2))
    total = torch.zeros(2, device=rt.device()) + next(batches)
    print(total.tolist(), rt.world_size())
    """
    for ended in run_ranks(script, tmp_path):
        assert "[1.0, 1.0] 2" in ended.text
        assert ended.code == 0, ended.text


def test_a_forked_worker_that_touches_the_device_gets_a_clear_error() -> None:
    torch.ones(2, device=rt.device()).sum().item()
    loader = rt.DeviceLoader(DataLoader(OnDevice(2), batch_size=1, num_workers=1))
    with pytest.raises(ForkedProcessError, match="forked process"):
        list(loader)
    gc.collect()
