"""The ranks that make a checkpoint together: trcomp's, a process group's, or this process alone."""

from __future__ import annotations

import importlib
import os
import sys
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.distributed as dist

from trcomp.env import variables
from trcomp.errors import DeviceError


class Ranks(ABC):
    """All ranks, seen from this one.

    Attributes:
        rank: This process among all.
        world_size: All.
        local_rank: This process on its host.
    """

    rank = 0
    world_size = 1
    local_rank = 0

    @abstractmethod
    def exchange(self, payload: bytes) -> list[bytes]:
        """Every rank's payload, in order, once every rank is here."""

    @abstractmethod
    def largest(self, value: float) -> torch.Tensor:
        """The largest of all ranks' values, in a tensor that may still have to be computed."""

    @abstractmethod
    def settle(self) -> None:
        """End the step, on this rank as on every other, before some of them read values."""


class _Alone(Ranks):
    def exchange(self, payload: bytes) -> list[bytes]:
        return [payload]

    def largest(self, value: float) -> torch.Tensor:
        return torch.tensor(value)

    def settle(self) -> None:
        """Nothing is pending."""


class _OfRuntime(Ranks):
    """Ranks of trcomp, with XLA or without."""

    def __init__(self) -> None:
        # Not at the top: outside of a worker the import would make `xla` a device.
        self._runtime: Any = importlib.import_module("trcomp.runtime")
        self.rank = self._runtime.rank()
        self.world_size = self._runtime.world_size()
        self.local_rank = self._runtime.local_rank()

    def exchange(self, payload: bytes) -> list[bytes]:
        found: list[bytes] = self._runtime.rendezvous("trcomp.checkpoint", payload)
        return found

    def largest(self, value: float) -> torch.Tensor:
        # A number enters the step's graph as an input: another one compiles nothing.
        own = torch.full((), value, device=self._runtime.device())
        found: torch.Tensor = self._runtime.all_reduce("max", own)
        return found

    def settle(self) -> None:
        self._runtime.settle()


class _OfGroup(Ranks):
    """Ranks of torch.distributed's default group, in a process without trcomp's runtime."""

    def __init__(self) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        found = variables.identity(os.environ, self.world_size)
        is_own = variables.has_identity(os.environ) and found.world_size > 1
        self.local_rank = found.local_rank if is_own else self.rank
        on_gpu = dist.get_backend() == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else "cpu"

    def exchange(self, payload: bytes) -> list[bytes]:
        payloads: list[Any] = [None] * self.world_size
        dist.all_gather_object(payloads, payload)
        return payloads

    def largest(self, value: float) -> torch.Tensor:
        found = torch.tensor(value, device=self._device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found

    def settle(self) -> None:
        """Nothing is pending."""


def found() -> Ranks:
    """The ranks of this process.

    Raises:
        DeviceError: It has a rank among several, and no way to reach the others yet.
    """
    if "trcomp.runtime" in sys.modules:
        return _OfRuntime()
    if dist.is_available() and dist.is_initialized():
        return _OfGroup()
    identity = variables.identity(os.environ)
    if identity.world_size > 1:
        raise DeviceError(
            f"This is rank {identity.rank} of {identity.world_size}, and there is no process group "
            "by which a checkpoint could be agreed on.",
            "Call torch.distributed.init_process_group() before the Checkpointer is used.",
        )
    return _Alone()
