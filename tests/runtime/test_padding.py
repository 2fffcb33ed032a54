"""Padded batches: few shapes, the same loss, samples counted as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.functional import cross_entropy

import trcomp.runtime as rt
from trcomp.errors import SpecError

pytestmark = pytest.mark.runtime


class Pair(NamedTuple):
    inputs: torch.Tensor
    labels: torch.Tensor


def test_a_last_batch_with_labels_that_the_loss_leaves_out_costs_no_compile_and_no_loss() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3)
    full = Pair(torch.randn(4, 6), torch.tensor([0, 1, 2, 0]))
    last = Pair(torch.randn(3, 6), torch.tensor([2, 1, 0]))
    expected = [cross_entropy(model(one.inputs), one.labels).item() for one in (full, last)]
    model.to("xla")
    before, losses = rt.metrics(), []
    loader = rt.DeviceLoader([full, last], pad=rt.Padding({1: -100}, rows=True))
    for inputs, labels in loader:
        assert inputs.shape == (4, 6)
        losses.append(cross_entropy(model(inputs), labels).detach())
    assert rt.metrics()["samples"] - before["samples"] == 7
    assert rt.metrics()["compiles"] - before["compiles"] <= 1
    torch.testing.assert_close([loss.item() for loss in losses], expected)


def padded(batch: Any, **words: Any) -> Any:
    return rt.Padding({"input_ids": 9, "mask": 0}, **words)(batch)


def test_sequences_get_the_next_of_a_few_lengths() -> None:
    batch = {"input_ids": torch.ones(2, 5, dtype=torch.long), "mask": torch.ones(2, 5), "id": "a"}
    found = padded(batch, lengths=(16, 8))
    assert found["input_ids"].tolist() == [[1] * 5 + [9] * 3] * 2
    assert found["mask"].sum() == 10 and found["id"] == "a"
    assert batch["input_ids"].shape == (2, 5)
    longer = {"input_ids": torch.ones(2, 17), "mask": torch.ones(2, 17)}
    assert padded(longer, lengths=(16, 8)) is longer


def test_rows_of_tensors_without_a_value_are_repeated() -> None:
    padding = rt.Padding({"labels": -100}, rows=True)
    for rows in (3, 2):
        pixels = torch.arange(rows * 1.0)
        found = padding({"pixels": pixels, "labels": torch.zeros(rows, dtype=torch.long)})
    assert found["pixels"].tolist() == [0, 1, 0]
    assert found["labels"].tolist() == [0, 0, -100]


def test_what_is_wrong_is_said_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        rt.Padding({}, lengths=(0, 8))
    assert [problem.field for problem in caught.value.problems] == ["lengths", "values"]
    with pytest.raises(SpecError, match="rows=True or lengths"):
        rt.Padding({"labels": -100})
    with pytest.raises(SpecError, match=r"'label': got|got 'label'") as caught:
        rt.Padding({"label": -100}, rows=True)({"labels": torch.zeros(2)})
    assert "Did you mean 'labels'?" in str(caught.value)
    with pytest.raises(SpecError, match="uneven"):
        rt.DeviceLoader([], uneven="longest")
    with pytest.raises(SpecError, match="one that has a length"):
        rt.DeviceLoader(iter([]), uneven="shortest")
