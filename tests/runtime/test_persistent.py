"""Executables on disk: found by later processes and by each rank, refused when damaged."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

import trcomp.runtime as rt
from tests.runtime.rank_scripts import run_ranks
from trcomp import SpecError, flags
from trcomp.runtime import client, executables, persistent
from trcomp.runtime.device import DEVICE
from trcomp.runtime.metrics import counters

pytestmark = pytest.mark.runtime

STEP = """
import torch
import trcomp.runtime as rt
from trcomp.runtime import persistent

persistent._WORTH_SECONDS = 0
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 2))
model.to("xla")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
x = torch.randn(6, 4).to("xla") + rt.rank()
for step in range(3):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    rt.optimizer_step(optimizer, barrier=True)
counts = rt.metrics()
print("loss", loss.item(), flush=True)
print("counts", counts["compiles"], counts["loads"], flush=True)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(flags.CACHE.name, str(tmp_path / "cache"))
    monkeypatch.setattr(persistent, "_WORTH_SECONDS", 0)
    rt.sync(wait=True)
    return tmp_path / "cache"


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def forget() -> None:
        monkeypatch.setattr(executables, "_executables", OrderedDict())

    forget()
    return forget


def files(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def computed(number: float) -> tuple[float, int, int]:
    """A value, and how many executables were compiled and loaded for it."""
    compiles, loads = counters.compiles, counters.loads
    x = torch.full((3, 5), number, device=DEVICE)
    value = (x @ torch.ones(5, 2, device=DEVICE)).sum().item()
    return value, counters.compiles - compiles, counters.loads - loads


@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_second_process_loads_what_the_first_compiled(num_ranks: int, tmp_path: Path) -> None:
    environ = {flags.CACHE.name: str(tmp_path / "cache")}
    cold, warm = (run_ranks(STEP, tmp_path, num_ranks, environ) for _ in range(2))
    for first, second in zip(cold, warm, strict=True):
        compiles, loads = first.text.split("counts ")[1].split()
        assert int(compiles) > 0 and int(loads) == 0, first.text
        assert second.text.split("counts ")[1].split() == ["0", compiles], second.text
        assert second.text.splitlines()[-2] == first.text.splitlines()[-2]


def test_the_numbers_of_a_graph_are_not_part_of_its_file(
    cache: Path, forget: Callable[[], None]
) -> None:
    assert computed(2.0) == (60.0, 1, 0)
    forget()
    assert computed(3.0) == (90.0, 0, 1)
    assert len(files(cache)) == 1


def test_another_graph_has_another_file(cache: Path, forget: Callable[[], None]) -> None:
    x = torch.arange(6.0).reshape(2, 3).to(DEVICE)
    sums = []
    for dim in (0, 1):
        forget()
        sums.append(x.sum(dim).tolist())
    assert sums == [[3.0, 5.0, 7.0], [3.0, 12.0]]
    assert len(files(cache)) == 2


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda blob: blob[:-10], id="truncated"),
        pytest.param(lambda blob: b"", id="empty"),
        pytest.param(lambda blob: blob[:200] + b"X" + blob[201:], id="one byte changed"),
    ],
)
def test_a_damaged_file_is_compiled_anew_and_replaced(
    damage: Callable[[bytes], bytes], cache: Path, forget: Callable[[], None]
) -> None:
    computed(2.0)
    (path,) = files(cache)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    forget()
    assert computed(2.0) == (60.0, 1, 0)
    forget()
    assert computed(2.0) == (60.0, 0, 1)


class Planted:
    """What a pickle can hold: a call of any function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("inner", [False, True], ids=["the file", "jax's program in it"])
@pytest.mark.parametrize("function", [os.mkdir, jax.eval_shape], ids=["another's", "jax's"])
def test_a_planted_file_calls_nothing(
    function: Callable[..., Any],
    inner: bool,
    cache: Path,
    forget: Callable[[], None],
    tmp_path: Path,
) -> None:
    computed(2.0)
    (path,) = files(cache)
    digest_bytes = hashlib.sha256().digest_size
    _, in_tree, out_tree = pickle.loads(path.read_bytes()[digest_bytes:])
    made = tmp_path / "made"
    # jax's own functions would call what they are given.
    call = Planted(function, *((os.mkdir, str(made)) if function is jax.eval_shape else (made,)))
    payload = pickle.dumps((pickle.dumps(call), in_tree, out_tree) if inner else call)
    path.write_bytes(hashlib.sha256(payload).digest() + payload)
    forget()
    assert computed(2.0) == (60.0, 1, 0)
    assert not made.exists()


def test_nothing_is_written_where_nothing_can_be(
    cache: Path, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("not a directory")
    assert computed(2.0) == (60.0, 1, 0)
    monkeypatch.setenv(flags.CACHE.name, "off")
    forget()
    assert computed(2.0) == (60.0, 1, 0)


def test_the_files_used_longest_ago_go_first(
    cache: Path, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed(2.0)
    (first,) = files(cache)
    monkeypatch.setattr(persistent, "_KEPT_BYTES", first.stat().st_size * 1.5)
    torch.ones(7, device=DEVICE).cumsum(0).tolist()
    assert first not in files(cache)
    assert len(files(cache)) == 1


def test_others_cannot_read_or_plant_files(cache: Path, forget: Callable[[], None]) -> None:
    computed(2.0)
    (path,) = files(cache)
    assert [path.stat().st_mode & 0o77, path.parent.stat().st_mode & 0o77] == [0, 0]


def test_debug_compiles_so_that_there_is_something_to_write(
    cache: Path, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    computed(2.0)
    forget()
    monkeypatch.setenv(flags.DEBUG.name, "1")
    monkeypatch.setenv(flags.REPORT_DIR.name, str(tmp_path / "trcomp"))
    assert computed(2.0) == (60.0, 1, 0)


def test_only_a_job_takes_executables_from_s3(
    cache: Path, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(flags.CACHE.name, "s3://bucket/prefix")
    with pytest.raises(SpecError, match="TRCOMP_CACHE: got 's3://bucket/prefix'; a directory"):
        persistent.folder()


def test_what_xla_finds_out_about_a_gpu_is_kept_beside_the_executables(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert persistent.compiler_options() == {}
    monkeypatch.setattr(client, "platform", lambda: "gpu")
    ((name, folder),) = persistent.compiler_options().items()
    assert folder == str(cache / "autotuning")
    # This jaxlib takes the option, on any device: an unknown one is an error.
    jax.jit(lambda x: x + 1).lower(1.0).compile({name: folder})
    monkeypatch.setenv("XLA_FLAGS", f"--{name}=/mine")
    assert persistent.compiler_options() == {}
    monkeypatch.delenv("XLA_FLAGS")
    monkeypatch.setattr(persistent, "_AUTOTUNING_OPTION", "xla_gpu_of_another_version")
    assert persistent.compiler_options() == {}
    monkeypatch.setenv(flags.CACHE.name, "off")
    assert persistent.compiler_options() == {}
