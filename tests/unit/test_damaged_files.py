"""What fuzzing has found: what others wrote, damaged, costs a clear error at most."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_job_page import rank, record
from trcomp import JobSpec, SpecError, job_page, progress
from trcomp.backends import record as records
from trcomp.backends import results
from trcomp.cli import main
from trcomp.entrypoint.failure import blamed
from trcomp.entrypoint.supervisor import Exit, Outcome, Worker
from trcomp.entrypoint.watchdog import Watchdog
from trcomp.env.topology import Topology, uniform, wanted_devices
from trcomp.errors import ContractError, InternalError
from trcomp.follow import report_rows


@pytest.mark.parametrize("text", ["9" * 30, "9" * 5000, "2000000"])
def test_more_devices_than_a_host_could_have_are_told(text: str) -> None:
    with pytest.raises(SpecError, match="a whole number from 1 to 1024"):
        wanted_devices({"GPU_NUM_DEVICES": text})


def test_more_hosts_than_a_job_could_have_are_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"instance_count: got .*1 to 10,000 is needed"):
        JobSpec.of(job_name="a", entry_point="train.py", instance_count=2**31)
    assert main(["env", "--devices", "9" * 30]) == 64


def test_a_word_whose_keys_no_file_can_hold_is_told() -> None:
    tags = [{"Key": "a", "Value": "b", "\ud800": "c"}]
    with pytest.raises(SpecError, match=r"tags: got .* lone surrogate"):
        JobSpec.of(job_name="a", entry_point="train.py", tags=tags)


@pytest.mark.parametrize("name", ["../x", "/etc", "x" * 300, "a\0b"])
def test_what_names_no_job_leads_nowhere(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", name]) == 64
    assert "is no job handle" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["\ud800.py", f"{'x' * 300}.py"])
def test_a_path_that_no_file_can_have_is_not_there(text: str) -> None:
    assert main(["plan", text]) == 64


def test_a_home_that_is_not_there_is_a_name_as_any_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "~no-such-user-here/train.py"]) == 64
    assert "~no-such-user-here/train.py" in capsys.readouterr().err
    spec = JobSpec.of(job_name="a", entry_point="~no-such-user-here/train.py")
    assert spec.entry_point.endswith("~no-such-user-here/train.py")


@pytest.mark.parametrize("text", [b"\xff", b"[]", b'{"name": 1}', b'{"transitions": []}'])
def test_a_broken_record_is_told(tmp_path: Path, text: bytes) -> None:
    (tmp_path / records.FILE).write_bytes(text)
    with pytest.raises(InternalError, match="is no job record"):
        records.read(tmp_path)


def test_a_record_without_states_is_told(tmp_path: Path) -> None:
    values = json.loads(record().model_dump_json()) | {"transitions": []}
    (tmp_path / records.FILE).write_text(json.dumps(values))
    with pytest.raises(InternalError, match="it has no states"):
        records.read(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", "5"),
        ("steps", True),
        ("compile_seconds", math.inf),
        ("compile_seconds", [1]),
        ("samples_per_second", {}),
        ("steady_step_seconds", 10**400),
        ("fallbacks", {"nonzero": [1]}),
        ("fallbacks", 1.5),
        ("versions", ["2.13"]),
        ("timeline", {"steps": [[1]], "compiles": [], "memory": []}),
        ("timeline", "x"),
        ("varying", [{"compiles": 9}]),
        ("varying", 0.5),
    ],
)
def test_a_damaged_measurement_costs_itself_alone(field: str, value: Any) -> None:
    texts = [json.dumps(rank(n) | ({field: value} if n else {})).encode() for n in (0, 1)]
    found = results.report_of("process://vit", texts)
    assert [one["rank"] for one in found["ranks"]] == [0, 1]
    assert field not in found["ranks"][1]
    assert found["totals"]["steps"] == 4
    assert report_rows(found["totals"])
    assert "rank 1" in job_page.page(record(), found, [])


def test_the_least_measurement_there_is_leaves_a_page() -> None:
    memory = {"steps": [], "compiles": [], "memory": [[0.5, 5e-324]]}
    text = json.dumps(rank(0) | {"timeline": memory}).encode()
    page = job_page.page(record(), results.report_of("process://vit", [text]), [])
    assert "<h2>Memory</h2>" in page


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"1", b"[]", b"{}", b'{"rank": {}}', b'{"rank": -1}', b'{"rank": true}'),
        *(b'{"variables": 3}', b'{"variables": [], "rank": 0}', b'{"rank": 0, "\\ud800": 1}'),
        b'{"rank": ' + b"[" * 5000,
    ],
)
def test_what_is_no_report_is_left_out(text: bytes) -> None:
    found = results.report_of("process://vit", [text, json.dumps(rank(0)).encode()])
    assert (len(found["ranks"]), found["environment"]) == (1, [])


@pytest.mark.parametrize(
    "changed",
    [{"hosts": []}, {"device_kind": "tpu"}, {"coordinator_port": "1"}, {"network_interface": 1}]
    + [{"hosts": [{"name": "a", "address": "a", "num_devices": n}]} for n in (0, 2.0, [], 10**9)],
)
def test_a_damaged_topology_is_told(changed: dict[str, Any]) -> None:
    text = json.dumps(json.loads(uniform(["algo-1"], 2, "cpu").to_json()) | changed)
    with pytest.raises(ContractError, match="topology is not readable"):
        Topology.from_json(text)


@pytest.mark.parametrize(
    "changed",
    [{"rank": []}, {"since": {}}, {"since": "x"}, {"pid": -1}, {"pid": 1}, {"pid": 0}, {"new": 1}],
)
def test_a_rank_whose_progress_is_damaged_is_not_looked_after(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    values = {"rank": 0, "pid": 2**22 + 1, "steps": 1, "since": 0.0} | changed
    (tmp_path / "rank-0.progress").write_text(json.dumps(values))
    assert progress.read(tmp_path) == []
    assert Watchdog(tmp_path, 1, tmp_path).stall(lambda seconds: None) is None


@pytest.mark.parametrize("changed", [{"time": []}, {"exception": 3}, {"rank": "0"}, {"more": 1}])
def test_a_worker_whose_error_is_damaged_is_blamed_by_its_end(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    error = {
        "time": 1.0,
        "rank": 0,
        "host": "algo-1",
        "exception": "E",
        "traceback": "",
        "exit_code": 1,
    } | changed
    (tmp_path / "error.json").write_text(json.dumps(error))
    worker = Worker(0, ("x",), {}, tmp_path, error_file=tmp_path / "error.json")
    failed = blamed(Outcome((Exit(worker, 3, 5.0, False, b""),)), "algo-1")
    assert failed is not None
    assert failed.exception == "The script ended with exit code 3"
