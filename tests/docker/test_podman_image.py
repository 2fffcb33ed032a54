"""The image, as Podman builds it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.docker import wheels
from tests.docker.test_podman import IMAGE, podman
from trcomp.images.build import find_or_build

pytestmark = pytest.mark.long
__all__ = ["podman"]


def test_podman_builds_the_image_once(podman: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRCOMP_BUILD_ARGS", wheels.as_text(wheels.build_args(podman, IMAGE)))
    seen: list[str] = []
    name = find_or_build(podman, gpu=False, progress=seen.append)
    assert any("Building" in line for line in seen)
    command = ["python", "-c", "import trcomp, torch; print(trcomp.__file__, torch.VERSION)"]
    raw: bytes = podman.containers.run(name, command, remove=True)
    assert re.search(rf"/opt/trcomp/trcomp/__init__.py {wheels.VERSION}", raw.decode())
    seen.clear()
    assert find_or_build(podman, gpu=False, progress=seen.append) == name
    assert seen == []
