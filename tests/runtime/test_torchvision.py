"""torchvision in a worker whose torch is of another build than its C++."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.rank_scripts import run_script
from trcomp import flags

pytestmark = pytest.mark.runtime

INIT = "from torchvision import extension, _meta_registrations, ops\n"
EXTENSION = "def _has_ops():\n    return False\n"
REGISTRATIONS = """
import torch
for name in ("nms", "qnms"):
    torch.library.register_fake(f"torchvision::{name}")(lambda *args: None)
"""
OPS = 'def nms(*args):\n    raise RuntimeError("Couldn\'t load custom C++ ops")\n'


def test_it_is_imported_without_its_operators(tmp_path: Path) -> None:
    """A stand-in that asks torch what torchvision asks as it is imported."""
    package = tmp_path / "torchvision"
    package.mkdir()
    for name, text in (
        ("__init__", INIT),
        ("extension", EXTENSION),
        ("_meta_registrations", REGISTRATIONS),
        ("ops", OPS),
    ):
        (package / f"{name}.py").write_text(text)
    script = "import torch, torchvision\nprint(torchvision.ops.__name__)\ntorchvision.ops.nms()"
    ended = run_script(script, tmp_path, {flags.CUDA_TO_XLA.name: "1"})
    assert ended.stdout.split() == ["torchvision.ops"], ended.stderr
    assert "Couldn't load custom C++ ops" in ended.stderr
