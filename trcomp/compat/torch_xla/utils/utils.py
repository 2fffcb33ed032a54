"""`torch_xla.utils.utils`: generated samples, temporary folders, timing, environment switches."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import torch

from trcomp.runtime.batches import map_tensors

from .._missing import missing

__getattr__ = missing(__name__)


class Cleaner:
    """Calls a function when it is collected."""

    def __init__(self, func: Callable[[], Any]) -> None:
        self.func = func

    def __del__(self) -> None:
        self.func()


class LazyProperty:
    """A value that is made when it is first asked for."""

    def __init__(self, gen_fn: Callable[[], Any]) -> None:
        self._gen_fn = gen_fn

    @property
    def value(self) -> Any:
        """The value."""
        if not hasattr(self, "_value"):
            self._value = self._gen_fn()
        return self._value


class TmpFolder:
    """A temporary folder, removed with this object; its path is `name`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.name = self._folder.name


class SampleGenerator:
    """A loader that gives the same batch again and again: data that costs nothing.

    Args:
        data: The batch.
        sample_count: How often.
    """

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data = data
        self._sample_count = sample_count
        self._count = 0

    def __iter__(self) -> SampleGenerator:
        return SampleGenerator(self._data, self._sample_count)

    def __len__(self) -> int:
        return self._sample_count

    def __next__(self) -> Any:
        if self._count >= self._sample_count:
            raise StopIteration
        self._count += 1
        return self._data

    next = __next__


class FnDataGenerator:
    """A loader of (inputs, func(inputs)) pairs of generated tensors.

    Args:
        func: Takes the inputs, shape (batch_size, *dims); gives the targets.
        batch_size: Samples of a batch.
        gen_tensor: Makes a tensor of a size, such as `torch.randn`.
        dims: Size of a sample; None is one number.
        count: Batches.
    """

    def __init__(
        self,
        func: Callable[[torch.Tensor], Any],
        batch_size: int,
        gen_tensor: Callable[..., torch.Tensor],
        dims: Sequence[int] | None = None,
        count: int = 1,
    ) -> None:
        self._make = (func, batch_size, gen_tensor, tuple(dims or (1,)), count)
        self._emitted = 0

    def __len__(self) -> int:
        return self._make[-1]

    def __iter__(self) -> FnDataGenerator:
        return FnDataGenerator(*self._make)

    def __next__(self) -> tuple[torch.Tensor, Any]:
        func, batch_size, gen_tensor, dims, count = self._make
        if self._emitted >= count:
            raise StopIteration
        self._emitted += 1
        inputs = gen_tensor(batch_size, *dims)
        return inputs, func(inputs)

    next = __next__


class DataWrapper:
    """Base of data of a script's own that knows its tensors: `get_tensors`, `from_tensors`."""

    def get_tensors(self) -> list[torch.Tensor]:
        """The tensors in it."""
        raise NotImplementedError

    def from_tensors(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The same data with other tensors."""
        raise NotImplementedError


def as_list(t: Any) -> Any:
    """A tuple or list as it is; anything else as the only item of a list."""
    return t if isinstance(t, tuple | list) else [t]


def getenv_as(name: str, type: Any, defval: Any = None) -> Any:  # torch_xla's name
    """An environment variable as a type; booleans are 1/true/yes/on, in any case, or not."""
    text = os.environ.get(name)
    if text is None:
        return defval
    if type is bool:
        return text.strip().lower() in ("1", "true", "yes", "on", "y", "t")
    return type(text)


def check_env_flag(name: str, default: str = "") -> bool:
    """Whether a variable is set to 1, true, yes, on or y."""
    return os.environ.get(name, default).upper() in ("ON", "1", "YES", "TRUE", "Y")


def for_each_instance(value: Any, select_fn: Callable[[Any], bool], fn: Callable[..., Any]) -> None:
    """Call `fn` with each tensor of nested data that `select_fn` takes."""

    def visit(tensor: torch.Tensor) -> torch.Tensor:
        if select_fn(tensor):
            fn(tensor)
        return tensor

    map_tensors(value, visit)


def for_each_instance_rewrite(
    value: Any, select_fn: Callable[[Any], bool], fn: Callable[..., Any]
) -> Any:
    """Nested data of the same types, each tensor that `select_fn` takes replaced by `fn` of it."""
    return map_tensors(value, lambda tensor: fn(tensor) if select_fn(tensor) else tensor)


def shape(inputs: Any) -> Any:
    """Sizes in place of the tensors of nested lists and tuples."""
    if isinstance(inputs, torch.Tensor):
        return list(inputs.size())
    if isinstance(inputs, list | tuple):
        return type(inputs)(shape(item) for item in inputs)
    return inputs


def flatten_nested_tuple(inputs: Any) -> tuple[Any, ...]:
    """The items of nested tuples and lists, in order."""
    if not isinstance(inputs, list | tuple):
        return (inputs,)
    return tuple(leaf for item in inputs for leaf in flatten_nested_tuple(item))


def list_copy_append(ilist: Sequence[Any], item: Any) -> list[Any]:
    """A copy of a list with one item more."""
    return [*ilist, item]


def null_print(*args: Any, **kwargs: Any) -> None:
    """Print nothing."""


def eprint(*args: Any, **kwargs: Any) -> None:
    """Print on stderr."""
    print(*args, file=sys.stderr, **kwargs)


def get_print_fn(debug: bool | None = None) -> Callable[..., None]:
    """`eprint`, if `debug` or the variable DEBUG says so, else `null_print`."""
    wanted = getenv_as("DEBUG", bool, False) if debug is None else debug
    return eprint if wanted else null_print


class TimedScope:
    """`with TimedScope("work"):` prints how long the block took.

    Args:
        msg: What stands before the time.
        printfn: What prints it; None prints nothing.
    """

    def __init__(self, msg: str = "", printfn: Callable[..., Any] | None = eprint) -> None:
        self._msg = msg
        self._printfn = printfn
        self._error: Any = None

    def __enter__(self) -> TimedScope:
        self._start = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._printfn is not None:
            seconds = time.perf_counter() - self._start
            failed = "" if self._error is None and value is None else f" ({self._error or value})"
            self._printfn(f"{self._msg}{seconds:.3f} s{failed}")

    def set_error(self, error: Any) -> None:
        """Have the line say that the work failed."""
        self._error = error


def timed(fn: Callable[[], Any], msg: str = "", printfn: Callable[..., Any] = eprint) -> Any:
    """`fn()`, and how long it took printed."""
    with TimedScope(msg, printfn):
        return fn()


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(n)]
        for each in sockets:
            each.bind(("", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def parallel_work(num_workers: int, fn: Callable[..., Any], *args: Any) -> Iterator[Any]:
    """`fn` of each item of `args`, zipped, in threads; results in order."""
    with ThreadPoolExecutor(num_workers) as pool:
        return pool.map(fn, *args)
