"""A container of a job, made by the engine out of its plan."""

from __future__ import annotations

import os
from typing import Any

from trcomp.backends.docker_objects import labels
from trcomp.backends.docker_plan import ContainerPlan, DockerPlan, passed_environment

_NANO = 10**9
_ROOTLESS = "rootless"
_SELINUX = "selinux"


def create(client: Any, plan: DockerPlan, host: ContainerPlan) -> Any:
    """The container of a host, not started yet. The caller turns the engine's errors into ours."""
    words = _words(client, plan, host)
    found = client.containers.create(plan.image, list(host.argv), **words)
    if plan.joined is not None:
        client.networks.get(plan.joined).connect(found)
    return found


def _words(client: Any, plan: DockerPlan, host: ContainerPlan) -> dict[str, Any]:
    from docker.types import LogConfig, Mount, Ulimit

    limits, security = plan.limits, _security(client)
    words = {
        "name": host.container,
        "hostname": host.name,
        "labels": labels(plan.job_name, plan.directory, host.name),
        "environment": passed_environment(plan.passed, os.environ) | host.environment,
        "mounts": [
            Mount(mount.target, str(mount.source), type="bind", read_only=mount.read_only)
            for mount in host.mounts
        ],
        "user": "0:0" if _ROOTLESS in security and plan.user == _caller() else plan.user,
        "shm_size": limits.shm_bytes,
        "ulimits": [Ulimit(name=n, soft=a, hard=b) for n, (a, b) in limits.ulimits.items()],
        "extra_hosts": dict(plan.extra_hosts),
        "device_requests": _devices(host.gpus),
        "use_config_proxy": True,
        # Whatever the engine's default is: lines are read from it, and none may be dropped.
        "log_config": LogConfig(type=LogConfig.types.JSON),
        # A user's data is not relabelled for containers.
        "security_opt": ["label=disable"] if _SELINUX in security else None,
    }
    if limits.memory_bytes is not None:
        # Without swap: a job that trains from there is as good as dead.
        words |= {"mem_limit": limits.memory_bytes, "memswap_limit": limits.memory_bytes}
    if limits.cpus is not None:
        words["nano_cpus"] = int(limits.cpus * _NANO)
    return words | _network(client, plan, host)


def _network(client: Any, plan: DockerPlan, host: ContainerPlan) -> dict[str, Any]:
    if plan.network == "host":
        # Such a container has this machine's name; its own must resolve all the same.
        names = {host.name: "127.0.0.1", **plan.extra_hosts}
        return {"network_mode": "host", "hostname": None, "extra_hosts": names}
    endpoint = client.api.create_endpoint_config(aliases=[host.name])
    return {"network": plan.network, "networking_config": {plan.network: endpoint}}


def _security(client: Any) -> set[str]:
    """The ways in which the engine keeps containers apart: "rootless", "selinux" and others."""
    options = client.info().get("SecurityOptions") or []
    return {option.removeprefix("name=").partition(",")[0] for option in options}


def _caller() -> str:
    return f"{os.getuid()}:{os.getgid()}"


def _devices(gpus: tuple[str, ...] | int) -> list[Any]:
    from docker.types import DeviceRequest

    if not gpus:
        return []
    chosen = {"device_ids": list(gpus)} if isinstance(gpus, tuple) else {"count": gpus}
    return [DeviceRequest(capabilities=[["gpu"]], **chosen)]
