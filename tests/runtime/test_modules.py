"""Modules between devices: ties, optimizers, saving, loading, copies."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch

import trcomp.runtime as rt
from trcomp.errors import DeviceError

pytestmark = pytest.mark.runtime
DEVICE = "xla"


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.embed(ids))
        return made


def _losses(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    losses = []
    for _ in range(4):
        ids = torch.tensor([1, 2], device=next(model.parameters()).device)
        loss = model(ids).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rt.sync()
        losses.append(loss.item())
    return losses


def test_tied_weights_stay_tied_and_an_optimizer_made_before_the_move_trains_them() -> None:
    runs = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        model = Tied()
        before = model.embed.weight
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model.to(device)
        assert model.head.weight is model.embed.weight is before
        assert before.device.type == device
        assert len(list(model.parameters())) == 1
        runs.append(_losses(model, optimizer))
    assert runs[1] == pytest.approx(runs[0], rel=1e-5)
    assert runs[0][0] > runs[0][-1]


def test_a_module_changes_dtype_while_a_graph_of_it_lives() -> None:
    for device in ("cpu", DEVICE):
        model = torch.nn.LayerNorm(4).to(device)
        kept = model(torch.ones(2, 4, device=device))
        model.to(torch.bfloat16)
        assert model.weight.dtype == torch.bfloat16
        assert kept.grad_fn is not None


def test_a_move_that_cannot_be_says_what_to_do() -> None:
    model = torch.nn.LayerNorm(4)
    kept = model(torch.ones(2, 4))
    with pytest.raises(RuntimeError, match="weight") as caught:
        model.to(DEVICE)
    assert isinstance(caught.value.__cause__, DeviceError)
    assert "first forward pass" in str(caught.value.__cause__)
    del kept


def _reloaded(payload: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(payload, file)
    file.seek(0)
    return torch.load(file, weights_only=True, **options)


@pytest.mark.parametrize("source", ["cpu", DEVICE])
@pytest.mark.parametrize("target", ["cpu", DEVICE, None])
def test_a_state_dict_is_saved_and_loaded_across_devices(source: str, target: str | None) -> None:
    state = {
        "half": torch.randn(3, 2).bfloat16(),
        "whole": torch.arange(6).view(2, 3).t(),
        "bits": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.empty(0, 3),
    }
    loaded = _reloaded({k: v.to(source) for k, v in state.items()}, map_location=target)
    for name, tensor in loaded.items():
        assert tensor.device.type == (target or source)
        assert tensor.dtype == state[name].dtype
        assert torch.equal(tensor.cpu(), state[name])


def test_training_goes_on_from_a_checkpoint_as_if_never_stopped() -> None:
    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = Tied().to(DEVICE)
        return model, torch.optim.Adam(model.parameters(), lr=0.05)

    model, optimizer = made()
    _losses(model, optimizer)
    saved = _reloaded({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    straight = _losses(model, optimizer)
    resumed, resumed_optimizer = made()
    resumed.load_state_dict(saved["model"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    assert resumed_optimizer.state[resumed.embed.weight]["step"].device.type == "cpu"  # type: ignore[index, union-attr]
    assert _losses(resumed, resumed_optimizer) == straight


def test_copies_share_nothing() -> None:
    model = Tied().to(DEVICE)
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embed.weight
    with torch.no_grad():
        twin.embed.weight.add_(1)
    assert not torch.equal(model.embed.weight.cpu(), twin.embed.weight.cpu())
    assert torch.equal(
        pickle.loads(pickle.dumps(model.embed.weight.detach())).cpu(), model.embed.weight.cpu()
    )


def test_storages_are_told_apart_by_address() -> None:
    a, b = torch.ones(3, device=DEVICE), torch.ones(3, device=DEVICE)
    assert a.data_ptr() != b.data_ptr()
    assert a.data_ptr() == a.view(3, 1).data_ptr() == a.detach().data_ptr()
    assert a[1:].data_ptr() == a.data_ptr() + 4
    assert a.untyped_storage().data_ptr() == a.data_ptr()


def test_a_gradient_accumulates_over_micro_batches() -> None:
    grads = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 2).to(device)
        for i in range(3):
            layer(torch.full((2, 4), float(i + 1), device=device)).sum().backward()
            rt.sync()
        grads.append(layer.weight.grad.cpu())
    torch.testing.assert_close(*grads)


def test_printing_and_reading_work_anywhere() -> None:
    x = torch.tensor([[1.5, -2.0]], device=DEVICE)
    assert "device='xla:0'" in repr(x)
    assert (x.tolist(), float(x.sum()), bool((x > 0).any())) == ([[1.5, -2.0]], -0.5, True)
    assert f"{x.max():.1f}" == "1.5"
    assert x.is_xla
    assert not torch.ones(1).is_xla
    assert x.pin_memory() is x


def test_another_index_is_refused() -> None:
    with pytest.raises(DeviceError, match="xla:0 alone"):
        torch.ones(2, device="xla:1")
