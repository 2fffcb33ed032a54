"""What an instance costs per hour, from a dated table of the reader's own; never a guess.

trcomp ships no prices: they differ by region and account and change without notice, and AWS's own
list is the only source that is right. TRCOMP_PRICES names a TOML file such as

    as_of = "2026-11-30"
    region = "us-east-1"

    [prices]                                     # US dollars per instance and hour
    "ml.p4d.24xlarge" = {on_demand = 10.0, spot = 4.0}
    "ml.m5.large" = 0.1
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trcomp import flags
from trcomp.errors import Problem, SpecError

UNKNOWN = f"unknown: {flags.PRICES.name} can name a table of prices"


@dataclass(frozen=True)
class Price:
    """US dollars for one instance and hour."""

    on_demand: float | None
    spot: float | None = None


@dataclass(frozen=True)
class Prices:
    """A table of prices.

    Attributes:
        as_of: When the prices were looked up.
        region: The region they are of; None: of any.
        prices: By instance type.
    """

    as_of: str = ""
    region: str | None = None
    prices: Mapping[str, Price] | None = None

    def hourly(self, instance_type: str, region: str | None, spot: bool) -> float | None:
        """What an instance costs per hour, None where the table does not say."""
        if self.region is not None and region != self.region:
            return None
        found = (self.prices or {}).get(instance_type)
        if found is None:
            return None
        return found.spot if spot else found.on_demand


def table(environ: Mapping[str, str] = os.environ) -> Prices:
    """The table that TRCOMP_PRICES names, an empty one if it names none.

    Raises:
        SpecError: The file cannot be read as such a table; holds every problem.
    """
    place = flags.PRICES.get(environ)
    if not place:
        return Prices()
    try:
        content = tomllib.loads(Path(place).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError([Problem(flags.PRICES.name, place, f"a TOML file: {error}.")]) from error
    problems: list[Problem] = []
    if not isinstance(content.get("as_of"), str):
        problems.append(Problem("as_of", content.get("as_of"), "the date of the prices, as text."))
    if not isinstance(content.get("prices"), dict):
        problems.append(Problem("prices", content.get("prices"), "a table by instance type."))
    prices: dict[str, Price] = {}
    for instance_type, given in (content.get("prices") or {}).items():
        price = _price(given)
        if price is None:
            allowed = "dollars per hour, or {on_demand = …, spot = …}."
            problems.append(Problem(f"prices.{instance_type}", given, allowed))
        else:
            prices[instance_type] = price
    if problems:
        raise SpecError(problems, f"Correct {place}, which {flags.PRICES.name} names.")
    return Prices(content["as_of"], content.get("region"), prices)


def _price(given: Any) -> Price | None:
    values = given if isinstance(given, dict) else {"on_demand": given}
    sound = values and not set(values) - {"on_demand", "spot"}
    if not sound or not all(_amount(value) for value in values.values()):
        return None
    return Price(values.get("on_demand"), values.get("spot"))


def _amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
