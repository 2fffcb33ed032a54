"""CUDA scripts on the device: their idioms give the CPU's numbers; `torch.cuda` answers.

Each process runs all of its functions: `cuda` is mapped for a process as a whole.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.cuda_checks import CHECKS
from tests.runtime.cuda_idioms import IDIOMS
from tests.runtime.rank_scripts import run_script
from trcomp import flags

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
NO_COMPILE_AFTER = {
    "nanogpt": 2,
    "nanogpt_float32": 2,
    "nanogpt_float16": 2,
    "gan": 2,
    "averaged_copy": 2,
    "evaluation": 4,
    "skipped_steps": 4,
}
"""After how many rounds a script's graphs are all compiled."""


def start(*words: str, maps: bool) -> dict[str, Any]:
    """What each function gave, in a process where `cuda` is the device or where there is none."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.runtime.cuda_idioms", *words],
        env={**os.environ, flags.CUDA_TO_XLA.name: str(int(maps)), "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert "RESULTS" in ended.stdout, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr
    results: dict[str, Any] = json.loads(ended.stdout.partition("RESULTS ")[2])
    return results


@pytest.fixture(scope="module")
def mapped() -> dict[str, Any]:
    return start("--checks", maps=True)


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return start(maps=False)


@pytest.mark.parametrize("name", [idiom.__name__ for idiom in IDIOMS])
def test_an_idiom_gives_the_cpus_numbers(
    name: str, mapped: dict[str, Any], plain: dict[str, Any]
) -> None:
    found, wanted = mapped[name], plain[name]
    assert "error" not in found, found["error"]
    assert "error" not in wanted, wanted["error"]
    half = name in ("nanogpt", "nanogpt_float16")
    for key in wanted.keys() - {"compiles"}:
        assert flat(found[key]) == pytest.approx(flat(wanted[key]), rel=5e-3 if half else 1e-4)
    if name in NO_COMPILE_AFTER:
        counts = found["compiles"][NO_COMPILE_AFTER[name] - 1 :]
        assert len(set(counts)) == 1


def flat(values: Any) -> list[float]:
    return [x for value in values for x in flat(value)] if isinstance(values, list) else [values]


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_torch_cuda_answers(name: str, mapped: dict[str, Any]) -> None:
    assert "error" not in mapped[name], mapped[name]["error"]


# What a script sees the device as.


def test_a_script_that_asked_for_xla_sees_xla(tmp_path: Path) -> None:
    script = """
    import torch
    import torch_xla
    x = torch.ones(2, device=torch_xla.device())
    y = torch.ones(2).cuda()
    print((x + y).device, torch.cuda.is_available())
    """
    ended = run_script(script, tmp_path, {flags.CUDA_TO_XLA.name: "1"})
    assert ended.stdout.split() == ["xla:0", "True"], ended.stderr


def test_torch_accelerator_counts_as_torch_cuda_does(tmp_path: Path) -> None:
    script = """
    import torch
    accelerator = torch.accelerator.current_accelerator()
    torch.accelerator.set_device_index(1)
    print(torch.accelerator.device_count(), torch.accelerator.current_device_index())
    print(torch.cuda.current_device(), torch.ones(2, device=f"{accelerator}:1").sum().item())
    """
    environ = {flags.CUDA_TO_XLA.name: "1", "GPU_NUM_DEVICES": "2"}
    ended = run_script(script, tmp_path, environ)
    assert ended.stdout.split() == ["2", "1", "1", "2.0"], ended.stderr


def test_without_the_compiler_nothing_is_mapped(tmp_path: Path) -> None:
    script = "import sys, torch; print(torch.cuda.is_available(), 'jax' in sys.modules)"
    environ = {flags.CUDA_TO_XLA.name: "1", flags.ENABLED.name: "0", flags.WORKER.name: "1"}
    ended = run_script(script, tmp_path, environ)
    assert ended.stdout.split() == ["False", "False"], ended.stderr


def test_accumulated_passes_are_compiled_apart_once_they_are_large(tmp_path: Path) -> None:
    script = """
    import torch
    import trcomp.runtime as rt
    from trcomp.compat.cuda import boundaries

    boundaries._MIN_VALUES_OF_A_PASS = 20

    def train(device):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(4, 4) for _ in range(4)]
        model = torch.nn.Sequential(*layers).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        data = torch.randn(4, 6, 2, 4, generator=torch.Generator().manual_seed(1))
        losses, counts = [], []
        for step in range(4):
            for micro in range(6):
                loss = model(data[step, micro].to(device)).square().mean() / 6
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            counts.append(rt.metrics()["compiles"])
        return losses, counts

    found, counts = train("cuda")
    wanted, _ = train("cpu")
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    metrics = rt.metrics()
    print(len(set(counts[1:])), metrics["executions"] >= 20, metrics["early_syncs"])
    """
    ended = run_script(script, tmp_path, {flags.CUDA_TO_XLA.name: "1"})
    assert ended.stdout.split() == ["1", "True", "0"], ended.stderr
