"""What a request may cost at most, and the quotas of the account that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trcomp.images import prices
from trcomp.images.prices import Prices

_LONGEST_RUN_SECONDS = 5 * 24 * 60 * 60
"""SageMaker's default for its longest run."""


@dataclass(frozen=True)
class Cost:
    """US dollars; None where no table of prices says.

    Attributes:
        instances: Of which instances, as ``2 x ml.p4d.24xlarge``.
        hourly: For an hour of all of them, by "on_demand" and "spot".
        max_run: For as long as the job may train.
        origin: When and where the prices were looked up, for a reader; "" if none is known.
    """

    instances: str
    hourly: Mapping[str, float | None]
    max_run: Mapping[str, float | None]
    origin: str


def costs(request: Mapping[str, Any], region: str | None, table: Prices) -> list[Cost]:
    """What each choice of instances that a request leaves to SageMaker costs; mostly one."""
    hours = request["StoppingCondition"]["MaxRuntimeInSeconds"] / 3600
    found = []
    for choice in _choices(request["ResourceConfig"]):
        hourly = {
            kind: _sum(
                (count, table.hourly(name, region, spot=kind == "spot")) for count, name in choice
            )
            for kind in ("on_demand", "spot")
        }
        whole = {kind: None if one is None else one * hours for kind, one in hourly.items()}
        instances = " + ".join(f"{n} x {name}" for n, name in choice)
        origin = table.origins((name for _, name in choice), region)
        found.append(Cost(instances, hourly, whole, origin))
    return found


def quotas(request: Mapping[str, Any]) -> dict[str, int]:
    """The quotas that a request counts against, as Service Quotas names them, and how much."""
    resources = request["ResourceConfig"]
    found: dict[str, int] = {}
    spot = "spot " if request.get("EnableManagedSpotTraining") else ""
    for choice in _choices(resources):
        for count, name in choice:
            kinds = [f"{spot}training job"]
            kinds += ["training warm pool"] if resources.get("KeepAlivePeriodInSeconds") else []
            for kind in kinds:
                quota = f"{name} for {kind} usage"
                found[quota] = found.get(quota, 0) + count
    seconds = request["StoppingCondition"]["MaxRuntimeInSeconds"]
    if seconds > _LONGEST_RUN_SECONDS:
        found["Longest run time for a training job"] = seconds
    return found


def to_dict(request: Mapping[str, Any], region: str | None) -> dict[str, Any]:
    """`costs` and `quotas` as JSON values."""
    found = [
        {
            "instances": cost.instances,
            "hourly": dict(cost.hourly),
            "max_run": dict(cost.max_run),
            "origin": cost.origin or None,
        }
        for cost in costs(request, region, prices.table())
    ]
    return {"prices": found, "quotas": quotas(request)}


def lines(request: Mapping[str, Any], region: str | None) -> Iterator[str]:
    """`costs` and `quotas` for a reader."""
    seconds = request["StoppingCondition"]["MaxRuntimeInSeconds"]
    for cost in costs(request, region, prices.table()):
        if all(hourly is None for hourly in cost.hourly.values()):
            yield f"price      {cost.instances}: {prices.UNKNOWN}"
            continue
        texts = [
            f"{kind.replace('_', ' ')} "
            + (
                "unknown"
                if hourly is None
                else f"${hourly:.2f} an hour, ${cost.max_run[kind]:.2f} for {seconds} s (max_run)"
            )
            for kind, hourly in cost.hourly.items()
        ]
        yield f"price      {cost.instances}: {'; '.join(texts)}; {cost.origin}"
    for name, count in quotas(request).items():
        yield f"quota      {name}: {count}"


def _choices(resources: Mapping[str, Any]) -> list[list[tuple[int, str]]]:
    """How many of which instances, for each choice."""
    if resources.get("InstanceGroups"):
        groups = resources["InstanceGroups"]
        return [[(group["InstanceCount"], group["InstanceType"]) for group in groups]]
    count: int = resources.get("InstanceCount", 0)
    if resources.get("InstancePreferences"):
        preferences = resources["InstancePreferences"]
        return [[(one.get("InstanceCount", count), one["InstanceType"])] for one in preferences]
    return [[(count, resources["InstanceType"])]]


def _sum(parts: Iterable[tuple[int, float | None]]) -> float | None:
    """The cost of all, None if that of any is not known."""
    total = 0.0
    for count, hourly in parts:
        if hourly is None:
            return None
        total += count * hourly
    return total
