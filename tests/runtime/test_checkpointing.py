"""State that leaves the process and comes back: files, other processes, other libraries."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import trcomp.runtime as rt
from trcomp.errors import UnsupportedError
from trcomp.runtime.device import DEVICE

pytestmark = pytest.mark.runtime
xla = torch.xla  # type: ignore[attr-defined]


class Run:
    """A training run with dropout, a schedule, a scaler and a shuffled order of batches."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(5, 16),
            torch.nn.BatchNorm1d(16),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(16, 2),
        ).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.scaler = torch.amp.GradScaler("xla", init_scale=64.0, growth_interval=3)
        self.averaged = torch.optim.swa_utils.AveragedModel(self.model)

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            x = torch.randn(8, 5)[torch.randperm(8)].to(DEVICE)
            noise = torch.rand(8, 2, device=DEVICE)
            self.optimizer.zero_grad()
            with torch.autocast("xla", dtype=torch.bfloat16):
                loss = (self.model(x) - noise).square().mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.schedule.step()
            self.averaged.update_parameters(self.model)
            rt.sync()
            losses.append(loss.item())
        return losses

    def parts(self) -> dict[str, Any]:
        names = ("model", "optimizer", "schedule", "scaler", "averaged")
        return {name: getattr(self, name) for name in names}

    def save(self, path: Path) -> None:
        state = {name: part.state_dict() for name, part in self.parts().items()}
        state["random"] = {"host": torch.get_rng_state(), "device": xla.get_rng_state()}
        torch.save(state, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, map_location="cpu", weights_only=True)
        for name, part in self.parts().items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["random"]["host"])
        xla.set_rng_state(state["random"]["device"])


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    straight = Run()
    straight.train(3)
    straight.save(tmp_path / "state.pt")
    losses = straight.train(4)
    torch.manual_seed(999)
    resumed = Run()
    resumed.train(1)
    resumed.load(tmp_path / "state.pt")
    assert resumed.train(4) == losses
    for name in ("model", "averaged"):
        left, right = (run.parts()[name].state_dict() for run in (straight, resumed))
        assert all(torch.equal(left[k].cpu(), right[k].cpu()) for k in left)
    assert resumed.scaler.state_dict() == straight.scaler.state_dict()
    assert resumed.schedule.get_last_lr() == straight.schedule.get_last_lr()


def test_a_file_written_on_the_device_is_read_where_there_is_none(tmp_path: Path) -> None:
    base = torch.arange(6.0, device=DEVICE)
    torch.save({"base": base, "view": base[2:], "tied": base.view(2, 3)}, tmp_path / "f.pt")
    host = torch.load(tmp_path / "f.pt", map_location="cpu", weights_only=True)
    host["base"][3] = -1
    assert host["view"][1] == host["tied"][1, 0] == -1  # sharing is in the file
    back = torch.load(tmp_path / "f.pt", weights_only=True)
    back["base"][3] = -2.0
    assert back["view"][1].item() == back["tied"][1, 0].item() == -2
    assert back["base"].device == DEVICE


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_is_written_and_read_by_one_process(tmp_path: Path) -> None:
    def made(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
        model = torch.nn.Sequential(*layers).to(DEVICE)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
        loss = model(torch.arange(6.0, device=DEVICE).view(2, 3)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))

    run = made(0)
    train(*run)
    dcp.save(state(*run), checkpoint_id=tmp_path / "saved")
    dcp.async_save(state(*run), checkpoint_id=tmp_path / "later").result()
    losses = [train(*run) for _ in range(3)]
    for name in ("saved", "later"):
        again = made(1)
        loaded = state(*again)
        dcp.load(loaded, checkpoint_id=tmp_path / name)
        set_state_dict(
            *again,
            model_state_dict=loaded["model"],
            optim_state_dict=loaded["optimizer"],
        )
        assert [train(*again) for _ in range(3)] == losses
        assert all(p.device == DEVICE for p in again[0].parameters())


def test_tied_weights_are_in_a_file_once(tmp_path: Path) -> None:
    embed, head = torch.nn.Embedding(100, 64), torch.nn.Linear(64, 100, bias=False)
    head.weight = embed.weight
    model = torch.nn.Sequential(embed, head).to(DEVICE)
    torch.save(model.state_dict(), tmp_path / "tied.pt")
    assert 25_600 <= (tmp_path / "tied.pt").stat().st_size < 30_000
    torch.save(model, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert whole[0].weight is whole[1].weight
    assert whole[0].weight.device == DEVICE


def test_pickles_and_shallow_copies() -> None:
    for x in (
        torch.arange(6.0, device=DEVICE)[2:4],
        torch.ones(2, 3, dtype=torch.bfloat16, device=DEVICE).t(),
        torch.nn.Parameter(torch.ones(2, device=DEVICE)),
        torch.tensor([1 + 2j], device=DEVICE).conj(),
        torch.tensor(3, device=DEVICE),
        torch.empty(0, 2, device=DEVICE),
    ):
        back = pickle.loads(pickle.dumps(x))
        assert type(back) is type(x)
        assert (back.dtype, back.device, back.requires_grad) == (x.dtype, DEVICE, x.requires_grad)
        assert back.tolist() == x.tolist()
    x = torch.ones(2, device=DEVICE)
    copy.copy(x).mul_(3)
    assert x.tolist() == [3, 3]  # as on every device


def test_state_dicts_assign_and_refuse_as_torch_does() -> None:
    source, target = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).to(DEVICE)
    target.load_state_dict(source.state_dict(), assign=False)
    assert target.weight.device == DEVICE
    assert torch.equal(target.weight.detach().cpu(), source.weight)
    target.load_state_dict({k: v.to(DEVICE) for k, v in source.state_dict().items()}, assign=True)
    assert target.weight.device == DEVICE and target.weight.requires_grad
    with pytest.raises(RuntimeError, match="size mismatch"):
        target.load_state_dict(torch.nn.Linear(2, 3).state_dict())


def test_a_module_is_built_on_meta_and_filled_on_the_device() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(3, 2)
    model.to_empty(device=DEVICE)
    model.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
    assert model(torch.ones(1, 3, device=DEVICE)).tolist() == [[3, 3]]
    with torch.device("xla"):
        assert torch.nn.Linear(3, 2).weight.device == DEVICE
    assert torch.nn.Linear(3, 2, device="xla", dtype=torch.bfloat16).bias.dtype == torch.bfloat16


def test_safetensors_are_written_and_read(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2)).to(DEVICE)
    model.bfloat16()
    path = str(tmp_path / "model.safetensors")
    safetensors.save_model(model, path)
    again = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2)).to(DEVICE).bfloat16()
    safetensors.load_model(again, path)
    for left, right in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(left.detach().cpu(), right.detach().cpu())
        assert right.device == DEVICE
    tied = {"a": torch.ones(2, device=DEVICE)}
    tied["b"] = tied["a"]
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors.save_file(tied, str(tmp_path / "tied"))


def _child(tensor: torch.Tensor, model: torch.nn.Module, answers: Any) -> None:
    tied = model[0].weight is model[1].weight  # type: ignore[index]
    answers.put((tensor.tolist(), str(tensor.device), tensor.dtype, tied))
    answers.put(tensor.float() + 1)
    answers.get()


@pytest.mark.e2e
def test_tensors_and_modules_are_sent_to_a_spawned_process_and_back() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).to(DEVICE)
    model[1].weight = model[0].weight
    view = torch.arange(4, device=DEVICE).bfloat16()[1:]
    context = mp.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_child, args=(view, model, answers))
    process.start()
    assert answers.get(timeout=100) == ([1, 2, 3], "xla:0", torch.bfloat16, True)
    assert answers.get(timeout=100).tolist() == [2, 3, 4]
    answers.put(None)
    process.join(60)
    assert process.exitcode == 0


def test_a_tensor_with_a_history_is_not_sent() -> None:
    from multiprocessing.reduction import ForkingPickler

    x = torch.ones(2, device=DEVICE, requires_grad=True)
    with pytest.raises(RuntimeError, match="detach"):
        ForkingPickler.dumps(x * 2)
    assert ForkingPickler.loads(ForkingPickler.dumps(x)).requires_grad


def test_other_libraries_get_a_copy_when_asked_for_one_and_a_clear_error_otherwise() -> None:
    x = torch.arange(3.0, device=DEVICE)
    host = x.cpu().numpy()
    x.add_(1)
    assert host.tolist() == [0, 1, 2]
    assert x.numpy(force=True).tolist() == [1, 2, 3]
    assert torch.as_tensor(host, device=DEVICE).tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match=r"Tensor\.cpu\(\)"):
        np.asarray(x)
    for ask in (torch.from_dlpack, np.from_dlpack, torch.utils.dlpack.to_dlpack, torch.to_dlpack):
        with pytest.raises(UnsupportedError, match=r"tensor\.detach\(\)\.cpu\(\)"):
            ask(x)  # type: ignore[operator]
    assert torch.from_dlpack(np.arange(3)).tolist() == [0, 1, 2]
    assert torch.from_dlpack(torch.ones(1)).tolist() == [1]


def test_a_deep_copy_of_a_run_goes_its_own_way() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 3, device=DEVICE)).square().sum().backward()
        optimizer.step()
        rt.sync()

    step(model, optimizer)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    before = model.weight.tolist()
    step(twin, twin_optimizer)
    assert model.weight.tolist() == before
    step(model, optimizer)
    assert model.weight.tolist() == twin.weight.tolist() != before
