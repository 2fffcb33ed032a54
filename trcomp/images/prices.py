"""What an instance costs per hour, from dated tables; never a guess.

`prices.toml` beside this file holds AWS's list prices of a few types in one region. A file of the
reader's own, which TRCOMP_PRICES names, is of the same form and wins where it has a type:

    as_of = "2026-11-30"
    region = "us-east-1"                         # leave it out for prices that hold in any region

    [prices]                                     # US dollars per instance and hour
    "ml.p4d.24xlarge" = {on_demand = 10.0, spot = 4.0}
    "ml.m5.large" = 0.1
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trcomp import flags
from trcomp.errors import Problem, SpecError

UNKNOWN = f"unknown: {flags.PRICES.name} can name a table of prices"
_SHIPPED = Path(__file__).with_name("prices.toml")


@dataclass(frozen=True)
class Price:
    """US dollars for one instance and hour.

    Attributes:
        on_demand: None where the table does not say, as `spot`.
        origin: When and where it was looked up, for a reader.
    """

    on_demand: float | None
    spot: float | None = None
    origin: str = ""


@dataclass(frozen=True)
class Table:
    """The prices of one file.

    Attributes:
        origin: When and where they were looked up, for a reader.
        region: The region they are of; None: of any.
        prices: By instance type.
    """

    origin: str
    region: str | None
    prices: Mapping[str, Price]


@dataclass(frozen=True)
class Prices:
    """Tables of prices; the first that has a type in a region tells its price."""

    tables: tuple[Table, ...] = ()

    def of(self, instance_type: str, region: str | None) -> Price:
        """What an instance costs; a price of which nothing is known where no table has it."""
        for table in self.tables:
            if table.region in {None, region} and instance_type in table.prices:
                return table.prices[instance_type]
        return Price(None)

    def hourly(self, instance_type: str, region: str | None, spot: bool) -> float | None:
        """What an instance costs per hour, None where no table says."""
        price = self.of(instance_type, region)
        return price.spot if spot else price.on_demand

    def origins(self, instance_types: Iterable[str], region: str | None) -> str:
        """When and where the prices of some types were looked up, for a reader."""
        found = (self.of(name, region).origin for name in instance_types)
        return "; ".join(dict.fromkeys(filter(None, found)))


def table(environ: Mapping[str, str] = os.environ) -> Prices:
    """The table that TRCOMP_PRICES names, if it names one, over the list prices.

    Raises:
        SpecError: The file cannot be read as such a table; holds every problem.
    """
    shipped = _read(_SHIPPED, "{region} list price")
    place = flags.PRICES.get(environ)
    if not place:
        return Prices((shipped,))
    return Prices((_read(Path(os.path.expanduser(place)), flags.PRICES.name), shipped))


def _read(place: Path, name: str) -> Table:
    """One file as a table; `name` is what a reader knows it by."""
    try:
        content = tomllib.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problem = Problem(flags.PRICES.name, str(place), f"a TOML file: {error}.")
        raise SpecError([problem]) from error
    as_of, region, given = (content.get(key) for key in ("as_of", "region", "prices"))
    problems: list[Problem] = []
    if not isinstance(as_of, str):
        problems.append(Problem("as_of", as_of, "the date of the prices, as text."))
    if not isinstance(region, str | None):
        problems.append(Problem("region", region, "a region's name, or nothing for any."))
    if not isinstance(given, dict):
        problems.append(Problem("prices", given, "a table by instance type."))
        given = {}
    origin = f"as of {as_of}, {name.format(region=region)}"
    prices: dict[str, Price] = {}
    for instance_type, value in given.items():
        price = _price(value, origin)
        if price is None:
            allowed = "dollars per hour, or {on_demand = …, spot = …}."
            problems.append(Problem(f"prices.{instance_type}", value, allowed))
        else:
            prices[instance_type] = price
    if problems:
        raise SpecError(problems, f"Correct {place}, which {flags.PRICES.name} names.")
    return Table(origin, region, prices)


def _price(given: Any, origin: str) -> Price | None:
    values = given if isinstance(given, dict) else {"on_demand": given}
    sound = values and not set(values) - {"on_demand", "spot"}
    if not sound or not all(_amount(value) for value in values.values()):
        return None
    return Price(values.get("on_demand"), values.get("spot"), origin)


def _amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
