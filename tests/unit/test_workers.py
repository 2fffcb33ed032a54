"""The processes of one host, planned without starting any."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trcomp import flags, s3
from trcomp.contract import Contract, Paths, Settings
from trcomp.entrypoint.supervisor import Worker
from trcomp.entrypoint.workers import Site, plan_workers
from trcomp.env.executables import shared_folder
from trcomp.env.topology import Topology, uniform
from trcomp.env.variables import has_identity, identity
from trcomp.errors import SpecError

GPUS = ("MIG-1", "MIG-2")


def site(
    tmp_path: Path,
    *,
    enabled: bool | None = True,
    topology: Topology | None = None,
    gpu_ids: tuple[str, ...] = (),
    host: str = "algo-1",
    environ: dict[str, str] | None = None,
    hyperparameters: dict[str, object] | None = None,
) -> Site:
    code = tmp_path / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").touch()
    kind = "gpu" if gpu_ids else "cpu"
    topology = topology or uniform(["algo-1"], 2, kind)  # type: ignore[arg-type]
    contract = Contract(
        job_name="job-1",
        hosts=tuple(each.name for each in topology.hosts),
        current_host=host,
        hyperparameters=hyperparameters or {},
        settings=Settings(program="train.py", compiler_enabled=enabled, compiler_debug=True),
        instance_type="local_process",
    )
    return Site(contract, Paths(tmp_path), topology, environ or {}, tmp_path, gpu_ids, num_cpus=8)


def visible(workers: tuple[Worker, ...]) -> list[str | None]:
    return [worker.environ.get("CUDA_VISIBLE_DEVICES") for worker in workers]


def test_one_worker_per_device_of_this_host(tmp_path: Path) -> None:
    topology = uniform(["algo-1", "algo-2"], 2, "cpu")
    workers = plan_workers(site(tmp_path, topology=topology, host="algo-2"))
    assert [worker.rank for worker in workers] == [2, 3]
    assert [identity(worker.environ).local_rank for worker in workers] == [0, 1]
    assert [worker.prefix for worker in workers] == [b"[rank 2] ", b"[rank 3] "]
    for worker in workers:
        assert worker.argv[0] == sys.executable
        assert flags.COORDINATOR.get(worker.environ) == "algo-1:43857"
        assert flags.HOST_INDEX.get(worker.environ) == 1
        assert Topology.from_json(flags.TOPOLOGY.get(worker.environ)) == topology
        assert flags.DEBUG.get(worker.environ)
        assert flags.JOB_NAME.get(worker.environ) == "job-1"


def test_every_rank_sees_its_own_device(tmp_path: Path) -> None:
    assert visible(plan_workers(site(tmp_path, gpu_ids=GPUS))) == ["MIG-1", "MIG-2"]


@pytest.mark.parametrize(
    ("enabled", "asked", "maps"),
    [(True, True, True), (True, False, False), (False, True, False), (None, True, True)],
)
def test_cuda_is_the_device_where_xla_is_and_nobody_said_no(
    tmp_path: Path, enabled: bool | None, asked: bool, maps: bool
) -> None:
    planned = site(tmp_path, enabled=enabled)
    settings = replace(planned.contract.settings, cuda_to_xla=asked)
    planned = replace(planned, contract=replace(planned.contract, settings=settings))
    for worker in plan_workers(planned):
        assert flags.CUDA_TO_XLA.get(worker.environ) is maps


@pytest.mark.parametrize("enabled", [False, None])
def test_without_xla_or_ranks_all_devices_are_seen(tmp_path: Path, enabled: bool | None) -> None:
    workers = plan_workers(site(tmp_path, gpu_ids=GPUS, enabled=enabled))
    assert set(visible(workers)) == {"MIG-1,MIG-2"}
    assert len(workers) == (1 if enabled is None else 2)
    assert has_identity(workers[0].environ) is (enabled is not None)


def test_a_lone_rank_has_no_coordinator(tmp_path: Path) -> None:
    [worker] = plan_workers(site(tmp_path, topology=uniform(["algo-1"], 1, "cpu")))
    assert flags.COORDINATOR.get(worker.environ) == ""


def test_the_users_environment_wins_but_not_over_the_contract(tmp_path: Path) -> None:
    environ = {"OMP_NUM_THREADS": "3", "SM_MODEL_DIR": "/stale", "PYTHONPATH": "/mine"}
    worker, _ = plan_workers(site(tmp_path, environ=environ))
    assert worker.environ["OMP_NUM_THREADS"] == "3"
    assert worker.environ["SM_MODEL_DIR"] == str(tmp_path / "model")
    assert worker.environ["PYTHONPATH"] == f"{tmp_path / 'code'}:/mine"


@pytest.mark.parametrize(
    ("value", "says"),
    [("x" * 200_000, "131,071 bytes"), ("a\0b", "NUL"), ("\ud800", "lone surrogate")],
)
def test_what_no_process_can_be_given_is_told(tmp_path: Path, value: str, says: str) -> None:
    with pytest.raises(SpecError, match=says) as caught:
        plan_workers(site(tmp_path, hyperparameters={"x": value}))
    assert "SM_HP_X" in str(caught.value)


def with_cache(planned: Site, cache: str | None) -> Site:
    settings = replace(planned.contract.settings, compiler_cache=cache)
    return replace(planned, contract=replace(planned.contract, settings=settings))


@pytest.mark.parametrize("named_by", ["config", "variable"])
def test_workers_keep_what_comes_from_s3_in_a_directory_of_the_run(
    tmp_path: Path, named_by: str
) -> None:
    url = "s3://bucket/prefix"
    planned = (
        with_cache(site(tmp_path), url)
        if named_by == "config"
        else site(tmp_path, environ={flags.CACHE.name: url})
    )
    assert planned.shared_cache == s3.Place("bucket", "prefix")
    for worker in plan_workers(planned):
        assert flags.CACHE.get(worker.environ) == str(planned.executables)
    elsewhere = with_cache(planned, "/mine")
    assert elsewhere.shared_cache is None
    assert {flags.CACHE.get(worker.environ) for worker in plan_workers(elsewhere)} == {"/mine"}
    assert with_cache(site(tmp_path, enabled=False), url).shared_cache is None


def test_a_variable_that_names_no_place_in_s3_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="TRCOMP_CACHE: got 's3://B/x'; a bucket's name has"):
        plan_workers(site(tmp_path, environ={flags.CACHE.name: "s3://B/x"}))


def test_other_devices_versions_and_flags_have_another_folder_in_s3() -> None:
    environs = [{}, {"XLA_FLAGS": "--x=1"}, {flags.BUCKET_MB.name: "64"}]
    folders = [shared_folder(environ, "cpu") for environ in environs]
    folders += [shared_folder({}, name) for name in ("NVIDIA H200", "NVIDIA A100-SXM4-40GB")]
    assert len(set(folders)) == 5
    assert folders[3].startswith("nvidia-h200-jax")
    assert shared_folder({"UNRELATED": "1"}, "cpu") == folders[0]
