"""What loaders of lazy devices are known to get wrong: epochs, order of keys, ends within a loop.

The cases come from public reports against PyTorch/XLA and its users' projects; batches, errors and
forks are tested in test_loader.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import trcomp.runtime as rt
from tests.runtime.rank_scripts import run_script
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime


def test_every_epoch_is_run_whole_and_compiles_nothing_new_after_the_first() -> None:
    weight = torch.nn.Parameter(torch.zeros(3, device="xla"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    loader = rt.DeviceLoader(DataLoader(TensorDataset(torch.ones(10, 3)), batch_size=4))
    steps, compiles = [], []
    for _ in range(4):
        for (batch,) in loader:
            optimizer.zero_grad()
            (batch @ weight).mean().backward()
            optimizer.step()
            steps.append(len(batch))
        compiles.append(counters.compiles)
    assert steps == [4, 4, 2] * 4
    assert compiles[1] == compiles[2] == compiles[3]
    assert weight.tolist() == pytest.approx([-1.2] * 3)


def test_a_batchs_keys_keep_their_order() -> None:
    samples: Any = [{"z": torch.ones(1), "a": "text", "m": 1}] * 2
    (batch,) = rt.DeviceLoader(DataLoader(samples, batch_size=2))
    assert list(batch) == ["z", "a", "m"]
    assert (batch["z"].device.type, batch["a"]) == ("xla", ["text", "text"])


@pytest.mark.parametrize("end", ["break", "raise KeyError('mine')"])
def test_a_script_may_end_within_its_loop(end: str, tmp_path: Path) -> None:
    script = f"""
    import torch
    import trcomp.runtime as rt
    for batch in rt.DeviceLoader([torch.ones(2) * i for i in range(10_000)]):
        print(int(batch.sum()))
        if batch.sum() > 4:
            {end}
    """
    ended = run_script(script, tmp_path)
    assert ended.stdout.split() == ["0", "2", "4", "6"]
    assert ended.returncode == (0 if end == "break" else 1)
    told = ended.stderr.strip().splitlines()
    assert told[-1:] == (["KeyError: 'mine'"] if "mine" in end else []), ended.stderr
