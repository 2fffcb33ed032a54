"""The pickles in which jax keeps executables, and no others: reading one calls nothing but jax.

A cache may be shared, and a pickle can name any function to call. Those that jax writes name its
own classes, and functions of its own that put them together again.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Sequence
from typing import Any
from unittest import mock

import jax
from jax.experimental import serialize_executable

_patching = threading.Lock()
"""Executables are read ahead in a thread (`head_start`)."""
_HOMES = ("jax", "jaxlib", "ml_dtypes", "numpy")
"""Packages whose classes describe a program: its shapes, dtypes, shardings."""


def dumps(executable: Any) -> bytes:
    """One of jax's compiled programs."""
    return pickle.dumps(serialize_executable.serialize(executable))


def loads(payload: bytes, devices: Sequence[jax.Device]) -> Any:
    """The program that `dumps` was given, for these devices.

    Raises:
        pickle.UnpicklingError: The bytes name what jax's own never do.
    """
    code, in_tree, out_tree = _Pickle(io.BytesIO(payload)).load()
    with _patching, mock.patch.object(serialize_executable, "_JaxPjrtUnpickler", _Program):
        return serialize_executable.deserialize_and_load(
            code, in_tree, out_tree, execution_devices=devices
        )


class _Pickle(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # A dotted name would lead from a module to what it imports.
        if module.partition(".")[0] in _HOMES and "." not in name:
            found = super().find_class(module, name)
            is_type = isinstance(found, type)
            home = (found if is_type or callable(found) else type(found)).__module__
            puts_together = name.startswith("_unpickle_") or name == "_reconstruct"
            if home.partition(".")[0] in _HOMES and (
                is_type or puts_together or not callable(found)
            ):
                return found
        raise pickle.UnpicklingError(f"an executable of jax's does not name {module}.{name}")


class _Program(_Pickle, serialize_executable._JaxPjrtUnpickler):
    """What of a program's pickle lies outside it, devices and XLA's own code, is found by jax."""
