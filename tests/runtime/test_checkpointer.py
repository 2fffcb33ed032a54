"""The Checkpointer in one process: what it writes, what it trusts, where an epoch goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

import trcomp.runtime as rt
from tests.runtime.rank_scripts import found_by_ranks
from trcomp import SpecError
from trcomp.checkpoint import Checkpointer

pytestmark = pytest.mark.runtime


@pytest.fixture(autouse=True)
def _sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Read(Dataset[torch.Tensor]):
    """Ten numbers; notes which were read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read.append(index)
        return torch.tensor(float(index))


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor(float(index)) for index in range(10))


def saved(place: Path, steps: int, **words: Any) -> torch.nn.Linear:
    """A model with a checkpoint per step."""
    model = torch.nn.Linear(2, 2)
    checkpointer = Checkpointer(place, every=1, model=model, **words)
    for _ in range(steps):
        with torch.no_grad():
            model.weight.add_(1)
        checkpointer.step()
    checkpointer.close()
    return model


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_the_newest_are_kept_and_the_last_is_resumed(tmp_path: Path) -> None:
    model = saved(tmp_path, 5, keep=2)
    assert names(tmp_path) == ["step-000000004.pt", "step-000000005.pt"]
    other = torch.nn.Linear(2, 2)
    checkpointer = Checkpointer(tmp_path, model=other)
    assert checkpointer.resume() == checkpointer.steps == 5
    assert torch.equal(other.weight, model.weight)
    assert Checkpointer(tmp_path / "new", model=other).resume() is None


def test_values_are_those_of_the_step_although_training_goes_on(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    checkpointer = Checkpointer(tmp_path, model=model)
    before = model.weight.detach().clone()
    checkpointer.save()
    with torch.no_grad():
        model.weight.zero_()
    checkpointer.close()
    checkpointer.resume()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("damage", ["cut off", "empty", "changed"])
def test_a_damaged_file_is_named_and_the_one_before_is_used(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, 2)
    newest = tmp_path / "step-000000002.pt"
    whole = newest.read_bytes()
    middle = len(whole) // 2
    newest.write_bytes(
        {
            "cut off": whole[:middle],
            "empty": b"",
            "changed": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        }[damage]
    )
    # What a killed process leaves is none, and does not stay.
    (tmp_path / ".step-000000003.pt.rank-0.part").write_bytes(whole)
    assert Checkpointer(tmp_path, model=torch.nn.Linear(2, 2)).resume() == 1
    assert f"{newest} is damaged and not used" in capsys.readouterr().err
    assert names(tmp_path) == ["step-000000001.pt", "step-000000002.pt.broken"]


def test_a_failed_write_is_raised_at_the_next_call(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    checkpointer = Checkpointer(place, every=1, model=torch.nn.Linear(2, 2))
    checkpointer.step()
    with pytest.raises(FileExistsError) as caught:
        checkpointer.step()
    assert caught.value.__notes__ == ["The checkpoint of step 1 could not be written."]


def test_what_cannot_be_saved_is_refused_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        Checkpointer(tmp_path, every=0, keep="two", losses=[1.0])  # type: ignore[arg-type]
    text = str(caught.value)
    assert "every: got 0" in text and "keep: got 'two'" in text
    assert "losses: got 'list'" in text and "load_state_dict" in text


def test_nothing_is_saved_that_could_run_code_when_it_is_loaded(tmp_path: Path) -> None:
    class Odd(torch.nn.Linear):
        def get_extra_state(self) -> Any:
            return {"at": Path("here")}

    with pytest.raises(SpecError, match=r"odd\['_extra_state'\]\['at'\]: got 'PosixPath'"):
        Checkpointer(tmp_path, odd=Odd(2, 2)).save()


def test_checkpoints_of_other_ranks_or_things_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    with pytest.raises(SpecError, match=r"step-000000001.pt: got \['net'\].* it holds model"):
        Checkpointer(tmp_path, net=torch.nn.Linear(2, 2)).resume()
    parts = tmp_path / "parts"
    parts.mkdir()
    (tmp_path / "step-000000001.pt").rename(parts / "step-000000001.rank-0-of-2.pt")
    with pytest.raises(SpecError, match="one whole file of a step can be resumed"):
        Checkpointer(parts, model=torch.nn.Linear(2, 2)).resume()


def _orders(
    place: Path, make: Callable[[], DataLoader[Any]], device: bool = False
) -> list[list[float]]:
    """Two epochs of which the second is resumed at its fourth batch."""

    def run(resume: bool) -> list[list[float]]:
        torch.manual_seed(7)
        source: Any = rt.DeviceLoader(make()) if device else make()
        checkpointer = Checkpointer(place, every=8 if not resume else None)
        if resume:
            assert checkpointer.resume() == 8
        found: list[list[float]] = [[], []]
        for epoch in checkpointer.epochs(2):
            for batch in checkpointer.batches(source):
                found[epoch].append(batch.sum().item() + torch.rand(()).item())
                checkpointer.step()
        return found

    whole, rest = run(False), run(True)
    assert rest == [[], whole[1][3:]]
    return whole


@pytest.mark.parametrize("device", [False, True])
def test_a_resumed_epoch_has_the_same_order_and_reads_only_what_is_left(
    tmp_path: Path, device: bool
) -> None:
    data = Read()
    _orders(tmp_path, lambda: DataLoader(data, batch_size=2, shuffle=True), device)
    assert len(data.read) == 10 + 10 + 4


def test_an_epochs_order_may_follow_from_a_generator_of_its_own(tmp_path: Path) -> None:
    def loader() -> DataLoader[Any]:
        sampler = RandomSampler(Read(), generator=torch.Generator().manual_seed(3))
        return DataLoader(Read(), batch_size=2, sampler=sampler)

    whole = _orders(tmp_path, loader)
    assert whole[0] != whole[1]


@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called")
def test_workers_of_a_loader_are_told_only_what_is_left(tmp_path: Path) -> None:
    loader = partial(DataLoader, Read(), batch_size=2, shuffle=True, num_workers=2)
    _orders(tmp_path / "ended", loader, True)
    # Those that outlive an epoch keep their sampler.
    kept = loader(persistent_workers=True)
    _orders(tmp_path / "kept", lambda: kept)


def test_a_stream_is_read_up_to_where_it_goes_on(tmp_path: Path) -> None:
    _orders(tmp_path, lambda: DataLoader(Stream(), batch_size=2))


def test_an_epoch_that_was_saved_at_its_end_is_done(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    for _ in checkpointer.epochs(1):
        for _ in checkpointer.batches([1, 2]):
            checkpointer.step()
        checkpointer.save()
    again = Checkpointer(tmp_path)
    assert again.resume() == 2
    assert list(again.epochs(3)) == [1, 2]


def test_a_process_of_plain_torch_needs_no_runtime(tmp_path: Path) -> None:
    code = f"""
        import multiprocessing
        import sys
        import time
        import torch
        from trcomp.checkpoint import Checkpointer

        scaler = torch.amp.GradScaler("cpu")
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.Adam(model.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))
        things = dict(model=model, optimizer=optimizer, schedule=schedule, scaler=scaler)
        checkpointer = Checkpointer({str(tmp_path)!r}, every=2, **things)
        print(checkpointer.resume())
        for _ in checkpointer.batches(range(3)):
            checkpointer.step()
        assert not {{"jax", "trcomp.runtime"}} & set(sys.modules)
        # What it forks ends when it is told to.
        context = multiprocessing.get_context("fork")
        runs = context.Event()
        child = context.Process(target=lambda: runs.set() or time.sleep(600))
        child.start()
        runs.wait()
        child.terminate()
        child.join()
        assert child.exitcode == -15
    """
    script = tmp_path / "script.py"
    script.write_text("\n".join(line[8:] for line in code.strip("\n").splitlines()))
    runs = [
        subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [run.stdout for run in runs] == ["None\n", "2\n"]


_SHARDED = """
    import sys
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import trcomp.runtime as rt
    from trcomp.checkpoint import Checkpointer

    dist.init_process_group("xla")
    mesh = init_device_mesh("xla", (2,))


    def trained(steps, resume):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)).to("xla")
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        torch.manual_seed(1 + rt.rank())
        checkpointer = Checkpointer("{place}", every=2, sharded={sharded}, model=model,
                                    optimizer=optimizer)
        if resume:
            assert checkpointer.resume() == 2
        while checkpointer.steps < steps:
            optimizer.zero_grad()
            loss = model(torch.randn(4, 6).to("xla")).square().mean()
            loss.backward()
            optimizer.step()
            checkpointer.step()
        checkpointer.close()
        rt.settle()
        return [value.full_tensor().cpu() for value in model.state_dict().values()]


    whole = trained(3, False)
    rt.rendezvous("trained")
    assert all(map(torch.equal, trained(3, True), whole))
    print("FOUND 1")
"""


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [pytest.param(True, marks=pytest.mark.long), False])
def test_sharded_tensors_come_back_to_their_ranks(tmp_path: Path, sharded: bool) -> None:
    script = _SHARDED.format(place=tmp_path / "kept", sharded=sharded)
    assert found_by_ranks(script, tmp_path, 2) == [1, 1]
