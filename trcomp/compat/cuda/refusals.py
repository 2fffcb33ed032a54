"""What writes or replays CUDA kernels: refused where it is called, with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

import torch

from trcomp.changes import when_imported
from trcomp.errors import UnsupportedError

_GRAPHS = (
    "XLA compiles a whole step into one executable, which is what a CUDA graph is for. Call the "
    "function itself."
)
_KERNELS = (
    "Use the operator's PyTorch implementation, which XLA compiles and fuses; many libraries have "
    "a switch for it. Or run the script without the compiler: TrainingCompilerConfig(enabled=False)"
)
_MEMORY = "XLA plans the device's memory itself: leave the call out."
_RANKS = "Use torch.distributed, with one rank per device."

_REFUSED = {
    "torch.cuda": {
        "CUDAGraph graph make_graphed_callables graph_pool_handle": _GRAPHS,
        "CUDAPluggableAllocator MemPool use_mem_pool change_current_allocator GreenContext "
        "caching_allocator_alloc caching_allocator_delete caching_allocator_enable": _MEMORY,
        "ExternalStream get_stream_from_external cudart current_blas_handle current_solver_handle "
        "_compile_kernel": _KERNELS,
    },
    "torch.cuda.graphs": {"CUDAGraph graph make_graphed_callables graph_pool_handle": _GRAPHS},
    "torch.cuda.jiterator": {"_create_jit_fn _create_multi_output_jit_fn": _KERNELS},
    "torch.cuda.comm": {
        "broadcast broadcast_coalesced reduce_add reduce_add_coalesced scatter gather": _RANKS
    },
    "torch.cuda.nccl": {
        "all_gather all_reduce broadcast init_rank reduce reduce_scatter unique_id": _RANKS
    },
}

_ALLOCATOR_STATE = "_cuda_CUDAAllocator_AllocatorState"

_WHEN_IMPORTED = {
    "torch.utils.cpp_extension": {"CUDAExtension": _KERNELS},
    "triton.runtime.jit": {"JITFunction.run": _KERNELS},
}


def refusing(name: str, instead: str) -> type:
    """A class and function in one whose every use is an error, and that nothing is one of."""

    def __new__(cls: type, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: N807
        raise UnsupportedError(
            f"{name} needs CUDA itself; trcomp runs cuda scripts on XLA.", instead
        )

    return type(name.rpartition(".")[2], (), {"__new__": __new__, "__doc__": instead})


def _put(module: ModuleType, refused: dict[str, str]) -> None:
    for names, instead in refused.items():
        for name in names.split():
            path = name.split(".")
            owner: Any = module
            for part in path[:-1]:
                owner = getattr(owner, part)
            found = getattr(owner, path[-1], None)
            if found is not None:
                refusal: Any = refusing(f"{module.__name__}.{name}", instead)
                if hasattr(found, "__wrapped__"):  # dynamo looks it up as it is imported
                    refusal.__wrapped__ = found.__wrapped__
                setattr(owner, path[-1], refusal)


def _after(name: str) -> Callable[[ModuleType], None]:
    def then(module: ModuleType) -> None:
        _put(module, _WHEN_IMPORTED[name])
        if name == "torch.utils.cpp_extension":
            _refuse_cuda_sources(module)

    return then


def _refuse_cuda_sources(module: Any) -> None:
    """Building C++ for the host is fine; what names CUDA sources is not."""
    load, load_inline = module.load, module.load_inline

    def check(name: str, is_cuda: bool) -> None:
        if is_cuda:
            refusing(f"torch.utils.cpp_extension.{name} with CUDA sources", _KERNELS)()

    def checked_load(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
        files = [sources] if isinstance(sources, str) else sources
        check("load", bool(kwargs.get("with_cuda")) or any(str(f).endswith(".cu") for f in files))
        return load(name, sources, *args, **kwargs)

    def checked_inline(name: str, cpp_sources: Any, *args: Any, **kwargs: Any) -> Any:
        cuda = args[0] if args else kwargs.get("cuda_sources")
        check("load_inline", bool(cuda) or bool(kwargs.get("with_cuda")))
        return load_inline(name, cpp_sources, *args, **kwargs)

    module.load, module.load_inline = checked_load, checked_inline


def register() -> None:
    """Refuse what cannot run."""
    for name, refused in _REFUSED.items():
        _put(import_module(name), refused)
    if not hasattr(torch._C, _ALLOCATOR_STATE):
        # Where CUDA is built in, dynamo imports the module that takes it; nothing calls it.
        setattr(torch._C, _ALLOCATOR_STATE, refusing(f"torch._C.{_ALLOCATOR_STATE}", _MEMORY))
    when_imported({name: _after(name) for name in _WHEN_IMPORTED})
