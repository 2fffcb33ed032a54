"""`torch.cuda.FloatTensor` and its like: types of tensors on the device, which make them."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from trcomp.compat.cuda.names import CUDA, Shown
from trcomp.runtime.device import NAME, is_on_device

_DTYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Bool": torch.bool,
}


class _TensorType(type):
    """Tensors of one dtype on the device."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        kind: Any = getattr(torch, cls.__name__)
        made = torch.empty(0, dtype=cls.dtype) if not args and not kwargs else kind(*args)
        return made.cuda()

    def __instancecheck__(cls, instance: Any) -> bool:
        if not isinstance(instance, torch.Tensor):
            return False
        return is_on_device(instance) and instance.dtype == cls.dtype


def _named(self: torch.Tensor, text: str) -> torch.dtype | None:
    name = text.removeprefix(f"torch.{CUDA}.").removesuffix("Tensor")
    return _DTYPES.get(name) if text.startswith(f"torch.{CUDA}.") else None


def register() -> None:
    """Make the types, and let `Tensor.type` name them."""
    for name, dtype in _DTYPES.items():
        title = f"{name}Tensor"
        members = {"dtype": dtype, "__module__": "torch.cuda"}
        setattr(torch.cuda, title, _TensorType(title, (), members))
    convert: Any = torch.Tensor.type

    @wraps(convert)
    def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            name = convert(self)
            return name.replace(f".{NAME}.", f".{CUDA}.") if Shown.device else name
        if isinstance(dtype, _TensorType):
            return self.to(torch.device(CUDA), dtype.dtype)
        if isinstance(dtype, str) and (wanted := _named(self, dtype)) is not None:
            return self.to(torch.device(CUDA), wanted)
        return convert(self, dtype, *args, **kwargs)

    setattr(torch.Tensor, "type", type_)  # noqa: B010
