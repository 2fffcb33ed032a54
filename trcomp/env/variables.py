"""Environment variables of each rank, as a pure function of the topology, with a reason for each.

Names that tell a rank from its siblings (RANK and its kin) are spelt in this file only.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trcomp import flags
from trcomp.env import xla_flags
from trcomp.env.topology import Rank, Topology
from trcomp.errors import ContractError

DIALECTS = ("jax", "pjrt", "xrt")
"""trcomp's own runtime; torch_xla 2.x; the XRT of the Training Compiler's old images."""

_IDENTITY = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_PER_RANK = (
    *_IDENTITY,
    "PJRT_LOCAL_PROCESS_RANK",
    "JAX_LOCAL_DEVICE_IDS",
    "CUDA_VISIBLE_DEVICES",
    "JAX_NUM_CPU_DEVICES",
    "XRT_HOST_ORDINAL",
)
"""One value for the whole job cannot be right for these."""

JOB_ONLY = frozenset(
    {
        *_PER_RANK,
        "MASTER_ADDR",
        "MASTER_PORT",
        "JAX_COORDINATOR_ADDRESS",
        "JAX_COORDINATOR_BIND_ADDRESS",
        "PJRT_LOCAL_PROCESS_COUNT",
        "XLA_COORDINATOR_PORT",
        "PJRT_DIST_SERVICE_ADDR",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_RUN_ID",
    }
) - {"CUDA_VISIBLE_DEVICES"}
"""What holds for one job only: a job started from within another must not inherit it."""

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
"""What names a proxy, in small letters or capitals."""


@dataclass(frozen=True)
class Variable:
    """One environment variable of a worker.

    Attributes:
        name: Its name.
        value: Its value; None removes it from the environment.
        reason: Why it has this value, a sentence for the user.
    """

    name: str
    value: str | None
    reason: str


@dataclass(frozen=True)
class Identity:
    """Which rank a process is. A process that nobody gave a rank is the only one."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


def has_identity(environ: Mapping[str, str]) -> bool:
    """Whether the process was given a rank."""
    return "RANK" in environ


def identity(environ: Mapping[str, str], world_size: int = 1) -> Identity:
    """The rank that an environment gives to its process.

    Args:
        environ: The environment.
        world_size: How many ranks there are if it does not say.

    Raises:
        ContractError: The variables are not whole numbers or contradict each other.
    """
    default = Identity(world_size=world_size)
    texts = {name: environ.get(name) or str(getattr(default, name.lower())) for name in _IDENTITY}
    found: Identity | None = None
    with contextlib.suppress(ValueError):
        found = Identity(**{name.lower(): int(text) for name, text in texts.items()})
    if (
        found is None
        or not 0 <= found.rank < found.world_size
        or not 0 <= found.local_rank < found.local_world_size <= found.world_size
    ):
        got = ", ".join(f"{name}={text}" for name, text in texts.items())
        raise ContractError(
            f"This process has no valid rank: got {got}; 0 <= RANK < WORLD_SIZE and "
            "0 <= LOCAL_RANK < LOCAL_WORLD_SIZE <= WORLD_SIZE.",
            "Unset these variables to run alone, or let trcomp or torchrun set all of them.",
        )
    return found


def identifying(identity: Identity) -> dict[str, str]:
    """The variables that give a process its rank; `identity` reads them."""
    return {name: str(getattr(identity, name.lower())) for name in _IDENTITY}


def restart_variables(attempt: int, restarts: int) -> dict[str, str]:
    """What a worker reads of how often the workers have been started anew; torchrun's names."""
    if not restarts:
        return {}
    return {
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(restarts),
    }


def master(environ: Mapping[str, str]) -> str:
    """The host of torch.distributed's store, empty if nobody named it."""
    return environ.get("MASTER_ADDR", "") if environ.get("MASTER_PORT") else ""


def coordinator_bind_address(environ: Mapping[str, str]) -> str:
    """Where rank 0 is told to serve JAX's coordination service, empty if nobody says so."""
    return environ.get("JAX_COORDINATOR_BIND_ADDRESS", "")


def gloo_interface(environ: Mapping[str, str]) -> str:
    """The interface at which gloo is told to listen, empty if nobody says so."""
    return environ.get("GLOO_SOCKET_IFNAME", "")


def with_gloo_interface(interface: str) -> dict[str, str]:
    """The variable that tells gloo where to listen."""
    return {"GLOO_SOCKET_IFNAME": interface}


def without_proxy(environ: Mapping[str, str], host: str) -> dict[str, str]:
    """The variables that keep what goes to a host off the proxies, if there are any."""
    if not any(environ.get(name) or environ.get(name.upper()) for name in PROXIES):
        return {}
    names = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
    return {name: ",".join(filter(None, [environ.get(name), host])) for name in names}


def for_rank(
    topology: Topology,
    rank: Rank,
    *,
    dialects: Sequence[str] = ("jax", "pjrt"),
    efa: bool = False,
    user: Mapping[str, str] | None = None,
    num_cpus: int | None = None,
    unknown_flags: Sequence[str] = (),
) -> tuple[Variable, ...]:
    """Every variable that trcomp sets for one rank.

    The user's own value wins, with two exceptions. A variable that tells ranks apart is always
    trcomp's: one value for the whole job cannot be right for it. And lists (XLA_FLAGS, no_proxy,
    CUDA_VISIBLE_DEVICES) are merged: what the user wrote stays in force.

    Args:
        topology: The job's hosts and devices.
        rank: One of ``topology.ranks()``.
        dialects: Whose variables, out of `DIALECTS`.
        efa: Whether this host has an Elastic Fabric Adapter.
        user: The environment that the job was given.
        num_cpus: Cores of this host, shared out between its ranks; None leaves thread pools alone.
        unknown_flags: Names of XLA's flags that this host's jaxlib has not (`xla_flags.unknown`).
    """
    given = user or {}
    computed = [*_ranks(topology, rank), *_threads(topology, rank, num_cpus)]
    if "jax" in dialects:
        computed += _jax(topology, rank, given)
        computed += _xla(topology, given, unknown_flags)
    if "pjrt" in dialects:
        computed += _pjrt(topology, rank)
    if "xrt" in dialects:
        computed += _xrt(topology, rank, efa)
    computed += _network(topology, rank, efa)
    unique = {variable.name: variable for variable in reversed(computed)}
    settled = [_settled(variable, given) for variable in reversed(unique.values())]
    return (*settled, *_proxies(topology, given), *_python(given))


def for_host(
    topology: Topology,
    host_index: int,
    *,
    efa: bool = False,
    user: Mapping[str, str] | None = None,
) -> tuple[Variable, ...]:
    """The variables of a script that runs once per host and starts the ranks itself.

    Its ranks get `for_rank`'s variables when they are started; until then it has no rank.
    """
    given = user or {}
    first = topology.local_ranks(host_index)[0]
    removed = [
        Variable(name, None, "Inherited from outside the job: this process is no rank.")
        for name in _IDENTITY
        if name in given
    ]
    settled = [_settled(choice, given) for choice in _network(topology, first, efa)]
    return (*removed, *settled, *_proxies(topology, given), *_python(given))


def for_xrt_host(topology: Topology, host_index: int, *, efa: bool = False) -> tuple[Variable, ...]:
    """What a host of the Training Compiler's old images needs whose script starts the ranks."""
    return tuple(_xrt(topology, topology.local_ranks(host_index)[0], efa))


def applied(environ: Mapping[str, str], variables: Sequence[Variable]) -> dict[str, str]:
    """An environment after the variables were set and removed in it."""
    result = dict(environ)
    for variable in variables:
        if variable.value is None:
            result.pop(variable.name, None)
        else:
            result[variable.name] = variable.value
    return result


def merged_flags(computed: Sequence[str], user: str | None) -> str:
    """XLA_FLAGS out of trcomp's flags and the user's text, which is kept as it is and wins.

    A user's text that is no list of flags names a file of them (XLA's own rule) and is kept alone.
    """
    text = (user or "").strip()
    if text and not text.startswith("-"):
        return text
    own = set(re.findall(r"--([A-Za-z0-9_]+)", text))
    added = [flag for flag in computed if xla_flags.name_of(flag) not in own]
    return " ".join([*added, text] if text else added)


def _settled(variable: Variable, user: Mapping[str, str]) -> Variable:
    """The variable, or the user's own value for it."""
    own = user.get(variable.name)
    merged = variable.name in _PER_RANK or variable.name == "XLA_FLAGS"
    if own is None or own == variable.value or merged:
        return variable
    return Variable(variable.name, own, f"Your own value; trcomp would set {variable.value!r}.")


def _ranks(topology: Topology, rank: Rank) -> Iterator[Variable]:
    local, world = rank.host.num_devices, topology.world_size
    yield Variable("RANK", str(rank.rank), "This process among all of the job.")
    yield Variable("WORLD_SIZE", str(world), "Ranks of the job: devices of all hosts.")
    yield Variable("LOCAL_RANK", str(rank.local_rank), f"This process on {rank.host.name}.")
    yield Variable("LOCAL_WORLD_SIZE", str(local), f"Ranks on {rank.host.name}: its devices.")
    yield Variable(
        "MASTER_ADDR", topology.master.address, f"{topology.master.name}, the host of rank 0."
    )
    yield Variable(
        "MASTER_PORT",
        str(topology.master_port),
        "torch.distributed's store; SageMaker's own containers use this port.",
    )


def _threads(topology: Topology, rank: Rank, num_cpus: int | None) -> Iterator[Variable]:
    ranks = rank.host.num_devices
    if num_cpus is None or ranks == 1:
        return
    share = str(max(1, num_cpus // ranks))
    cores = f"{ranks} ranks share {num_cpus} cores; more threads than cores slow all of them."
    yield Variable("OMP_NUM_THREADS", share, cores)
    if topology.device_kind == "cpu":
        yield Variable("NPROC", share, f"XLA's thread pools on the CPU: {cores}")


def _jax(topology: Topology, rank: Rank, user: Mapping[str, str]) -> Iterator[Variable]:
    gpu, several = topology.device_kind == "gpu", topology.world_size > 1
    if gpu:
        yield Variable(
            "CUDA_VISIBLE_DEVICES",
            _own_device(rank, user.get("CUDA_VISIBLE_DEVICES")),
            "One device per process, hidden before any import can open the others.",
        )
        yield Variable("JAX_LOCAL_DEVICE_IDS", "0", "The only device this process sees.")
        platforms = "GPUs were found: failing to open one is an error, no silent fall to the CPU."
        yield Variable("JAX_PLATFORMS", "cuda,cpu", platforms)
    else:
        yield Variable("JAX_PLATFORMS", "cpu", "No GPU on this host: JAX need not look for one.")
        yield Variable("JAX_NUM_CPU_DEVICES", "1", "One device per process, as on a GPU host.")
    if not several:
        return
    yield Variable("JAX_COORDINATOR_ADDRESS", topology.coordinator, "Where the ranks meet.")
    if rank.rank == 0 and topology.master.address.startswith("127."):
        yield Variable(
            "JAX_COORDINATOR_BIND_ADDRESS",
            topology.coordinator,
            "All hosts are on this machine: other jobs on it may use the same port.",
        )


def _xla(
    topology: Topology, user: Mapping[str, str], unknown_flags: Sequence[str]
) -> Iterator[Variable]:
    wanted = xla_flags.for_topology(topology, user)
    if not wanted:
        return
    size = xla_flags.bucket_mb(topology, user)
    if size != flags.BUCKET_MB.default:
        large = "Gradients travel in larger buckets between hosts: NCCL needs them there."
        yield Variable(flags.BUCKET_MB.name, str(size), large)
    known = [flag for flag in wanted if xla_flags.name_of(flag) not in unknown_flags]
    merged = merged_flags(known, user.get("XLA_FLAGS"))
    left = f" This jaxlib has no {', '.join(unknown_flags)}." if unknown_flags else ""
    yield Variable(
        "XLA_FLAGS",
        merged or None,
        "Overlaps collectives with compute, and lets XLA combine up to a bucket of gradients; your "
        f"own flags are kept and win.{left}",
    )


def _pjrt(topology: Topology, rank: Rank) -> Iterator[Variable]:
    local = str(rank.host.num_devices)
    if topology.device_kind == "gpu":
        yield Variable("PJRT_DEVICE", "CUDA", "The name that torch_xla 2.x scripts look for.")
        yield Variable("GPU_NUM_DEVICES", local, "Devices of a host, to torch_xla scripts.")
    else:
        yield Variable("PJRT_DEVICE", "CPU", "The name that torch_xla 2.x scripts look for.")
        yield Variable("CPU_NUM_DEVICES", local, "Devices of a host, to torch_xla scripts.")
    yield Variable(
        "PJRT_LOCAL_PROCESS_RANK", str(rank.local_rank), "LOCAL_RANK, by torch_xla's name."
    )
    yield Variable("PJRT_LOCAL_PROCESS_COUNT", local, "LOCAL_WORLD_SIZE, by torch_xla's name.")
    if topology.world_size > 1:
        port = str(topology.coordinator_port)
        yield Variable("XLA_COORDINATOR_PORT", port, "Where torch_xla's ranks meet.")
    if len(topology.hosts) > 1:
        yield Variable(
            "PJRT_DIST_SERVICE_ADDR", topology.coordinator, "The same, as torch_xla 2.0 reads it."
        )


def _xrt(topology: Topology, rank: Rank, efa: bool) -> Iterator[Variable]:
    """What the Training Compiler's own launcher set (sagemaker-training, pytorch_xla.py)."""
    services = [
        f"localservice:{index};{host.address}:{topology.coordinator_port}"
        for index, host in enumerate(topology.hosts)
    ]
    yield Variable("XRT_WORKERS", "|".join(services), "Every host's XRT service.")
    yield Variable("XRT_HOST_ORDINAL", str(rank.host_index), f"{rank.host.name} among the hosts.")
    yield Variable("XRT_SHARD_WORLD_SIZE", str(len(topology.hosts)), "The number of hosts.")
    if len(topology.hosts) > 1:
        address = f"{topology.master.address}:{topology.mesh_port}"
        yield Variable("XRT_MESH_SERVICE_ADDRESS", address, "Where XRT's hosts meet.")
    if topology.device_kind == "gpu":
        local = str(rank.host.num_devices)
        yield Variable("GPU_NUM_DEVICES", local, "How many processes xmp.spawn starts on a host.")
    if efa:
        local = str(rank.host.num_devices)
        old = "This image's libfabric does not find it out by itself."
        yield Variable("NCCL_PROTO", "simple", f"EFA does not keep the order of writes. {old}")
        yield Variable("FI_EFA_USE_DEVICE_RDMA", "1", f"GPUs talk to the adapter directly. {old}")
        yield Variable("OFI_NCCL_NIC_DUP_CONNS", local, "Connections per adapter, one per GPU.")


def _network(topology: Topology, rank: Rank, efa: bool) -> Iterator[Variable]:
    gpu, several = topology.device_kind == "gpu", len(topology.hosts) > 1
    here = topology.master.address.startswith("127.")
    interface = "lo" if here else topology.network_interface
    if gpu and topology.world_size > 1:
        yield Variable("NCCL_DEBUG", "WARN", "NCCL says why it fails, and no more.")
    if gpu and several and interface:
        common = "NCCL need not guess the hosts' common interface."
        yield Variable("NCCL_SOCKET_IFNAME", interface, common)
    if topology.world_size > 1 and interface:
        listens = "Gloo listens at the job's own interface alone, and need not guess which it is."
        yield Variable("GLOO_SOCKET_IFNAME", interface, listens)
    if efa and len(topology.hosts) > 1:
        yield Variable("FI_PROVIDER", "efa", "An EFA device was found: no silent fall to TCP.")
        fork = "Data loader workers fork while the adapter holds pinned memory."
        yield Variable("FI_EFA_FORK_SAFE", "1", fork)
        yield Variable("RDMAV_FORK_SAFE", "1", fork)


def _proxies(topology: Topology, user: Mapping[str, str]) -> Iterator[Variable]:
    """Keeps the job's own traffic off the proxy, and leaves the proxy to the script's downloads."""
    lowered = {name.lower() for name, value in user.items() if value}
    if not lowered.intersection(PROXIES):
        return
    own = [user.get(name, "") for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy")]
    names = [text for host in topology.hosts for text in (host.name, host.address)]
    listed = [*",".join(own).split(","), *names, "localhost", "127.0.0.1"]
    value = ",".join(dict.fromkeys(text.strip() for text in listed if text.strip()))
    reason = "The ranks reach each other directly; downloads still use your proxy."
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        yield Variable(name, value, reason)


def _python(user: Mapping[str, str]) -> Iterator[Variable]:
    for name, reason in (
        ("PYTHONUNBUFFERED", "Lines reach the log when they are printed."),
        ("PYTHONFAULTHANDLER", "A native crash prints where the script was."),
    ):
        if name not in user:
            yield Variable(name, "1", reason)


def _own_device(rank: Rank, visible: str | None) -> str:
    """One entry of the host's visible devices; without a list, devices are numbered."""
    entries = [entry.strip() for entry in (visible or "").split(",") if entry.strip()]
    if rank.local_rank < len(entries):
        return entries[rank.local_rank]
    return str(rank.local_rank)
