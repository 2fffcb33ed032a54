"""Prices come from dated tables, the reader's own first, and from nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from trcomp import SpecError, limits
from trcomp.images import prices


def table(place: Path, text: str) -> prices.Prices:
    path = place / "prices.toml"
    path.write_text(text)
    return prices.table({"TRCOMP_PRICES": str(path)})


def test_list_prices_are_of_one_region_and_on_demand() -> None:
    found = prices.table({})
    price = found.of("ml.g5.2xlarge", "us-east-1")
    assert price.on_demand is not None and price.on_demand > 0
    assert price.origin == "as of 2026-07, us-east-1 list price"
    assert found.hourly("ml.g5.2xlarge", "us-east-1", spot=True) is None
    assert found.hourly("ml.g5.2xlarge", "eu-west-1", spot=False) is None
    assert found.hourly("ml.g5.2xlarge", None, spot=False) is None
    assert found.hourly("ml.p5.48xlarge", "us-east-1", spot=False) is None


def test_list_prices_are_of_types_that_there_are() -> None:
    (shipped,) = prices.table({}).tables
    assert set(shipped.prices) <= set(limits.instance_types())


def test_a_table_of_ones_own_wins_by_type(tmp_path: Path) -> None:
    found = table(tmp_path, 'as_of = "2026-11-01"\n[prices]\n"ml.m5.large" = {spot = 1}\n')
    own = found.of("ml.m5.large", "us-east-1")
    assert (own.on_demand, own.spot) == (None, 1)
    assert own.origin == "as of 2026-11-01, TRCOMP_PRICES"
    listed = found.of("ml.g5.xlarge", "us-east-1")
    assert listed.origin.endswith("list price")
    names = ["ml.m5.large", "ml.g5.xlarge", "ml.p5.48xlarge"]
    assert found.origins(names, "us-east-1") == f"{own.origin}; {listed.origin}"


def test_a_price_holds_for_its_region_and_its_kind_of_capacity(tmp_path: Path) -> None:
    text = 'as_of = "2026-11-01"\nregion = "us-east-1"\n[prices]\n"ml.m5.large" = 1\n'
    found = table(tmp_path, text + '"ml.p5.48xlarge" = {on_demand = 9.5, spot = 3.5}\n')
    assert found.hourly("ml.m5.large", "us-east-1", spot=False) == 1
    assert found.hourly("ml.m5.large", "us-east-1", spot=True) is None
    assert found.hourly("ml.m5.large", "eu-west-1", spot=False) is None
    assert found.hourly("ml.p5.48xlarge", "us-east-1", spot=True) == 3.5
    assert found.hourly("ml.p4d.24xlarge", "us-east-1", spot=False) is None


def test_everything_wrong_with_a_table_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        table(
            tmp_path,
            'region = 1\n[prices]\n"ml.a" = -1\n"ml.b" = {onDemand = 1}\n"ml.c" = "cheap"\n',
        )
    fields = [problem.field for problem in caught.value.problems]
    assert fields == ["as_of", "region", "prices.ml.a", "prices.ml.b", "prices.ml.c"]
    with pytest.raises(SpecError, match="TRCOMP_PRICES"):
        prices.table({"TRCOMP_PRICES": str(tmp_path / "none.toml")})
