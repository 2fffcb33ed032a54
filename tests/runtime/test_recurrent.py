"""LSTM, GRU and RNN layers beyond PyTorch's samples; losses that loop over time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import trcomp.runtime as rt
from tests.runtime.agreement import assert_agrees, assert_alike, leaves, weighted
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime
DEVICE = "xla"

LAYERS: dict[str, Callable[[], nn.RNNBase]] = {
    "lstm": lambda: nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True),
    "lstm-projected": lambda: nn.LSTM(3, 4, 2, proj_size=2, batch_first=True),
    "gru": lambda: nn.GRU(3, 4, 2, bidirectional=True, batch_first=True),
    "rnn-relu": lambda: nn.RNN(3, 4, nonlinearity="relu", batch_first=True),
}


def twins(make: Callable[[], nn.Module]) -> list[tuple[nn.Module, str]]:
    """A module in float64 and its copy on the device."""
    torch.manual_seed(0)
    module = make().double()
    return [(module, "cpu"), (copy.deepcopy(module).to(DEVICE), DEVICE)]


def packed(layers: nn.Module, words: torch.Tensor) -> list[torch.Tensor]:
    """Outputs, padded again, and last states, of sequences of four lengths."""
    lengths = torch.tensor([5, 2, 4, 1])
    made, last = layers(
        pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
    )
    return [pad_packed_sequence(made, batch_first=True)[0], *leaves(last)]


@pytest.mark.parametrize("name", LAYERS)
def test_packed_sequences_and_second_derivatives(name: str) -> None:
    words = torch.randn(4, 5, 3, dtype=torch.float64)
    results = []
    for layers, device in twins(LAYERS[name]):
        given = words.to(device).requires_grad_()
        wanted = [given, *layers.parameters()]
        made = packed(layers, given)
        total = torch.stack([weighted(t) for t in made]).sum()
        first = torch.autograd.grad(total, wanted, create_graph=True)
        curved = torch.stack([grad.square().sum() for grad in first]).sum()
        second = torch.autograd.grad(curved, wanted, allow_unused=True)
        results.append([*made, *first, *(grad for grad in second if grad is not None)])
    assert_alike(results[1], results[0])


def test_a_long_layer_is_one_node_and_compiles_as_a_short_one() -> None:
    layer = nn.LSTM(8, 8).to(DEVICE)
    inputs = [torch.randn(length, 2, 8).to(DEVICE) for length in (10, 400)]
    rt.sync()
    recorded, seconds = [], []
    for given in inputs:
        before = rt.metrics()
        layer(given)[0].sum().backward()
        rt.sync()
        after = rt.metrics()
        recorded.append(after["recorded_nodes"] - before["recorded_nodes"])
        seconds.append(after["compile_seconds"] - before["compile_seconds"])
    assert recorded[1] <= recorded[0] + len(list(layer.parameters()))  # gradients added up
    assert seconds[1] < 5 * seconds[0]


def test_states_go_from_batch_to_batch() -> None:
    words = torch.randn(3, 4, 2, 3, dtype=torch.float64)
    results = []
    for layer, device in twins(lambda: nn.GRU(3, 4)):
        state, made = None, []
        for batch in words.to(device):
            out, state = layer(batch, state)
            state = state.detach()
            made.append(out)
            rt.sync()
        results.append([*made, state])
    assert_alike(results[1], results[0])


def test_cells_step_by_step() -> None:
    words = torch.randn(6, 2, 3, dtype=torch.float64)
    results = []
    for cells, device in twins(lambda: nn.ModuleList([nn.LSTMCell(3, 4), nn.GRUCell(4, 4)])):
        state: Any = None
        hidden = torch.zeros(2, 4, dtype=torch.float64, device=device)
        for word in words.to(device):
            state = cells[0](word, state)
            hidden = cells[1](state[0], hidden)
        grads = torch.autograd.grad(weighted(hidden), list(cells.parameters()))
        results.append([hidden, *grads])
    assert_alike(results[1], results[0])


def test_dropout_between_layers_repeats_with_its_seed_and_is_off_in_evaluation() -> None:
    layers = nn.LSTM(3, 64, 2, dropout=0.5).to(DEVICE)
    words = torch.randn(4, 2, 3).to(DEVICE)
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(layers(words)[0].cpu())
    assert made[0].equal(made[1])
    assert not made[0].equal(made[2])
    layers.eval()
    assert layers(words)[0].cpu().equal(layers(words)[0].cpu())


def test_autocast_runs_layers_in_half_precision() -> None:
    layers, words = nn.LSTM(3, 4).to(DEVICE), torch.randn(5, 2, 3).to(DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        made, (hidden, memory) = layers(words)
    assert {made.dtype, hidden.dtype, memory.dtype} == {torch.bfloat16}
    made.float().sum().backward()
    assert layers.weight_hh_l0.grad.dtype == torch.float32
    expected, _ = layers(words)
    torch.testing.assert_close(made.float().cpu(), expected.cpu(), rtol=5e-2, atol=2e-2)


def test_wrong_sizes_raise_what_the_cpu_raises() -> None:
    layer = nn.GRU(3, 4).to(DEVICE)
    with pytest.raises(RuntimeError, match="input"):
        layer(torch.zeros(5, 2, 7, device=DEVICE))
    with pytest.raises(RuntimeError, match="Expected hidden size"):
        layer(torch.zeros(5, 2, 3, device=DEVICE), torch.zeros(1, 3, 4, device=DEVICE))


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_of_impossible_and_empty_targets(zero_infinity: bool) -> None:
    scores = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    # The second target needs more steps than there are, the third is empty.
    targets = torch.tensor([[1, 2, 0, 0], [3, 3, 3, 3], [0, 0, 0, 0]])
    steps, counts = (4, 4, 2), (2, 4, 0)
    results = []
    for device in ("cpu", DEVICE):
        given = scores.detach().to(device).requires_grad_()
        loss = F.ctc_loss(
            F.log_softmax(given, -1),
            targets.to(device),
            steps,
            counts,
            reduction="none",
            zero_infinity=zero_infinity,
        )
        results.append([loss, *torch.autograd.grad(loss[::2].sum(), given, retain_graph=True)])
        if zero_infinity:
            results[-1] += torch.autograd.grad(loss[1], given)
    assert_alike(results[1], results[0])


def test_ctc_refuses_lengths_beyond_what_is_there() -> None:
    scores = torch.zeros(4, 1, 5, device=DEVICE)
    targets = torch.ones(1, 2, dtype=torch.int64, device=DEVICE)
    with pytest.raises(RuntimeError, match="input_lengths"):
        F.ctc_loss(scores, targets, (5,), (2,))
    with pytest.raises(RuntimeError, match="target_lengths"):
        F.ctc_loss(scores, targets, (4,), (3,))


@pytest.mark.parametrize("weighted_classes", [False, True])
def test_smoothed_labels_need_no_value_on_the_host(weighted_classes: bool) -> None:
    weight = torch.rand(5) if weighted_classes else None
    target = torch.tensor([0, 3, -100, 1])
    early = counters.early_syncs

    def loss(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        classes = None if weight is None else weight.to(scores.device)
        return F.cross_entropy(scores, target, classes, label_smoothing=0.2)

    loss(torch.randn(4, 5).to(DEVICE), target.to(DEVICE))
    assert counters.early_syncs == early
    assert_agrees(loss, torch.randn(4, 5, requires_grad=True), target)
