"""Checks of what the system lets one user have: open files, processes."""

from __future__ import annotations

import resource

from trcomp.doctor.findings import Asked, Check, Finding, ok, warning

_FILES, _PROCESSES = 1024, 4096
_CONTAINER = "in a container --ulimit"


def read_files(asked: Asked) -> tuple[int, int]:
    """How many files a process may have open, and how many it may allow itself."""
    return _limits(resource.RLIMIT_NOFILE)


def read_processes(asked: Asked) -> tuple[int, int]:
    """How many processes and threads this user may have."""
    return _limits(resource.RLIMIT_NPROC)


def judge_files(limits: tuple[int, int], asked: Asked) -> Finding:
    """Whether a worker may open as many files as it has batches under way."""
    return _judge(limits, _FILES, "nofile", "-n", "Each worker opens sockets, files and batches")


def judge_processes(limits: tuple[int, int], asked: Asked) -> Finding:
    """Whether workers, with their threads and their data loaders', may be started."""
    return _judge(limits, _PROCESSES, "nproc", "-u", "Each worker starts dozens of threads")


def _judge(limits: tuple[int, int], needed: int, name: str, option: str, why: str) -> Finding:
    soft, hard = limits
    if soft < 0 or soft >= needed:
        return ok("unlimited" if soft < 0 else f"{soft}")
    if hard < 0 or hard >= needed:
        fix = f"`ulimit {option} {needed}` before trcomp is started."
    else:
        fix = f"Raise {name} in /etc/security/limits.d, {_CONTAINER} {name}={needed}."
    return warning(f"{soft}; {needed} are advised. {why}.", fix)


def _limits(which: int) -> tuple[int, int]:
    soft, hard = resource.getrlimit(which)
    unlimited = resource.RLIM_INFINITY
    return -1 if soft == unlimited else soft, -1 if hard == unlimited else hard


CHECKS = (
    Check("open files", read_files, judge_files, "the limit `ulimit -n`", f"it is below {_FILES}"),
    Check(
        "processes",
        read_processes,
        judge_processes,
        "the limit `ulimit -u`",
        f"it is below {_PROCESSES}",
    ),
)
