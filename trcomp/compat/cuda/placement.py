"""Placing tensors on `cuda`: what makes or moves them puts them on this process's device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch._ops import OpOverload
from torch.jit import _builtins
from torch.utils import _device
from torch.utils._pytree import tree_map_only

from trcomp.compat.cuda import boundaries
from trcomp.compat.cuda.names import CUDA, own, shown, take
from trcomp.runtime import generators
from trcomp.runtime.device import DEVICE

_everything = torch.library.Library("_", "IMPL")
_named = torch.library.Library("aten", "IMPL")

_LIKE = """
    as_tensor empty_like zeros_like ones_like full_like rand_like randn_like randint_like
    scalar_tensor
"""
_NEW = "new_tensor new_empty new_empty_strided new_zeros new_ones new_full"


def _placing(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes tensors or storages; host memory is never pinned."""

    @wraps(function)
    def placed(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            if "device" in kwargs:
                kwargs["device"] = own(kwargs["device"])
            kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    return placed


def _fallback(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """An operator that was called for a CUDA device from within torch."""
    args, kwargs = tree_map_only(torch.device, own, (args, kwargs))
    return op(*args, **kwargs)


_to = torch.Tensor.to


def _move(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """`Tensor.to`: the same tensor where it is on the device already, as torch has it."""
    if args:
        device = own(args[0])
        if device is not args[0]:
            args = (device, *args[1:])
    elif "device" in kwargs:
        device = kwargs["device"] = own(kwargs["device"])
    else:
        return _to(self, *args, **kwargs)
    if device is DEVICE and self.is_cpu:
        boundaries.note_upload()
    return _to(self, *args, **kwargs)


def _move_to_cuda(
    self: torch.Tensor,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> Any:
    """`Tensor.cuda`."""
    device = own(CUDA if device is None else device)
    return self.to(device, non_blocking=non_blocking, memory_format=memory_format)


_move_to_cuda.__name__ = "cuda"
_move.__name__ = "to"


def _storage_to_cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
    return self.to(device=own(CUDA if device is None else device), non_blocking=non_blocking)


def register() -> None:
    """Answer for the CUDA device wherever a device can be given."""
    _register_constructors()
    _everything.fallback(_fallback, "CUDA")
    _override_kernels()
    _register_methods()
    _register_contexts()


def _register_constructors() -> None:
    # Asked for first: `with torch.device("cuda")` knows torch's own functions by identity.
    constructors = _device._device_constructors()
    for module in (torch, torch.fft, torch.nested, torch.signal.windows):
        for name, function in list(vars(module).items()):
            if callable(function) and _is_in(function, constructors):
                _replace(module, name)
    for name in _LIKE.split():
        _replace(torch, name)


def _replace(module: Any, name: str) -> None:
    function = getattr(module, name)
    placed = _placing(function)
    setattr(module, name, placed)
    # `torch.jit.script` knows torch's functions by identity.
    operator = _builtins._find_builtin(function)
    if operator is not None:
        _builtins._register_builtin(placed, operator)


def _is_in(function: Any, functions: Any) -> bool:
    return any(function is other for other in functions)


def _override_kernels() -> None:
    """In a build of torch with CUDA, its kernels that make tensors would open the device."""
    for full in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
        name = full.removeprefix("aten::")
        if name == full:
            continue
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        if any(argument.name == "device" for argument in op._schema.arguments):
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", "Warning only once for all operators", UserWarning
                )
                _named.impl(name, _bound(op), "CUDA", allow_override=True)


def _bound(op: OpOverload) -> Callable[..., Any]:
    return lambda *args, **kwargs: _fallback(op, *args, **kwargs)


def _register_methods() -> None:
    tensor: Any = torch.Tensor
    tensor.to = wraps(_to)(_move)
    tensor.cuda = wraps(tensor.cuda)(_move_to_cuda)
    for name in _NEW.split():
        setattr(tensor, name, _placing(getattr(tensor, name)))
    parse: Any = torch._C._nn._parse_to
    setattr(torch._C._nn, "_parse_to", _naming(parse))  # noqa: B010 - what `Module.to` asks
    tensor.pin_memory = _pin
    tensor.is_pinned = lambda self, device=None: hasattr(self.untyped_storage(), "is_like_pinned")
    storage: Any = torch.UntypedStorage
    storage.cuda = _storage_to_cuda
    storage.to = _placing(storage.to)
    storage.__new__ = _placing(storage.__new__)
    torch.TypedStorage.cuda = _storage_to_cuda  # type: ignore[method-assign]


def _naming(parse: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(parse)
    def parsed(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = own(kwargs["device"])
        return parse(*map(own, args[:1]), *args[1:], **kwargs)

    return parsed


def _pin(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    """The tensor itself: the client copies from any host memory. It says that it is pinned."""
    if not self.is_cpu:
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
    setattr(self.untyped_storage(), "is_like_pinned", True)  # noqa: B010
    return self


def _register_contexts() -> None:
    """`with torch.device("cuda"):`, the default device, generators."""
    context: Any = _device.DeviceContext
    enter = context.__init__
    context.__init__ = wraps(enter)(lambda self, device: enter(self, own(device)))
    default: Any = torch.get_default_device
    setattr(torch, "get_default_device", wraps(default)(lambda: shown(default())))  # noqa: B010
    generator: Any = generators.Generator
    make = generator.__new__
    generator.__new__ = lambda cls, device="cpu": make(cls, own(device))
    generators.XlaGenerator.device = property(lambda self: shown(DEVICE))  # type: ignore[assignment]
    torch.cuda._lazy_init = take
