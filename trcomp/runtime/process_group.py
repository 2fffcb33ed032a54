"""The c10d backend: `torch.distributed` on device tensors, recorded into the step's graph.

    dist.all_reduce(tensor)  DDP's reducer
              `------+-----------'
             XlaProcessGroup --device tensors--> a node of the pending graph, run at the next sync
                    `---------host tensors, objects, barriers, send and recv--> gloo

A call returns when it is recorded, and its work handle is complete then: whoever reads the result
reads it after the collective, as on a CUDA stream. What waits on the host first starts what is
pending, because a peer may be waiting for that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllreduceOptions,
    BarrierOptions,
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    ReduceOp,
    Store,
    Work,
)

from trcomp.errors import UnsupportedError
from trcomp.runtime import data_parallel, reductions
from trcomp.runtime.device import NAME
from trcomp.runtime.distributed import world_size
from trcomp.runtime.recording import is_device_tensor
from trcomp.runtime.waiting import arrive
from trcomp.runtime.works import OnHost, Received, done

_REDUCTIONS = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "sum",
    ReduceOp.PRODUCT: "mul",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "and",
    ReduceOp.BOR: "or",
    ReduceOp.BXOR: "xor",
}


def _by_device(method: Callable[..., Work]) -> Callable[..., Work]:
    """Send a call on host tensors to gloo, under the same name."""

    @functools.wraps(method)
    def call(self: XlaProcessGroup, *args: Any) -> Work:
        tensor = next(_tensors(args), None)
        if tensor is not None and not is_device_tensor(tensor):
            return OnHost(getattr(self.host(), method.__name__)(*args))
        with torch.no_grad():
            return method(self, *args)

    return call


def _tensors(args: Iterable[Any]) -> Iterator[Any]:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from _tensors(arg)


class XlaProcessGroup(ProcessGroup):
    """Ranks that reduce together.

    Args:
        store: Where the ranks leave what the others must know.
        rank: This process in the group.
        size: Processes in the group.
        ranks: The job's ranks in it, in the group's order; empty for all.
        timeout: How long gloo waits on the host.
    """

    backend_name = NAME
    supports_splitting = False
    supports_coalescing = False

    def __init__(
        self, store: Store, rank: int, size: int, ranks: Sequence[int], timeout: timedelta
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store, self._timeout = store, timeout
        self._ranks = tuple(ranks) or tuple(range(size))
        self._partition = reductions.around(self._ranks, world_size())
        self._gloo: ProcessGroup | None = None
        self._name = self._description = ""

    def host(self) -> ProcessGroup:
        """The same ranks over gloo."""
        if self._gloo is None:
            store = PrefixStore("host", self._store)
            self._gloo = ProcessGroup(store, self.rank(), self.size())
            gloo = ProcessGroupGloo(store, self.rank(), self.size(), timeout=self._timeout)
            self._gloo._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)
        return self._gloo

    # Reductions.

    @_by_device
    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        tensors = _listed(tensors)
        name, scale = self._reduction(getattr(opts, "reduceOp", opts or ReduceOp(ReduceOp.SUM)))
        data_parallel.reduce_in_place(tensors, name, scale, self._partition)
        return done(tensors)

    allreduce_coalesced = allreduce

    @_by_device
    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        name, scale = self._reduction(opts.reduceOp)
        reduced = [tensor.clone() for tensor in tensors]
        data_parallel.reduce_in_place(reduced, name, scale, self._partition)
        if self.rank() == opts.rootRank:
            torch._foreach_copy_(tensors, reduced)
        return done(tensors)

    @_by_device
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Work:
        name, scale = self._reduction(opts.reduceOp)
        share = data_parallel.scatter_reduced(input.reshape(-1), name, scale, 0, self._partition)
        output.copy_(share.view(output.shape))
        return done([output])

    @_by_device
    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> Work:
        name, scale = self._reduction(opts.reduceOp)
        for output, parts in zip(outputs, inputs, strict=True):
            if len({part.shape for part in parts}) == 1:
                self.reduce_scatter_single(output, torch.stack(parts), opts)
                continue
            reduced = [part.clone() for part in parts]
            data_parallel.reduce_in_place(reduced, name, scale, self._partition)
            output.copy_(reduced[self.rank()])
        return done(outputs)

    @_by_device
    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        for output, part in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, part, opts)
        return done(outputs)

    # What one rank, or each, has for the others.

    @_by_device
    def broadcast(self, tensors: Any, opts: Any) -> Work:
        tensors = _listed(tensors)
        root = self._ranks[getattr(opts, "rootRank", opts)]
        data_parallel.broadcast_in_place(tensors, root, self._partition)
        return done(tensors)

    @_by_device
    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        for parts, value in zip(outputs, inputs, strict=True):
            if all(part.shape == value.shape for part in parts):
                gathered = data_parallel.gather(value[None], 0, self._partition)
                torch._foreach_copy_(parts, list(gathered.unbind()))
            else:
                self._gather_uneven(parts, value)
        return done(outputs)

    def _gather_uneven(self, parts: list[torch.Tensor], value: torch.Tensor) -> None:
        """Each rank's tensor has a size of its own: one broadcast each."""
        parts[self.rank()].copy_(value)
        for rank, part in zip(self._ranks, parts, strict=True):
            data_parallel.broadcast_in_place([part], rank, self._partition)

    @_by_device
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Work:
        gathered = data_parallel.gather(input.reshape(-1), 0, self._partition)
        output.copy_(gathered.view(output.shape))
        return done([output])

    @_by_device
    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        for output, part in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, part, opts)
        return done(outputs)

    @_by_device
    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        for index, part in enumerate(inputs):
            self.allgather([[held[index] for held in outputs]], [part], opts)
        return done(outputs)

    @_by_device
    def gather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        for index, value in enumerate(inputs):
            gathered = data_parallel.gather(value[None], 0, self._partition)
            if self.rank() == opts.rootRank:
                torch._foreach_copy_(outputs[index], list(gathered.unbind()))
        return done(outputs)

    @_by_device
    def scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> Work:
        root = self._ranks[opts.rootRank]
        for index, output in enumerate(outputs):
            is_root = self.rank() == opts.rootRank
            rows = inputs[index] if is_root else [torch.zeros_like(output)] * self.size()
            output.copy_(data_parallel.scatter_from(torch.stack(rows), root, self._partition))
        return done(outputs)

    # Each rank to each.

    @_by_device
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any,
    ) -> Work:
        if output_sizes or input_sizes:
            parts = output.split(list(output_sizes) or output.shape[0] // self.size())
            given = input.split(list(input_sizes) or input.shape[0] // self.size())
            self._exchange_uneven(list(parts), list(given))
        else:
            flat = data_parallel.exchange(input.reshape(-1), 0, 0, self._partition)
            output.copy_(flat.view(output.shape))
        return done([output])

    @_by_device
    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> Work:
        self._exchange_uneven(outputs, inputs)
        return done(outputs)

    def _exchange_uneven(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
        """Parts travel padded to the longest that any rank sends; how long, the hosts agree on."""
        longest = torch.tensor(max(part.numel() for part in inputs))
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.MAX)
        OnHost(self.host().allreduce([longest], options)).wait()
        width = int(longest)
        rows = [
            torch.nn.functional.pad(part.reshape(-1), (0, width - part.numel())) for part in inputs
        ]
        came = data_parallel.exchange(torch.stack(rows), 0, 0, self._partition)
        for output, row in zip(outputs, came.unbind(), strict=True):
            output.copy_(row[: output.numel()].view(output.shape))

    # Point to point, and waiting.

    @_by_device
    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        return OnHost(self.host().send([_as_bytes(tensor.cpu()) for tensor in tensors], peer, tag))

    @_by_device
    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        held = [torch.empty_like(tensor, device="cpu") for tensor in tensors]
        work = self.host().recv([_as_bytes(tensor) for tensor in held], peer, tag)
        return Received(work, held, tensors)

    @_by_device
    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Work:
        held = [torch.empty_like(tensor, device="cpu") for tensor in tensors]
        work = self.host().recv_anysource([_as_bytes(tensor) for tensor in held], tag)
        return Received(work, held, tensors)

    def barrier(self, opts: Any = None) -> Work:
        """Wait on the host until every rank of the group is here."""
        waiting = BarrierOptions()
        waiting.device = torch.device("cpu")
        place = arrive("barrier") if self._partition is None else ""
        return OnHost(self.host().barrier(waiting), place)

    # What torch asks of a group.

    def getBackendName(self) -> str:  # noqa: N802 - c10d's name
        """The name under which the backend was asked for."""
        return self.backend_name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> Any:
        """Its name among this process's groups; torch keeps it on backends, and this has none."""
        return self._name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def group_desc(self) -> str:
        """What the group is for."""
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device(NAME)]

    def _get_backend(self, device: torch.device) -> Any:
        return self.host()._get_backend(device) if device.type == "cpu" else self

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        if self._gloo is not None:
            self._gloo._get_backend(torch.device("cpu")).set_timeout(timeout)

    set_timeout = _set_default_timeout

    def _set_sequence_number_for_group(self) -> None:
        """Collectives are numbered where they are compared (`peers`)."""

    def _start_coalescing(self, device: torch.device) -> None:
        """Nothing to do: all collectives of a step are one graph anyway."""

    def _end_coalescing(self, device: torch.device) -> Work:
        return done()

    def shutdown(self) -> None:
        """Start what is pending and let gloo's connections go."""
        data_parallel.start_owed()
        self._gloo = None

    abort = shutdown

    def _reduction(self, op: Any) -> tuple[str, float]:
        name = _REDUCTIONS.get(op.op)
        if name is None:
            raise UnsupportedError(
                f"got the reduction {op}; allowed: {', '.join(op.name for op in _REDUCTIONS)}.",
                "Multiply first, then reduce with SUM.",
            )
        return name, 1 / self.size() if op.op == ReduceOp.AVG else 1.0


def _listed(tensors: Any) -> list[torch.Tensor]:
    """torch's own Python calls some collectives with one tensor."""
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor's memory as bytes: gloo sends some dtypes only."""
    return tensor.reshape(-1).view(torch.uint8)
