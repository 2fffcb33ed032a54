"""Executables on disk: a process that finds its graph there skips tracing, lowering and compiling.

    <cache>/<what compiled it>/<graph>       one file per graph and rank
            |                  `- signatures, places, shapes, donations, rank, jax's settings
            `- trcomp's sources, versions, device kind, XLA flags, flags of the key

Files are written whole and renamed, so ranks and jobs may share a directory. What cannot be read is
a miss, and so is a pickle that jax would not have written. An executable is code all the same: the
directory belongs to the user alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from jaxlib import xla_client

from trcomp import flags, s3, unwritten
from trcomp.env.executables import AUTOTUNING, OFF, kept_at, toolchain
from trcomp.errors import Problem, SpecError
from trcomp.runtime import client, head_start, jax_pickles, precision
from trcomp.runtime.graph import Graph
from trcomp.runtime.ir import Signature

_AUTOTUNING_OPTION = "xla_gpu_per_fusion_autotune_cache_dir"
_KEPT_BYTES = 8 * 2**30
_WORTH_SECONDS = 0.1
"""Graphs that compile faster are compiled again: loading them saves nothing."""
_DIGEST_BYTES = hashlib.sha256().digest_size
_NAMED = (
    *(type(None), bool, int, float, complex, str, bytes, type),
    *(torch.dtype, torch.memory_format, torch.layout, torch.device, np.dtype),
)
"""Types whose repr says all."""


class _UnnamedError(Exception):
    """A graph holds something that has no name another process would know."""


def load(path: Path | None, *, collective: bool) -> Any | None:
    """The executable that an earlier process left at a graph's `place`; None if there is none.

    Args:
        path: The place.
        collective: Whether the graph runs on all ranks' devices.
    """
    if path is None:
        return None
    executable = head_start.taken(path) or _read(path, collective=collective)
    if executable is not None:
        head_start.note(path.parents[1], path)
    return executable


def take_head_start() -> None:
    """Read ahead what the last run of this script loaded or left here."""
    with contextlib.suppress(SpecError, RuntimeError):
        root = None if _compiles_anew() else folder()
        if root is not None:
            head_start.begin(root, _read)


def _read(path: Path, *, collective: bool = False) -> Any | None:
    try:
        blob = path.read_bytes()
    except OSError:
        return None
    digest, payload = blob[:_DIGEST_BYTES], blob[_DIGEST_BYTES:]
    try:
        if path.parent.name != _environment():
            return None
        if hashlib.sha256(payload).digest() != digest:
            raise ValueError("the file is not as it was written")
        devices = jax.devices() if collective else [client.device()]
        executable = jax_pickles.loads(payload, devices)
    except Exception:  # Whatever is wrong with it, compiling is the answer.
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # The files that go first are those used longest ago.
    return executable


def store(path: Path | None, executable: Any, seconds: float) -> None:
    """Leave an executable for later processes; what cannot be left is no error.

    Args:
        path: The `place` of its graph.
        executable: jax's compiled program.
        seconds: How long it took to make.
    """
    if path is None or seconds < _WORTH_SECONDS:
        return
    try:
        payload = jax_pickles.dumps(executable)
    except Exception:  # A backend, or a program with constants, that cannot be serialized.
        return
    with unwritten.told("The cache of compiled programs"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with open(descriptor, "wb") as file:
                file.write(hashlib.sha256(payload).digest() + payload)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        head_start.note(path.parents[1], path)
        _prune(path.parents[1])


def folder() -> Path | None:
    """Where executables are kept; None if they are not.

    Raises:
        SpecError: The place is in S3: jobs take executables from there, and nothing else does.
    """
    place = kept_at(os.environ)
    if s3.is_url(place):
        allowed = 'a directory or "off": this process is in no job that would download them.'
        raise SpecError([Problem(flags.CACHE.name, place, allowed)])
    return None if place == OFF else Path(place)


def compiler_options() -> dict[str, str | bool]:
    """Options that have XLA keep what it finds out about a GPU beside the executables.

    An option of the compiler is no flag: this jaxlib is asked whether it has it, where an unknown
    flag in XLA_FLAGS ends the process.
    """
    root = folder()
    set_by_user = _AUTOTUNING_OPTION in os.environ.get("XLA_FLAGS", "")
    if root is None or client.platform() == "cpu" or set_by_user:
        return {}
    known = type(xla_client.CompileOptions().executable_build_options.debug_options)
    return (
        {_AUTOTUNING_OPTION: str(root / AUTOTUNING)} if hasattr(known, _AUTOTUNING_OPTION) else {}
    )


def place(graph: Graph) -> Path | None:
    """The file of a graph's executable; None if none is kept."""
    if _compiles_anew():
        return None
    try:
        root = folder()
        return None if root is None else root / _environment() / fingerprint(graph)
    except (_UnnamedError, RuntimeError):  # RuntimeError: no home directory.
        return None


def _compiles_anew() -> bool:
    """Whether nothing is loaded: dumps, comparisons and a trace's names come from compiling."""
    return flags.DEBUG.get() or flags.CHECK.get() or bool(flags.PROFILE_STEPS.get())


def fingerprint(graph: Graph) -> str:
    """A graph's key as text that is the same in every process with the same rank.

    Raises:
        _UnnamedError: Something in the graph has no such text.
    """
    digest = hashlib.sha256()
    known: dict[Signature, str] = {}
    for node, places in zip(graph.nodes, graph.places, strict=True):
        text = known.get(node.signature)
        if text is None:
            text = known[node.signature] = "\0".join(_parts(node.signature))
        digest.update(f"{text}\0{places}\0".encode())
    avals = [str(leaf.aval) for leaf in graph.leaves]
    settings = sorted((name, str(value)) for name, value in jax.config.values.items())
    position = (client.rank(), client.num_ranks(), graph.collective)
    parts = (graph.roots, avals, graph.donated, position, settings, precision.chosen())
    digest.update(repr(parts).encode())
    return digest.hexdigest()


def _parts(signature: Signature) -> Iterator[str]:
    yield signature.rule.name
    for part in (
        signature.arguments,
        signature.keywords,
        signature.views,
        signature.outputs,
        signature.compute,
        signature.present,
    ):
        yield _text(part)


def _text(value: Any) -> str:
    if isinstance(value, _NAMED):
        return repr(value)
    if isinstance(value, tuple):
        return f"{type(value).__name__}({','.join(map(_text, value))})"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_text(item)}' for key, item in value.items())}}}"
    known = getattr(value, "fingerprint", None)
    if isinstance(known, str):
        return known
    raise _UnnamedError(type(value).__name__)


@lru_cache(maxsize=1)
def _environment() -> str:
    """A digest of all besides the graph that an executable depends on."""
    device = client.device()
    parts = (
        *toolchain(os.environ, device.platform),
        *(device.platform, device.device_kind, device.client.platform_version),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _prune(root: Path) -> None:
    """Delete the files used longest ago until a quarter of the allowed bytes is free."""
    kept = []
    for path in root.glob("*/*"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            kept.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in kept)
    if total <= _KEPT_BYTES:
        return
    for _, size, path in sorted(kept):
        if total <= 0.75 * _KEPT_BYTES:
            return
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size
