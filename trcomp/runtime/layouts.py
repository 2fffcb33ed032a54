"""Sparse and nested tensors: the device has none, and says so."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch._ops import OpOverload

from trcomp.errors import UnsupportedError
from trcomp.runtime.dispatch import implements

_library = torch.library.Library("_", "IMPL")
_NEXT = {
    "sparse": "Use dense tensors: for an embedding, sparse=False; or keep sparse ones on the CPU.",
    "nested": "Pad to one length and use a mask; torch.nn.utils.rnn.pad_sequence does.",
}


def _refuse(layout: str, name: str) -> NoReturn:
    raise UnsupportedError(
        f"{name} needs a {layout} tensor on xla; the device has dense tensors only.", _NEXT[layout]
    )


def _refusing(layout: str) -> Any:
    def kernel(op: OpOverload, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(layout, op._schema.name.removeprefix("aten::"))

    return kernel


@implements("_to_sparse", "_to_sparse.sparse_dim")
def to_sparse(self: torch.Tensor, *args: Any, **kwargs: Any) -> NoReturn:
    """Refuse to make a dense tensor sparse."""
    _refuse("sparse", "to_sparse")


def register() -> None:
    """Refuse every operator that meets a tensor of these layouts."""
    _library.fallback(_refusing("sparse"), "SparsePrivateUse1")
    _library.fallback(_refusing("nested"), "NestedTensorPrivateUse1")
