"""Instance facts: dated, overridable, and no gate."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path

import botocore
import pytest

from trcomp.images.instances import InstanceFacts, facts, known_types


def test_a_known_type() -> None:
    found = facts("ml.p4d.24xlarge")
    assert (found.num_gpus, found.gpu, found.efa_devices, found.num_cpus) == (8, "A100", 4, 96)
    assert found.known


def test_an_unknown_type_warns_and_is_not_refused() -> None:
    with pytest.warns(UserWarning, match=r"ml.p99.xlarge.*counted when the job runs"):
        found = facts("ml.p99.xlarge")
    assert found == InstanceFacts("ml.p99.xlarge")
    assert not found.known


@pytest.mark.parametrize(
    ("name", "num_gpus"),
    [("local_process", None), ("local", None), ("local_gpu", None), ("ml.m5.xlarge", 0)],
)
def test_types_without_gpus_and_this_machine_do_not_warn(name: str, num_gpus: int | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert facts(name).num_gpus == num_gpus


def test_facts_can_be_overridden() -> None:
    own = InstanceFacts("ml.p99.xlarge", num_gpus=2, efa_devices=1)
    assert facts("ml.p99.xlarge", {"ml.p99.xlarge": own}) is own


def test_every_type_of_the_table_is_one_of_sagemakers() -> None:
    [path] = Path(botocore.__file__).parent.glob("data/sagemaker/*/service-2.json*")
    raw = path.read_bytes()
    model = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    allowed = set(model["shapes"]["TrainingInstanceType"]["enum"])
    # p3 may leave the service's model before it leaves the table.
    assert {name for name in known_types() if not name.startswith("ml.p3")} <= allowed
