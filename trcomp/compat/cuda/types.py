"""`torch.cuda.FloatTensor` and its like: types of tensors on the device, which make them."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from trcomp.compat.cuda.names import CUDA
from trcomp.runtime.device import NAME, Process, is_on_device

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


def _named(text: Any) -> torch.dtype | None:
    """The dtype of a type of the device, by its name as text."""
    before = f"torch.{CUDA}."
    if not isinstance(text, str) or not text.startswith(before):
        return None
    return _DTYPES.get(text.removeprefix(before).removesuffix("Tensor"))


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
            return name.replace(f".{NAME}.", f".{CUDA}.") if Process.shown else name
        if isinstance(dtype, _TensorType):
            return self.to(torch.device(CUDA), dtype.dtype)
        if (wanted := _named(dtype)) is not None:
            return self.to(torch.device(CUDA), wanted)
        return convert(self, dtype, *args, **kwargs)

    setattr(torch.Tensor, "type", type_)  # noqa: B010
    _register_default()


def _register_default() -> None:
    """`torch.set_default_tensor_type` with one of these: a default dtype and device."""
    choose: Any = torch.set_default_tensor_type

    @wraps(choose)
    def set_default_tensor_type(t: Any, /) -> None:
        dtype = t.dtype if isinstance(t, _TensorType) else _named(t)
        if dtype is None:
            torch.set_default_device(None)
            choose(t)
            return
        torch.set_default_dtype(dtype)
        torch.set_default_device(CUDA)

    setattr(torch, "set_default_tensor_type", set_default_tensor_type)  # noqa: B010
