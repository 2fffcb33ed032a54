"""torchvision whose C++ does not fit torch, changed so that it can be imported all the same.

Its wheels from PyPI are built for CUDA; a worker's torch may be the CPU's, since XLA drives the
GPU. Then torchvision does without its C++, but its import fails at two operators that it takes for
known. Declared, they are; calling one is torchvision's own error, which says what to install.
"""

from __future__ import annotations

from typing import Any

from trcomp.changes import when_imported

_SCHEMA = "{}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("nms", "qnms")


def _declare_operators(extension: Any) -> None:
    if extension._has_ops():
        return
    from torch import library

    make: Any = library.Library
    extension.trcomp_library = make("torchvision", "FRAGMENT")
    for name in _OPERATORS:
        extension.trcomp_library.define(_SCHEMA.format(name))


def install() -> None:
    """Change torchvision when it is imported."""
    when_imported({"torchvision.extension": _declare_operators})
