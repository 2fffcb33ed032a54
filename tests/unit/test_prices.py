"""Prices come from the reader's own dated table, and from nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from trcomp import SpecError
from trcomp.images import prices


def table(place: Path, text: str) -> prices.Prices:
    path = place / "prices.toml"
    path.write_text(text)
    return prices.table({"TRCOMP_PRICES": str(path)})


def test_without_a_table_nothing_is_known() -> None:
    assert prices.table({}).hourly("ml.m5.large", "us-east-1", spot=False) is None


def test_a_price_holds_for_its_region_and_its_kind_of_capacity(tmp_path: Path) -> None:
    text = 'as_of = "2026-11-01"\nregion = "us-east-1"\n[prices]\n"ml.m5.large" = 1\n'
    found = table(tmp_path, text + '"ml.p5.48xlarge" = {on_demand = 9.5, spot = 3.5}\n')
    assert found.hourly("ml.m5.large", "us-east-1", spot=False) == 1
    assert found.hourly("ml.m5.large", "us-east-1", spot=True) is None
    assert found.hourly("ml.m5.large", "eu-west-1", spot=False) is None
    assert found.hourly("ml.p5.48xlarge", "us-east-1", spot=True) == 3.5
    assert found.hourly("ml.g5.xlarge", "us-east-1", spot=False) is None


def test_everything_wrong_with_a_table_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        table(tmp_path, '[prices]\n"ml.a" = -1\n"ml.b" = {onDemand = 1}\n"ml.c" = "cheap"\n')
    fields = [problem.field for problem in caught.value.problems]
    assert fields == ["as_of", "prices.ml.a", "prices.ml.b", "prices.ml.c"]
    with pytest.raises(SpecError, match="TRCOMP_PRICES"):
        prices.table({"TRCOMP_PRICES": str(tmp_path / "none.toml")})
