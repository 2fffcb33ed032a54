"""Topology: the hosts of a job and their devices, laid out as ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal, get_args

from trcomp import json_fields
from trcomp.errors import ContractError, Problem, SpecError

DeviceKind = Literal["gpu", "cpu"]
MOST_HOSTS = 10_000
MOST_DEVICES = 1024
"""Of a host, virtual ones too: each is a process."""


@dataclass(frozen=True)
class Host:
    """One machine of the job, or what stands for one.

    Attributes:
        name: Its name in the job, such as ``algo-1``.
        address: A name or IP address at which the other hosts reach it.
        num_devices: How many ranks run on it.
    """

    name: str
    address: str
    num_devices: int


@dataclass(frozen=True)
class Rank:
    """One process of the job: its number in the job, and its place."""

    rank: int
    local_rank: int
    host_index: int
    host: Host


@dataclass(frozen=True)
class Topology:
    """All hosts of a job. Ranks are counted host by host, in the order of ``hosts``.

    Attributes:
        hosts: In the order that every host agrees on.
        device_kind: What one rank runs on.
        network_interface: The interface between the hosts; empty if unknown, libraries then choose.
        coordinator_port: Where rank 0 serves JAX's coordination service (and XRT's workers listen).
        mesh_port: XRT's mesh service.
        master_port: torch.distributed's store. SageMaker's own containers use the same number.
    """

    hosts: tuple[Host, ...]
    device_kind: DeviceKind
    network_interface: str = ""
    coordinator_port: int = 43857
    mesh_port: int = 53957
    master_port: int = 7777

    @cached_property
    def world_size(self) -> int:
        """The number of ranks of the job."""
        return sum(host.num_devices for host in self.hosts)

    @property
    def master(self) -> Host:
        """The host of rank 0."""
        return self.hosts[0]

    @property
    def coordinator(self) -> str:
        """``address:port`` at which the ranks find each other."""
        return f"{self.master.address}:{self.coordinator_port}"

    def ranks(self) -> tuple[Rank, ...]:
        """Every rank of the job, in order."""
        places = [
            (local_rank, index, host)
            for index, host in enumerate(self.hosts)
            for local_rank in range(host.num_devices)
        ]
        return tuple(Rank(rank, *place) for rank, place in enumerate(places))

    def local_ranks(self, host_index: int) -> tuple[Rank, ...]:
        """The ranks of one host, in order."""
        return tuple(rank for rank in self.ranks() if rank.host_index == host_index)

    def to_json(self) -> str:
        """The topology as one line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def _check(self) -> None:
        ports = (self.coordinator_port, self.mesh_port, self.master_port)
        if not 1 <= len(self.hosts) <= MOST_HOSTS or any(
            not 1 <= host.num_devices <= MOST_DEVICES for host in self.hosts
        ):
            raise ValueError("hosts with at least one device each are needed")
        if any(type(port) is not int or not 1 <= port < 1 << 16 for port in ports):
            raise ValueError(f"ports: got {ports}")
        if self.device_kind not in get_args(DeviceKind) or type(self.network_interface) is not str:
            raise ValueError(f"got {self.device_kind!r}, {self.network_interface!r}")

    @classmethod
    def from_json(cls, text: str) -> Topology:
        """The topology that ``to_json`` wrote.

        Raises:
            ContractError: The text is something else.
        """
        try:
            values = json.loads(text)
            hosts = tuple(json_fields.made(Host, host) for host in values.pop("hosts"))
            found = cls(hosts=hosts, **values)
            found._check()
            return found
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ContractError(
                f"The job's topology is not readable: got {text!r} ({error}).",
                "It is set by trcomp's entrypoint; start the script through a job.",
            ) from error


def wanted_devices(environ: Mapping[str, str], num_gpus: int = 0) -> int | None:
    """The devices per host that GPU_NUM_DEVICES asks for; None if it asks for nothing.

    Args:
        environ: The environment that may hold it.
        num_gpus: The GPUs found, more of which there cannot be; 0: virtual devices.

    Raises:
        SpecError: It is no number from 1, more than the GPUs, or than a host could have.
    """
    text = environ.get("GPU_NUM_DEVICES")
    if not text:
        return None
    most = num_gpus or MOST_DEVICES
    # int() takes other scripts' digits too, and refuses thousands of them with an error of its own.
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    if not 1 <= number <= most:
        allowed = (
            f"1 to {most}, the GPUs found." if num_gpus else f"a whole number from 1 to {most}."
        )
        raise SpecError([Problem("GPU_NUM_DEVICES", text, allowed)])
    return number


def uniform(
    names: Sequence[str],
    num_devices: int,
    device_kind: DeviceKind,
    *,
    addresses: dict[str, str] | None = None,
    network_interface: str = "",
) -> Topology:
    """A topology whose hosts all have the same number of devices.

    Args:
        names: The hosts, in the order that every host agrees on.
        num_devices: Devices per host.
        device_kind: What one rank runs on.
        addresses: Address by host name. A host without one is reached by its name, and the only
            host of a job by 127.0.0.1.
        network_interface: The interface between the hosts.
    """
    known = addresses or {}
    alone = len(names) == 1
    hosts = tuple(
        Host(name, known.get(name, "127.0.0.1" if alone else name), num_devices) for name in names
    )
    return Topology(hosts, device_kind, network_interface)
