"""What a job in SageMaker may cost, the quotas it needs, and the whole plan as it is printed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_sagemaker_plan import code, estimator, plan_of
from trcomp import TrainingCompilerConfig

__all__ = ["code"]

GOLDEN = Path(__file__).parent / "golden"
TABLE = """
as_of = "2026-11-01"
[prices]
"ml.p4d.24xlarge" = {on_demand = 20.0, spot = 8.0}
"ml.m5.large" = 0.5
"""


@pytest.fixture
def prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round figures, which are nobody's."""
    path = tmp_path / "prices.toml"
    path.write_text(TABLE)
    monkeypatch.setenv("TRCOMP_PRICES", str(path))


def lines_of(plan: Any, name: str) -> list[str]:
    return [line[11:] for line in plan.to_text().splitlines() if line.startswith(name)]


def test_a_price_that_is_not_known_is_not_guessed(code: Path) -> None:
    plan = plan_of(code)
    (line,) = lines_of(plan, "price")
    assert line == "1 x ml.p4d.24xlarge: unknown: TRCOMP_PRICES can name a table of prices"
    (cost,) = plan.to_dict()["prices"]
    assert cost["hourly"] == cost["max_run"] == {"on_demand": None, "spot": None}
    assert cost["origin"] is None


def test_a_list_price_says_when_and_where_it_holds(code: Path) -> None:
    (line,) = lines_of(plan_of(code, instance_type="ml.g6e.2xlarge", max_run=3600), "price")
    assert line == (
        "1 x ml.g6e.2xlarge: on demand $2.80 an hour, $2.80 for 3600 s (max_run); spot unknown; "
        "as of 2026-07, us-east-1 list price"
    )


def test_a_plan_says_what_an_hour_and_max_run_cost(code: Path, prices: None) -> None:
    plan = plan_of(code, instance_count=2, max_run=1800)
    assert lines_of(plan, "price") == [
        "2 x ml.p4d.24xlarge: on demand $40.00 an hour, $20.00 for 1800 s (max_run); "
        "spot $16.00 an hour, $8.00 for 1800 s (max_run); as of 2026-11-01, TRCOMP_PRICES"
    ]
    assert plan.to_dict()["prices"] == [
        {
            "instances": "2 x ml.p4d.24xlarge",
            "hourly": {"on_demand": 40.0, "spot": 16.0},
            "max_run": {"on_demand": 20.0, "spot": 8.0},
            "origin": "as of 2026-11-01, TRCOMP_PRICES",
        }
    ]


def test_of_groups_the_sum_and_of_preferences_each(code: Path, prices: None) -> None:
    groups = [
        {"InstanceGroupName": "a", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1},
        {"InstanceGroupName": "b", "InstanceType": "ml.m5.large", "InstanceCount": 2},
    ]
    own = {"torch_distributed": {"enabled": True}, "instance_groups": ["a"]}
    plan = plan_of(code, instance_type=None, instance_groups=groups, distribution=own, max_run=3600)
    (line,) = lines_of(plan, "price")
    assert line.startswith("1 x ml.p4d.24xlarge + 2 x ml.m5.large: on demand $21.00 an hour")
    assert "spot unknown" in line
    preferences = [{"InstanceType": "ml.p5.48xlarge"}, {"InstanceType": "ml.m5.large"}]
    plan = plan_of(code, instance_type=None, instance_preferences=preferences, instance_count=2)
    first, second = lines_of(plan, "price")
    assert first.startswith("2 x ml.p5.48xlarge: unknown")
    assert second.startswith("2 x ml.m5.large: on demand $1.00 an hour")


def test_the_quotas_are_named_as_service_quotas_names_them(code: Path) -> None:
    kept = plan_of(code, instance_count=2, keep_alive_period_in_seconds=600)
    assert lines_of(kept, "quota") == [
        "ml.p4d.24xlarge for training job usage: 2",
        "ml.p4d.24xlarge for training warm pool usage: 2",
    ]
    long = {"max_run": 500_000, "max_wait": 500_000}
    spot = plan_of(code, use_spot_instances=True, **long)
    assert spot.to_dict()["quotas"] == {
        "ml.p4d.24xlarge for spot training job usage": 1,
        "Longest run time for a training job": 500_000,
    }


@pytest.mark.parametrize("name", ["plan.txt", "plan.json"])
def test_the_whole_plan_is_printed_as_ever(name: str, code: Path, prices: None) -> None:
    (code / ".trcompignore").write_text("*.bin\n")
    (code / "data.bin").write_bytes(b"left out")
    (code / "lib.py").write_text("")
    plan = estimator(
        code,
        instance_count=2,
        compiler_config=TrainingCompilerConfig(),
        hyperparameters={"steps": 50, "api_key": "s3cret"},
        environment={"MINE": "1", "MY_TOKEN": "s3cret"},
        use_spot_instances=True,
        max_run=3600,
        max_wait=7200,
        checkpoint_s3_uri="s3://bucket/checkpoints",
        tags={"team": "vision"},
    ).plan({"train": "s3://bucket/train"}, job_name="golden")
    text = plan.to_text() if name.endswith("txt") else plan.to_json()
    text = text.replace(str(code), "CODE") + "\n"
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), "UPDATE_GOLDEN=1 writes it anew"
    assert "s3cret" not in text
    if name.endswith("json"):
        assert json.loads(text)["request"]["TrainingJobName"] == "golden"
