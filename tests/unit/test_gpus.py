"""Devices are found without CUDA, and CUDA_VISIBLE_DEVICES is respected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trcomp.env import gpus

PLAIN = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa-0)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb-1)
GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-cccc-2)
"""
MIG = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa-0)
  MIG 3g.20gb     Device  0: (UUID: MIG-1111)
  MIG 3g.20gb     Device  1: (UUID: MIG-2222)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb-1)
"""


def test_gpus_are_listed_by_number() -> None:
    devices = gpus.parsed(PLAIN)
    assert devices == (("0", "GPU-aaaa-0"), ("1", "GPU-bbbb-1"), ("2", "GPU-cccc-2"))
    assert gpus.visible({}, devices) == ("0", "1", "2")


def test_a_sliced_gpu_stands_for_its_slices() -> None:
    devices = gpus.parsed(MIG)
    assert gpus.visible({}, devices) == ("MIG-1111", "MIG-2222", "1")


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("0", ("0",)),
        ("2,0", ("2", "0")),
        (" 1 , 2 ", ("1", "2")),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0,9,1", ("0",)),
        ("1,1", ("1",)),
        ("GPU-bbbb-1", ("GPU-bbbb-1",)),
        ("GPU-bb,GPU-aaaa", ("GPU-bb", "GPU-aaaa")),
        ("GPU-zz,0", ()),
    ],
)
def test_cuda_visible_devices_follows_cudas_rules(value: str, left: tuple[str, ...]) -> None:
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": value}, gpus.parsed(PLAIN)) == left


def test_a_slice_can_be_chosen() -> None:
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": "MIG-2222"}, gpus.parsed(MIG)) == ("MIG-2222",)


def test_without_the_drivers_tool_the_kernel_driver_is_asked(tmp_path: Path) -> None:
    for name in ("0000:00:1b.0", "0000:00:1c.0"):
        (tmp_path / name).mkdir()
    devices = gpus.listed(command="no-such-command", proc=tmp_path)
    assert gpus.visible({}, devices) == ("0", "1")
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}, devices) == ("GPU-aaaa",)
    assert gpus.listed(command="no-such-command", proc=tmp_path / "none") == ()


def test_the_drivers_tool_is_asked(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{PLAIN}END\n")
    tool.chmod(0o755)
    assert len(gpus.listed(command=str(tool))) == 3
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert gpus.listed(command=str(tool), proc=tmp_path / "none") == ()


def test_efa_devices_are_probed(tmp_path: Path) -> None:
    assert gpus.efa_devices(tmp_path / "none") == 0
    drivers = {"rdmap0s6": "efa", "mlx5_0": "mlx5_core"}
    for device, driver in drivers.items():
        (tmp_path / "drivers" / driver).mkdir(parents=True)
        (tmp_path / "sys" / device / "device").mkdir(parents=True)
        os.symlink(tmp_path / "drivers" / driver, tmp_path / "sys" / device / "device" / "driver")
    (tmp_path / "sys" / "efa_0").mkdir()
    assert gpus.efa_devices(tmp_path / "sys") == 2


def test_the_model_is_what_the_driver_calls_the_first_gpu(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "GPU 0: NVIDIA H200 (SXM) (UUID: GPU-1)"\n')
    tool.chmod(0o755)
    assert gpus.model(command=str(tool)) == "NVIDIA H200 (SXM)"
    assert gpus.model(command=str(tmp_path / "none")) == "gpu"
