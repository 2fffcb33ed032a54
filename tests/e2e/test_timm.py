"""timm's train step, unmodified: mixup, clipping, averaged weights, a schedule, DDP."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e import frameworks

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(
        find_spec("timm") is None, reason="pip install timm, and a torchvision of torch's release"
    ),
]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("model", ["test_resnet", "test_vit"])
def test_timm(model: str, devices: int, tmp_path: Path) -> None:
    words = {"model": model, "pixels": 160 if model == "test_vit" else 32}
    job, ours, plain = frameworks.both("timm", devices, tmp_path, words, {"device": "cpu"})
    assert ours["losses"] == pytest.approx(plain["losses"], abs=1e-3)
    assert all(built <= 6 for built in job.counts("compiles"))
    (num_steps,) = set(job.counts("steps"))
    assert job.new_graphs(2, num_steps) == []
    assert job.counts("fallbacks") == [{}] * devices
