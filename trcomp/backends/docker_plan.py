"""The plan of a job in containers: their image, mounts, limits, network and environment."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from trcomp import container, contract, flags, s3
from trcomp.backends import frozen_job, local_request
from trcomp.backends.base import Frozen
from trcomp.backends.local_plan import HostPlan, LocalPlan
from trcomp.contract import Checkpoints, Paths
from trcomp.env import executables, gpus
from trcomp.errors import Problem, SpecError
from trcomp.images import frozen
from trcomp.spec import JobSpec

NAME = "docker"
OWN = "/trcomp"
"""Where a container has what trcomp gives it beside the contract."""
HOME = f"{OWN}/home"
_CACHE = f"{OWN}/cache"
_LOGS = f"{OWN}/logs"
_ALL = "all"
_SHM = "8g"
_LIMITS = ("shm_size", "memory", "cpus", "ulimits")
PASSED = (
    *(flags.BUCKET_MB, flags.CHECK, flags.COMPILE_MODELS, flags.EAGER, flags.GRACE_SECONDS),
    *(flags.MAX_PENDING, flags.MAX_RESTARTS, flags.METRICS, flags.PREFETCH, flags.STEPS),
    *(flags.HOSTS_PORT, flags.WATCHDOG_SECONDS),
)
"""Flags of the runtime; others are for whoever starts a job, name places, or hold a password."""


class Mount(Frozen):
    """A file or directory of this machine and its place in a container."""

    source: Path
    target: str
    read_only: bool = False

    def __str__(self) -> str:
        return f"{self.target} <- {self.source}{' (read-only)' if self.read_only else ''}"


class ContainerPlan(HostPlan):
    """What one host of a job, a container, is started with."""

    container: str
    """The container's name."""
    mounts: tuple[Mount, ...]
    gpus: tuple[str, ...] | int = ()
    """Which, by number or UUID; how many; -1: all of the machine."""


class Limits(Frozen):
    """What each host may use."""

    shm_bytes: int
    memory_bytes: int | None = None
    cpus: float | None = None
    ulimits: Mapping[str, tuple[int, int]]


class DockerPlan(LocalPlan):
    """The request of a job in containers on this machine."""

    RUNNER: ClassVar[str] = "trcomp.backends.docker_runner"

    hosts: tuple[ContainerPlan, ...]
    image: str | None
    """None: trcomp's own, built as the job is submitted unless it is there."""
    user: str
    """``uid:gid`` or a name of the image."""
    limits: Limits
    network: str
    """The job's own network, made for it; or "host"."""
    internal: bool = False
    """Whether that network leads nowhere else."""
    joined: str | None = None
    """A network that exists, joined besides."""
    extra_hosts: Mapping[str, str]
    passed: tuple[str, ...] = ()
    """The variables, ``*`` standing for any letters, that are taken over from whoever submits."""

    def to_text(self) -> str:
        """The plan for a reader, secrets masked."""
        lines = super().to_text().splitlines()
        own = [f"image      {self.image or 'of trcomp, built where it is missing'}"]
        own.append(f"user       {self.user}")
        own.append(f"network    {self.network}{', which leads nowhere else' * self.internal}")
        own += [f"network    {self.joined}"] if self.joined else []
        given: dict[str, Any] = {"shm_size": _SHM, **self.spec.container}
        own += [f"limit      {word}={given[word]}" for word in _LIMITS if word in given]
        own += [f"passed     {', '.join(self.passed)}"] if self.passed else []
        first = next(i for i, line in enumerate(lines) if line.startswith("code"))
        lines[first:first] = own
        for host in self.hosts:
            at = lines.index(f"host       {host.name}") + 1
            devices = [f"  gpus      {_gpu_text(host.gpus)}"] if host.gpus else []
            lines[at:at] = [*devices, *(f"  mount     {mount}" for mount in host.mounts)]
        return "\n".join(lines)


def problems(spec: JobSpec) -> list[Problem]:
    """What this backend cannot do of a spec."""
    words = spec.container
    found = local_request.problems(spec)
    old = frozen.of_uri(spec.managed.get("image_uri"))
    if old is not None:
        found += frozen_job.problems(spec, old)
    for source in words.get("mounts", {}):
        if not os.path.exists(Path(os.path.expanduser(source))):
            allowed = "there is no such file or directory on this machine."
            found.append(Problem("mounts", source, allowed))
    if spec.instance_type == "local":
        if "gpus" in words:
            allowed = "instance_type='local_gpu' has GPUs; leave it out, or use that."
            found.append(Problem("gpus", words["gpus"], allowed))
    else:
        found += _gpu_problems(spec)
    if words.get("network") == "host":
        if spec.instance_count > 1:
            allowed = "hosts of one machine's network cannot be told apart; 1, or another network."
            found.append(Problem("instance_count", spec.instance_count, allowed))
        if spec.managed.get("enable_network_isolation"):
            allowed = "the host's network isolates nothing; leave one of the two out."
            found.append(Problem("enable_network_isolation", True, allowed))
    if "aws_profile" in words and not (Path.home() / ".aws").is_dir():
        found.append(Problem("aws_profile", words["aws_profile"], "there is no ~/.aws."))
    return found


def plan(spec: JobSpec) -> DockerPlan:
    """The containers of a job, and what they are given.

    Raises:
        SpecError: Holds everything that `problems` finds.
    """
    found = problems(spec)
    if found:
        raise SpecError(found)
    common, words = local_request.fields(spec), spec.container
    identity = object_name(spec.job_name, common["directory"])
    names = local_request.host_names(spec)
    shares = _gpu_shares(spec)
    network = words.get("network")
    limits = Limits(
        shm_bytes=container.num_bytes(words.get("shm_size", _SHM)),
        memory_bytes=container.num_bytes(words["memory"]) if "memory" in words else None,
        cpus=words.get("cpus"),
        ulimits={n: container.to_limit(value) for n, value in words.get("ulimits", {}).items()},
    )
    return DockerPlan(
        backend=NAME,
        hosts=tuple(
            _plan_host(spec, common, name, f"{identity}-{name}", share)
            for name, share in zip(names, shares, strict=True)
        ),
        image=spec.managed.get("image_uri"),
        user=words.get("user", f"{os.getuid()}:{os.getgid()}"),
        limits=limits,
        network="host" if network == "host" else identity,
        internal=bool(spec.managed.get("enable_network_isolation")),
        joined=None if network == "host" else network,
        extra_hosts=words.get("extra_hosts", {}),
        passed=tuple(words.get("pass_environment", ())),
        **common,
    )


def object_name(job_name: str, directory: Path) -> str:
    """What a job's network is called, and its containers after it.

    A name is one job's in a directory of jobs, and there may be several of those.
    """
    place = hashlib.sha256(str(directory).encode()).hexdigest()[:8]
    return f"trcomp-{job_name}-{place}"


def passed_environment(passed: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """What a container takes over from whoever submits the job.

    Settings of trcomp's runtime go along, as they would into a process.

    Args:
        passed: Patterns of the names that the job asks for.
        environ: The submitter's environment.
    """
    own = {flag.name for flag in PASSED}
    patterns = [re.compile(fnmatch.translate(pattern)) for pattern in passed]
    return {
        name: value
        for name, value in environ.items()
        if name in own or any(pattern.match(name) for pattern in patterns)
    }


def _plan_host(
    spec: JobSpec,
    common: Mapping[str, Any],
    name: str,
    container_name: str,
    share: tuple[str, ...] | int,
) -> ContainerPlan:
    directory = common["directory"]
    cache, kept = _cache(spec)
    own = {"TRAINING_JOB_NAME": spec.job_name, flags.LOG_DIR.name: _LOGS}
    # A uid that the image does not know has neither a home nor a name.
    given = {"HOME": HOME, "USER": "trcomp", "LOGNAME": "trcomp"}
    words = spec.container
    if "aws_profile" in words:
        given["AWS_PROFILE"] = words["aws_profile"]
    arguments = spec.managed.get("container_arguments", ())
    return ContainerPlan(
        name=name,
        argv=(*spec.managed.get("container_entry_point", ()), *arguments) or ("train",),
        environment=given | _environment(spec, share) | own,
        root=directory / "hosts" / name / "ml",
        contract=local_request.host_contract(spec, name, cache=cache, network_interface="eth0"),
        container=container_name,
        mounts=tuple(_mounts(spec, common, name, kept)),
        gpus=share,
    )


def _environment(spec: JobSpec, share: tuple[str, ...] | int) -> dict[str, str]:
    """The user's variables, and what a frozen image lacks."""
    old = frozen.of_uri(spec.managed.get("image_uri"))
    if old is None:
        return spec.environment
    count = len(share) if isinstance(share, tuple) else share
    return frozen_job.environment(spec, old, len(_machine_gpus()) if count < 0 else count)


def _mounts(
    spec: JobSpec, common: Mapping[str, Any], name: str, cache: Path | None
) -> Iterable[Mount]:
    directory = common["directory"]
    host = directory / "hosts" / name
    inside = Paths(Path(contract.DEFAULT_BASE))
    yield Mount(source=host / "ml", target=contract.DEFAULT_BASE)
    own = {item.channel for item in local_request.inputs_of(spec, name)}
    for link in common["inputs"]:
        if link.channel not in own:
            continue
        place = inside.data(link.channel)
        target = place / link.source.name if link.source.is_file() else place
        yield Mount(source=link.source, target=str(target), read_only=True)
    checkpoints = spec.checkpoint_local_path or Checkpoints.local_path
    if common["checkpoint_dir"] is not None:
        yield Mount(source=common["checkpoint_dir"], target=checkpoints)
    elif not PurePosixPath(checkpoints).is_relative_to(contract.DEFAULT_BASE):
        yield Mount(source=host / "checkpoints", target=checkpoints)
    yield Mount(source=directory / "logs" / name, target=_LOGS)
    yield Mount(source=host / "home", target=HOME)
    if cache is not None:
        yield Mount(source=cache, target=_CACHE)
    if "aws_profile" in spec.container:
        yield Mount(source=Path.home() / ".aws", target=f"{HOME}/.aws", read_only=True)
    for source, text in spec.container.get("mounts", {}).items():
        target, read_only = container.to_mount(text)
        path = Path(os.path.expanduser(source)).absolute()
        yield Mount(source=path, target=target, read_only=read_only)


def _cache(spec: JobSpec) -> tuple[str | None, Path | None]:
    """Where a container keeps executables, and what is mounted there."""
    if flags.CACHE.name in spec.environment:
        return None, None
    own = None if spec.compiler_config is None else spec.compiler_config.cache
    place = executables.kept_at(os.environ) if own is None else str(own)
    if place == executables.OFF or s3.is_url(place):
        return place, None
    return _CACHE, Path(os.path.expanduser(place)).absolute()


def _gpu_problems(spec: JobSpec) -> list[Problem]:
    wanted, hosts = spec.container.get("gpus", _ALL), spec.instance_count
    if hosts == 1:
        return []
    count = len(_machine_gpus()) if wanted == _ALL else _count(wanted)
    if count and count % hosts == 0:
        return []
    if wanted == _ALL and not count:
        allowed = f"no GPU is found here to share out to {hosts} hosts; name them: ['0', '1']."
        return [Problem("gpus", wanted, allowed)]
    allowed = f"{count} GPUs cannot be shared out evenly to {hosts} hosts."
    return [Problem("gpus", wanted, allowed)]


def _gpu_shares(spec: JobSpec) -> list[tuple[str, ...] | int]:
    """What each host gets of the GPUs."""
    hosts = spec.instance_count
    if spec.instance_type != "local_gpu":
        return [()] * hosts
    wanted = spec.container.get("gpus", _ALL)
    if hosts == 1 and not isinstance(wanted, list):
        return [-1 if wanted == _ALL else int(wanted)]
    if isinstance(wanted, list):
        ids = tuple(map(str, wanted))
    else:
        # Of a mere number each host would get the first ones.
        ids = _machine_gpus() if wanted == _ALL else tuple(map(str, range(int(wanted))))
    size = len(ids) // hosts
    return [ids[index * size : (index + 1) * size] for index in range(hosts)]


def _machine_gpus() -> tuple[str, ...]:
    return tuple(index or uuid for index, uuid in gpus.listed())


def _count(wanted: str | int | list[str | int]) -> int:
    return len(wanted) if isinstance(wanted, list) else int(wanted)


def _gpu_text(share: tuple[str, ...] | int) -> str:
    if isinstance(share, tuple):
        return ", ".join(share)
    return "all" if share < 0 else f"any {share}"
