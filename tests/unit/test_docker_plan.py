"""Plans of jobs in containers, which need no engine to be made."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trcomp import Estimator, Plan, SpecError
from trcomp.backends.docker_create import create
from trcomp.backends.docker_logs import LineCutter, SavedLines
from trcomp.backends.docker_plan import PASSED, DockerPlan, passed_environment
from trcomp.backends.process_plan import plan as process_plan
from trcomp.env import gpus
from trcomp.flags import ALL, JOB_ONLY
from trcomp.inputs import TrainingInput


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    path = tmp_path / "train.py"
    path.write_text("")
    return path


def planned(script: Path, **words: Any) -> DockerPlan:
    plan = Estimator(script, **{"instance_type": "local"} | words).plan(job_name="j")
    assert isinstance(plan, DockerPlan)
    return plan


class Engine:
    """Keeps what it is asked to create."""

    def __init__(self, *security: str) -> None:
        self.asked: dict[str, Any] = {}
        self.containers = SimpleNamespace(create=self._create)
        self.api = SimpleNamespace(create_endpoint_config=lambda **words: words)
        self._security = [f"name={option}" for option in security]

    def info(self) -> dict[str, Any]:
        return {"SecurityOptions": self._security}

    def _create(self, image: str, command: list[str], **words: Any) -> None:
        self.asked = {"image": image, "command": command, **words}


def asked_for(plan: DockerPlan, *security: str) -> dict[str, Any]:
    engine = Engine(*security)
    create(engine, plan, plan.hosts[0])
    return engine.asked


@pytest.mark.parametrize(
    ("words", "shares"),
    [
        ({}, [-1]),
        ({"gpus": 2}, [2]),
        ({"gpus": ["GPU-a", 3]}, [("GPU-a", "3")]),
        ({"instance_count": 2}, [("0", "1"), ("2", "3")]),
        ({"instance_count": 2, "gpus": 2}, [("0",), ("1",)]),
        ({"instance_count": 2, "gpus": [3, 1]}, [("3",), ("1",)]),
    ],
)
def test_hosts_share_the_gpus_out(
    script: Path, words: dict[str, Any], shares: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = tuple((str(index), f"GPU-{index}") for index in range(4))
    monkeypatch.setattr(gpus, "listed", lambda: devices)
    plan = planned(script, instance_type="local_gpu", **words)
    assert [host.gpus for host in plan.hosts] == shares
    (request,) = asked_for(plan)["device_requests"]
    assert request["Capabilities"] == [["gpu"]]
    first = shares[0]
    due = (0, list(first)) if isinstance(first, tuple) else (first, [])
    assert (request["Count"], request["DeviceIDs"]) == due


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"gpus": 1}, "instance_type='local_gpu' has GPUs"),
        ({"instance_type": "local_gpu", "instance_count": 2}, "no GPU is found here"),
        ({"instance_type": "local_gpu", "instance_count": 2, "gpus": 3}, "shared out evenly"),
        ({"instance_type": "local_gpu", "gpus": 0}, "1 or more"),
        ({"instance_type": "local_gpu", "gpus": [1, "1"]}, "each GPU once"),
        ({"network": "host", "instance_count": 2}, "cannot be told apart"),
        ({"network": "host", "enable_network_isolation": True}, "isolates nothing"),
        ({"mounts": {"/no/such/place": "/x"}}, "no such file or directory on this machine"),
        ({"mounts": {"/tmp": "x"}}, "an absolute path in the container"),
        ({"mounts": {"/tmp": "/opt/ml"}}, "trcomp mounts what the job needs there"),
        ({"mounts": {"/tmp": "/x", "/var": "/x:ro"}}, "another mount has that place"),
        ({"shm_size": "lots"}, "a number of bytes, or text such as '8g'"),
        ({"memory": 1000}, "at least '6m'"),
        ({"cpus": 0.0}, "a number of cores"),
        ({"ulimits": {"nofiles": 1}}, "Did you mean 'nofile'?"),
        ({"ulimits": {"nofile": "9:3"}}, "soft at most hard"),
        ({"extra_hosts": {"a": "b"}}, "an IP address"),
        ({"user": "a b"}, "uid:gid"),
        ({"pass_environment": ["A=secret"]}, "pass_environment: got 'A'"),
        ({"output_path": "s3://bucket/x"}, "S3 is not supported yet"),
    ],
)
def test_what_cannot_be_is_told(script: Path, words: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError) as caught:
        planned(script, **words)
    assert text in str(caught.value)
    assert "secret" not in str(caught.value)


def test_words_reach_the_engine(script: Path) -> None:
    plan = planned(
        script,
        image_uri="mine",
        shm_size="1.5g",
        memory=1 << 30,
        cpus=1.5,
        ulimits={"memlock": -1, "nofile": "10:20"},
        extra_hosts={"a": "10.0.0.7"},
        user="7:8",
        container_entry_point=["sh"],
        container_arguments=["-c", "x"],
    )
    asked = asked_for(plan)
    assert asked["image"] == "mine"
    assert asked["command"] == ["sh", "-c", "x"]
    assert asked["shm_size"] == 3 << 29
    assert asked["mem_limit"] == asked["memswap_limit"] == 1 << 30
    assert asked["nano_cpus"] == 1_500_000_000
    limits = {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in asked["ulimits"]}
    assert limits == {"memlock": (-1, -1), "nofile": (10, 20)}
    assert (asked["extra_hosts"], asked["user"]) == ({"a": "10.0.0.7"}, "7:8")
    assert asked["device_requests"] == []
    assert asked["labels"]["trcomp.host"] == "algo-1"


def test_a_channel_is_mounted_for_the_hosts_of_its_groups(script: Path) -> None:
    names = ("data", "rest")
    groups = [{"InstanceGroupName": n, "InstanceType": "any", "InstanceCount": 1} for n in names]
    estimator = Estimator(script, instance_type="local", instance_groups=groups)
    place = script.parent
    inputs = {"one": TrainingInput(place, instance_groups=["data"]), "all": place}
    plan = estimator.plan(inputs, job_name="j")
    assert isinstance(plan, DockerPlan)
    found = [{m.target for m in host.mounts if m.source == place} for host in plan.hosts]
    assert found == [
        {"/opt/ml/input/data/one", "/opt/ml/input/data/all"},
        {"/opt/ml/input/data/all"},
    ]
    given = [[channel.name for channel in host.contract.channels] for host in plan.hosts]
    assert given == [["one", "all"], ["all"]]


def test_the_machines_own_network_needs_none_of_the_jobs(script: Path) -> None:
    asked = asked_for(planned(script, network="host", extra_hosts={"a": "10.0.0.7"}))
    assert asked["network_mode"] == "host"
    assert asked["extra_hosts"] == {"algo-1": "127.0.0.1", "a": "10.0.0.7"}
    assert "network" not in asked


def test_results_are_the_callers_under_a_rootless_engine_too(script: Path) -> None:
    own = f"{os.getuid()}:{os.getgid()}"
    assert asked_for(planned(script))["user"] == own
    assert asked_for(planned(script), "rootless")["user"] == "0:0"
    assert asked_for(planned(script, user="7:8"), "rootless")["user"] == "7:8"
    assert asked_for(planned(script), "selinux")["security_opt"] == ["label=disable"]


def test_only_what_is_asked_for_and_the_runtimes_flags_are_passed_on() -> None:
    environ = {flag.name: "x" for flag in ALL} | {"AWS_PROFILE": "p", "AWSX": "", "HF_TOKEN": "t"}
    passed = passed_environment(["AWS_*"], environ)
    assert passed["AWS_PROFILE"] == "p"
    assert passed["TRCOMP_GRACE_SECONDS"] == "x"
    assert not {"AWSX", "HF_TOKEN", "TRCOMP_HOME"} & set(passed)
    assert not {flag.name for flag in JOB_ONLY} & set(passed)
    # A new flag is one of these, or passed on: decide which.
    clients = {"HOME", "PROFILE", "PRICES", "BUILD_ARGS", "PUSH", "CACHE"}
    clients |= {"REGISTRY_USERNAME", "REGISTRY_PASSWORD"}
    rest = {flag.name for flag in ALL if flag not in JOB_ONLY and flag not in PASSED}
    assert rest == {f"TRCOMP_{name}" for name in clients}


def test_a_plan_changes_nothing_and_masks_secrets(script: Path) -> None:
    words = {"environment": {"MY_TOKEN": "s3cr3t"}, "checkpoint_s3_uri": script.parent / "kept"}
    plan: Plan = planned(script, **words)
    assert plan == planned(script, **words)
    assert plan.handle == "docker://j"
    assert "s3cr3t" not in plan.to_text() + plan.to_json()
    assert f"/opt/ml/checkpoints <- {script.parent}/kept" in plan.to_text()
    assert sorted(os.listdir(script.parent)) == ["train.py"]


def test_an_estimator_moves_between_backends_by_its_instance_type_alone(script: Path) -> None:
    words: dict[str, Any] = {"shm_size": "1g", "memory": "4g", "gpus": 2}
    spec = Estimator(script, **words).to_spec(job_name="j")
    assert process_plan(spec).spec.container == words
    assert planned(script, instance_type="local_gpu", **words).limits.shm_bytes == 1 << 30


def test_lines_of_two_streams_are_whole_however_they_are_cut() -> None:
    cutter = LineCutter()
    parts = [(1, b"out 1\nou"), (2, b"er"), (1, b"t 2\n"), (2, b"r 1\n"), (1, b"end"), (2, b"e")]
    assert b"".join(cutter.feed(*part) for part in parts) == b"out 1\nout 2\nerr 1\n"
    assert cutter.rest() == b"end\ne"


@pytest.mark.parametrize("before", [0, 3, 6, 11])
def test_a_log_that_is_read_again_goes_on_where_it_was(tmp_path: Path, before: int) -> None:
    text, path = b"one\ntwo\nend", tmp_path / "algo-1.log"
    path.write_bytes(text[:before])
    saved = SavedLines(path)
    for part in (text[:4], text[4:8], text[8:]):
        saved.write(part)
    saved.close()
    assert path.read_bytes() == text
