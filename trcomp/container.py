"""The words of a job that only a container on this machine has a use for, and their rules."""

from __future__ import annotations

import ipaddress
import re
import string
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, with_config

# Not typing's: before Python 3.12 pydantic cannot read that one's fields.
from typing_extensions import TypedDict

from trcomp import rules
from trcomp.errors import Problem, nearest

ULIMITS = (
    *("core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc"),
    *("rss", "rtprio", "rttime", "sigpending", "stack"),
)
"""What setrlimit(2) limits."""

OWN_PLACES = ("/opt/ml", "/trcomp")
"""Where a container has what trcomp itself mounts."""

_SIZE = re.compile(r"\d+(\.\d+)?\s*[bkmgt]?b?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_USER = re.compile(r"[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?")
_VARIABLE = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*")
_SMALLEST_MEMORY = 6 << 20
"""The engine takes no less."""


def num_bytes(size: str | int) -> int:
    """A size in bytes: ``"8g"`` is 8 GiB, a bare number is bytes.

    Raises:
        ValueError: The text is no size.
    """
    text = str(size).strip().lower()
    if not _SIZE.fullmatch(text):
        raise ValueError(text)
    number = text.rstrip(string.ascii_lowercase + " ")
    unit = text[len(number) :].strip()[:1]
    return int(float(number) * 1024 ** "bkmgt".index(unit or "b"))


def to_limit(value: int | str) -> tuple[int, int]:
    """Soft and hard limit of a ulimit's value.

    Raises:
        ValueError: The text is no limit.
    """
    soft, _, hard = str(value).partition(":")
    limits = int(soft), int(hard or soft)
    if min(limits) < -1 or (limits[0] > limits[1] != -1):
        raise ValueError(value)
    return limits


def to_mount(text: str) -> tuple[str, bool]:
    """A place in a container, and whether it is read-only there."""
    place, colon, mode = text.rpartition(":")
    return (place, mode == "ro") if colon and mode in {"ro", "rw"} else (text, False)


def _size_problems(name: str, value: str | int) -> Iterator[Problem]:
    try:
        size = num_bytes(value)
    except ValueError:
        yield Problem(name, value, "a number of bytes, or text such as '8g' or '512m'.")
        return
    if name == "memory" and size < _SMALLEST_MEMORY:
        yield Problem(name, value, "at least '6m'.")


def _cpus_problems(name: str, cpus: float) -> Iterator[Problem]:
    if not 0.01 <= cpus < 1e6:
        yield Problem(name, cpus, "a number of cores from 0.01, such as 1.5.")


def _ulimits_problems(field: str, ulimits: Mapping[str, int | str]) -> Iterator[Problem]:
    for name, value in ulimits.items():
        if name not in ULIMITS:
            allowed = f"one of {', '.join(ULIMITS)}."
            yield Problem(field, name, allowed, nearest(name, ULIMITS))
        try:
            to_limit(value)
        except ValueError:
            allowed = "a whole number, or 'soft:hard' with soft at most hard; -1 is unlimited."
            yield Problem(f"{field}[{name!r}]", value, allowed)


def _gpus_problems(name: str, gpus: str | int | list[str | int]) -> Iterator[Problem]:
    if isinstance(gpus, str) and gpus != "all":
        yield Problem(name, gpus, "'all', a number, or a list such as ['0', '2'].")
    if (isinstance(gpus, int) and gpus < 1) or gpus == []:
        yield Problem(name, gpus, "1 or more; instance_type='local' uses none.")
    if isinstance(gpus, list) and len(set(map(str, gpus))) < len(gpus):
        yield Problem(name, gpus, "each GPU once.")


def _mounts_problems(name: str, mounts: Mapping[str, str]) -> Iterator[Problem]:
    taken: set[str] = set()
    for source, target in mounts.items():
        place, _ = to_mount(target)
        field, pure = f"{name}[{source!r}]", PurePosixPath(place)
        if not pure.is_absolute() or ".." in pure.parts or place == "/":
            allowed = "an absolute path in the container, with ':ro' behind it or not."
            yield Problem(field, target, allowed)
        elif place in OWN_PLACES:
            yield Problem(field, target, "trcomp mounts what the job needs there.")
        elif place in taken:
            yield Problem(field, target, "another mount has that place already.")
        taken.add(place)


def _extra_hosts_problems(name: str, hosts: Mapping[str, str]) -> Iterator[Problem]:
    for host, address in hosts.items():
        if not _NAME.fullmatch(host):
            yield Problem(name, host, "a host's name is letters, digits, '-' and '.'.")
        if address != "host-gateway" and not _is_address(address):
            allowed = "an IP address, or 'host-gateway' for this machine."
            yield Problem(f"{name}[{host!r}]", address, allowed)


def _network_problems(name: str, network: str) -> Iterator[Problem]:
    if not _NAME.fullmatch(network):
        yield Problem(name, network, "the name of a network; `docker network ls` shows them.")


def _user_problems(name: str, user: str) -> Iterator[Problem]:
    if not _USER.fullmatch(user):
        yield Problem(name, user, "'uid:gid', or a user's name in the image.")


def _variables_problems(name: str, variables: list[str]) -> Iterator[Problem]:
    for variable in variables:
        if not _VARIABLE.fullmatch(variable):
            allowed = "a variable's name, '*' and '?' standing for any letters: 'AWS_*'."
            # Behind a "=" there may be a secret.
            yield Problem(name, variable.partition("=")[0], allowed)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _obeys(rule: Callable[[str, Any], Iterator[Problem]], name: str) -> AfterValidator:
    return AfterValidator(lambda value: rules.checked(value, rule(name, value)))


@with_config(ConfigDict(strict=True, extra="forbid"))
class ContainerWords(TypedDict, total=False):
    """For ``instance_type="local"`` and ``"local_gpu"``; other jobs take them, and use none."""

    shm_size: Annotated[str | int, _obeys(_size_problems, "shm_size")]
    """Shared memory per host, bytes or as ``"8g"``; default 8g, since data loaders need it."""
    memory: Annotated[str | int, _obeys(_size_problems, "memory")]
    """The most memory a host may use; the kernel kills what goes beyond. None: no limit."""
    cpus: Annotated[float, _obeys(_cpus_problems, "cpus")]
    """The most cores a host may use, such as 1.5. None: all."""
    ulimits: Annotated[dict[str, int | str], _obeys(_ulimits_problems, "ulimits")]
    """``{"nofile": 65536}``, or ``"soft:hard"``; -1 is unlimited."""
    gpus: Annotated[str | int | list[str | int], _obeys(_gpus_problems, "gpus")]
    """For ``local_gpu``: ``"all"`` (the default), how many, or which, by number or UUID. The hosts
    of a job share them out evenly."""
    mounts: Annotated[dict[str, str], _obeys(_mounts_problems, "mounts")]
    """``{"/data/cache": "/cache"}``: directories and files of this machine by their place in the
    container; ``"/cache:ro"`` is read-only."""
    extra_hosts: Annotated[dict[str, str], _obeys(_extra_hosts_problems, "extra_hosts")]
    """Names that resolve in the container: ``{"tracker": "10.0.0.7"}``; ``host-gateway`` is this
    machine."""
    network: Annotated[str, _obeys(_network_problems, "network")]
    """An existing network of the engine to join besides the job's own, or ``host``: this
    machine's, in place of it, for one host."""
    user: Annotated[str, _obeys(_user_problems, "user")]
    """``uid:gid`` or a name of the image. None: whoever starts the job, who then owns results."""
    pass_environment: Annotated[list[str], _obeys(_variables_problems, "pass_environment")]
    """Variables of whoever starts the job that the container gets too: ``["AWS_*", "HF_TOKEN"]``.
    Their values are part of no plan and no file."""
    aws_profile: str
    """A profile of ~/.aws, which is then mounted read-only."""


CONTAINER_NAMES = tuple(ContainerWords.__annotations__)
"""Every such word."""
