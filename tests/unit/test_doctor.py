"""trcomp doctor: broken machines are recognised, each with what to do; this one is fit."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from trcomp import cli, doctor, doctor_command, flags
from trcomp.doctor import cloud, containers, devices, fabric, limits, network, places, software
from trcomp.doctor.findings import Asked, Check, Finding, ok, problem, warning
from trcomp.testing.server import SageMaker

PLAIN, GPU, ONLINE = Asked(), Asked(gpu=True), Asked(online=True)
GIB = 1024**3

INSTALLED = {
    "trcomp": software.Package(
        "0.1",
        (
            "torch>=2.10,<3; extra == 'runtime'",
            "jax>=0.9,<0.13; extra == 'runtime'",
            "jaxlib>=0.9,<0.13; extra == 'runtime'",
        ),
        ("Programming Language :: Python :: 3.11", "Programming Language :: Python :: 3.13"),
    ),
    "torch": software.Package("2.13.0+cpu", ("filelock",)),
    "filelock": software.Package("3.1"),
    "jax": software.Package("0.10.2", ("jaxlib<=0.10.2,>=0.10.1", "k8s; extra == 'k8s'")),
    "jaxlib": software.Package("0.10.2"),
}


def installed(python: str = "3.11.7", **packages: software.Package | None) -> software.Software:
    changed = {name.replace("_", "-"): package for name, package in packages.items()}
    found = {name: p for name, p in (INSTALLED | changed).items() if p is not None}
    return software.Software(python, "/venv/bin/python", found)


@pytest.mark.parametrize(
    ("facts", "judge", "verdict", "words"),
    [
        (installed(), software.judge_python, "ok", "3.11.7"),
        (installed("3.15.1"), software.judge_python, "warning", "tried up to 3.13"),
        (installed(), software.judge_torch, "ok", "2.13.0+cpu"),
        (installed(torch=None), software.judge_torch, "warning", "trcomp[runtime]"),
        (
            installed(torch=software.Package("2.9.1+cu128")),
            software.judge_torch,
            "problem",
            "torch 2.9.1+cu128 is installed; trcomp needs torch<3,>=2.10. "
            "pip install 'torch<3,>=2.10'",
        ),
        (installed(), software.judge_jax, "ok", "0.10.2, jaxlib 0.10.2"),
        (installed(jaxlib=None), software.judge_jax, "warning", "jaxlib is not installed"),
        (installed(), software.judge_fit, "ok", "jax, jaxlib"),
        (
            installed(jaxlib=software.Package("0.9.0"), filelock=None),
            software.judge_fit,
            "problem",
            "torch 2.13.0+cpu needs filelock, but it is not installed; jax 0.10.2 needs "
            "jaxlib<=0.10.2,>=0.10.1, but 0.9.0 is installed. "
            "pip install 'filelock' 'jaxlib<=0.10.2,>=0.10.1'",
        ),
        (
            installed(
                jax_cuda13_plugin=software.Package(
                    "0.10.1",
                    (
                        "jax-cuda13-pjrt==0.10.1",
                        "nvidia-cudnn-cu13>=9.12; extra == 'with-cuda'",
                        "nvidia-cublas>=13; extra == 'with-cuda'",
                    ),
                ),
                jax_cuda13_pjrt=software.Package("0.10.1"),
                nvidia_cudnn_cu13=software.Package("9.8"),
            ),
            software.judge_fit,
            "problem",
            "needs nvidia-cudnn-cu13>=9.12, but 9.8 is installed.",
        ),
    ],
)
def test_packages(facts: Any, judge: Any, verdict: str, words: str) -> None:
    check_finding(judge(facts, PLAIN), verdict, words)


H100 = devices.Gpu("0", "NVIDIA H100", 9.0, 80 * GIB, GIB)
ONE_GPU = devices.Nvidia(
    on_bus=1, driver="580.65.06", gpus=(H100,), num_visible=1, plugins={"jax-cuda13-plugin": "1"}
)


@pytest.mark.parametrize(
    ("facts", "judge", "asked", "verdict", "words"),
    [
        (devices.Nvidia(), devices.judge_driver, PLAIN, "ok", "workers run on the CPU"),
        (devices.Nvidia(), devices.judge_gpus, PLAIN, "ok", "none"),
        (devices.Nvidia(plugins={}), devices.judge_plugin, PLAIN, "ok", "none is needed"),
        (devices.Nvidia(), devices.judge_driver, GPU, "problem", "--gpus all"),
        (devices.Nvidia(), devices.judge_gpus, GPU, "problem", "NVIDIA driver"),
        (devices.Nvidia(), devices.judge_plugin, GPU, "problem", "trcomp[cuda]"),
        (devices.Nvidia(on_bus=2), devices.judge_driver, PLAIN, "warning", "2 of NVIDIA's GPUs"),
        (ONE_GPU, devices.judge_driver, GPU, "ok", "580.65.06"),
        (replace(ONE_GPU, gpus=()), devices.judge_gpus, GPU, "ok", "1; nvidia-smi"),
        (ONE_GPU, devices.judge_gpus, GPU, "ok", "0: NVIDIA H100, 80.0 GiB"),
        (ONE_GPU, devices.judge_plugin, GPU, "ok", "jax-cuda13-plugin 1"),
        (
            devices.Nvidia(on_bus=1, error="Failed to initialize NVML: Driver/library mismatch"),
            devices.judge_driver,
            PLAIN,
            "problem",
            "Driver/library mismatch",
        ),
        (
            replace(ONE_GPU, driver="550.54.15"),
            devices.judge_driver,
            PLAIN,
            "problem",
            "jax-cuda13-plugin needs 580 or newer. Install NVIDIA's driver 580 or newer, "
            "or jax-cuda12-plugin instead.",
        ),
        (replace(ONE_GPU, num_visible=0), devices.judge_gpus, PLAIN, "warning", "hides all"),
        (
            replace(ONE_GPU, gpus=(replace(H100, compute_capability=7.0),)),
            devices.judge_gpus,
            PLAIN,
            "problem",
            "needs compute capability 7.5; GPU 0 has 7.0",
        ),
        (
            replace(ONE_GPU, gpus=(replace(H100, used_bytes=70 * GIB),)),
            devices.judge_gpus,
            PLAIN,
            "warning",
            "GPU 0: 70.0 GiB of 80.0 GiB",
        ),
        (replace(ONE_GPU, plugins={}), devices.judge_plugin, PLAIN, "problem", "cannot use"),
        (
            replace(ONE_GPU, plugins={}, has_jax=False),
            devices.judge_plugin,
            PLAIN,
            "warning",
            "trcomp[cuda]",
        ),
        (
            replace(ONE_GPU, plugins={"jax-cuda12-plugin": "1", "jax-cuda13-plugin": "1"}),
            devices.judge_plugin,
            PLAIN,
            "problem",
            "pip uninstall jax-cuda12-plugin",
        ),
        (devices.Trial(tried=False), devices.judge_trial, PLAIN, "warning", "trcomp[runtime]"),
        (
            devices.Trial(platform="cpu", kind="cpu", num_devices=1, num_gpus=8),
            devices.judge_trial,
            PLAIN,
            "problem",
            "not on 8 GPU",
        ),
        (
            devices.Trial(platform="cpu", kind="cpu", num_devices=1, value=3.0),
            devices.judge_trial,
            PLAIN,
            "problem",
            "3.0 instead of 4.0",
        ),
    ],
)
def test_gpus(facts: Any, judge: Any, asked: Asked, verdict: str, words: str) -> None:
    check_finding(judge(facts, asked), verdict, words)


def test_the_drivers_tool_is_read() -> None:
    listing = (
        "0, NVIDIA A100-SXM4-40GB, 550.54.15, 8.0, 40960, 12\n1, Slice, 550.54.15, [N/A], x, 0\n"
    )
    a100, slice_ = devices.parsed(listing)
    assert a100 == devices.Gpu("0", "NVIDIA A100-SXM4-40GB", 8.0, 40 * GIB, 12 * 1024**2)
    assert slice_.compute_capability == slice_.memory_bytes == 0


def test_without_the_drivers_tool_the_kernel_is_asked(tmp_path: Path) -> None:
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:09:20 UTC 2025"
    (tmp_path / "version").write_text(text)
    assert devices._kernel_driver(tmp_path / "version") == "580.65.06"
    assert devices._kernel_driver(tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import time; time.sleep(600)", "no answer within 1 s"),
        ("import os; os.abort()", "exit code -6"),
        ("raise RuntimeError('no backend')", "RuntimeError: no backend"),
    ],
)
def test_a_device_that_fails_or_hangs_is_a_problem(code: str, words: str) -> None:
    check_finding(devices.judge_trial(devices.tried(code, 0, 1), PLAIN), "problem", words)


@pytest.mark.parametrize(
    ("facts", "judge", "verdict", "words"),
    [
        (fabric.Fabric(), fabric.judge_nccl, "ok", "none is needed"),
        (fabric.Fabric(num_gpus=2), fabric.judge_nccl, "warning", "trcomp[cuda]"),
        (fabric.Fabric(num_gpus=2, nccl="2.27"), fabric.judge_nccl, "ok", "2.27"),
        (fabric.Fabric(), fabric.judge_efa, "ok", "none"),
        (fabric.Fabric(num_efa=4), fabric.judge_efa, "warning", "libfabric and NCCL's plugin"),
        (
            fabric.Fabric(num_efa=4, has_libfabric=True, has_plugin=True),
            fabric.judge_efa,
            "ok",
            "4 of them",
        ),
        (fabric.Fabric(lockable_bytes=65536), fabric.judge_lockable, "ok", "64.0 KiB"),
        (
            fabric.Fabric(num_efa=1, lockable_bytes=65536),
            fabric.judge_lockable,
            "problem",
            "--ulimit memlock=-1",
        ),
        ((20_000, 20_000), limits.judge_files, "ok", "20000"),
        ((256, -1), limits.judge_files, "warning", "`ulimit -n 1024`"),
        ((256, 256), limits.judge_files, "warning", "--ulimit nofile=1024"),
        ((-1, -1), limits.judge_processes, "ok", "unlimited"),
        ((100, 100), limits.judge_processes, "warning", "nproc"),
    ],
)
def test_fabric_and_limits(facts: Any, judge: Any, verdict: str, words: str) -> None:
    check_finding(judge(facts, PLAIN), verdict, words)


ROOMY = places.Place("/data", total_bytes=100 * GIB, free_bytes=50 * GIB, free_files=10**6)
DOCKERS_SHM = places.Place(
    "/dev/shm", total_bytes=GIB // 16, free_bytes=GIB // 16, in_container=True
)


@pytest.mark.parametrize(
    ("facts", "judge", "verdict", "words"),
    [
        (ROOMY, places.judge_shm, "ok", "50.0 GiB of 100.0 GiB free"),
        (DOCKERS_SHM, places.judge_shm, "warning", "--shm-size 8g"),
        (replace(DOCKERS_SHM, in_container=False), places.judge_shm, "warning", "remount"),
        (replace(ROOMY, free_bytes=1), places.judge_shm, "warning", "ls -l /dev/shm"),
        (places.Place("/dev/shm", "there is none"), places.judge_shm, "problem", "there is none"),
        (ROOMY, places.judge_jobs, "ok", "/data, 50.0 GiB free"),
        (replace(ROOMY, free_bytes=GIB), places.judge_jobs, "warning", "TRCOMP_HOME"),
        (replace(ROOMY, free_bytes=1024), places.judge_temporary, "problem", "TMPDIR"),
        (replace(ROOMY, free_files=7), places.judge_jobs, "warning", "df -i /data"),
        (replace(ROOMY, error="Read-only file system"), places.judge_jobs, "problem", "Read-only"),
        ("off", places.judge_cache, "ok", "off"),
        ("s3://bucket/cache", places.judge_cache, "ok", "s3://bucket/cache"),
        (replace(ROOMY, free_bytes=1024), places.judge_cache, "problem", "TRCOMP_CACHE"),
    ],
)
def test_places(facts: Any, judge: Any, verdict: str, words: str) -> None:
    check_finding(judge(facts, PLAIN), verdict, words)


def test_a_place_that_is_not_there_yet_has_the_room_of_what_is_above(tmp_path: Path) -> None:
    found = places.place(tmp_path / "not" / "yet")
    assert found.path == str(tmp_path / "not" / "yet")
    assert found.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_a_file_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").touch()
    monkeypatch.setenv(flags.HOME.name, str(tmp_path))
    finding = places.judge_jobs(places.read_jobs(PLAIN), PLAIN)
    check_finding(finding, "problem", f"{tmp_path}/jobs: Not a directory")


@pytest.mark.parametrize(
    ("facts", "judge", "verdict", "words"),
    [
        ({}, network.judge_loopback, "ok", "127.0.0.1"),
        ({"127.0.0.1": "timed out"}, network.judge_loopback, "problem", "127.0.0.1: timed out"),
        (network.HostName("box", ("10.0.0.7",)), network.judge_host_name, "ok", "10.0.0.7"),
        (
            network.HostName("box", error="Name or service not known"),
            network.judge_host_name,
            "problem",
            "`127.0.1.1 box` to /etc/hosts",
        ),
        (
            network.HostName("box", ("203.0.113.9",), ("203.0.113.9",)),
            network.judge_host_name,
            "warning",
            "203.0.113.9 is no address of this machine",
        ),
        (
            network.HostName("box", ("10.0.0.7",), seconds=5.0),
            network.judge_host_name,
            "warning",
            "after 5.0 s",
        ),
        (network.Ports({}, 28_000), network.judge_ports, "ok", "43857 and 7777"),
        (network.Ports({}, 50), network.judge_ports, "warning", "50 ports only"),
        ({}, network.judge_proxies, "ok", "none"),
        (
            {"http_proxy": "http://me:hunter2@proxy:3128", "no_proxy": "localhost, 127.0.0.1"},
            network.judge_proxies,
            "ok",
            "http_proxy, but not for this machine",
        ),
        (
            {"HTTPS_PROXY": "http://me:hunter2@proxy:3128", "no_proxy": "example.com"},
            network.judge_proxies,
            "warning",
            "export no_proxy=example.com,localhost,127.0.0.1",
        ),
    ],
)
def test_network(facts: Any, judge: Any, verdict: str, words: str) -> None:
    finding = judge(facts, PLAIN)
    check_finding(finding, verdict, words)
    assert "hunter2" not in f"{finding.found}{finding.fix}"


def test_a_port_that_another_program_holds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(network.Topology, "master_port", port)
        finding = network.judge_ports(network.read_ports(PLAIN), PLAIN)
    check_finding(finding, "problem", f"{port} (torch.distributed's store)")


def test_no_engine_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    facts = containers.read(PLAIN)
    check_finding(containers.judge_engine(facts, PLAIN), "warning", f"{tmp_path}/docker.sock")
    check_finding(containers.judge_toolkit(facts, GPU), "ok", "there is no engine")


DOCKER = containers.Engine("Docker 27.1", "unix:///var/run/docker.sock", num_gpus=1)


def test_an_engine_that_cannot_hand_over_gpus() -> None:
    check_finding(containers.judge_engine(DOCKER, PLAIN), "ok", "Docker 27.1 at unix:///var/run")
    check_finding(containers.judge_toolkit(DOCKER, PLAIN), "warning", "nvidia-ctk")
    check_finding(containers.judge_toolkit(DOCKER, GPU), "problem", "nvidia-ctk")
    knows = replace(DOCKER, hands_over_gpus=True)
    check_finding(containers.judge_toolkit(knows, GPU), "ok", "known to Docker")
    check_finding(containers.judge_toolkit(replace(DOCKER, num_gpus=0), PLAIN), "ok", "not needed")


def test_gpus_are_handed_over_by_a_runtime_or_by_devices() -> None:
    assert containers.knows_nvidia({"Runtimes": {"runc": {}, "nvidia": {}}})
    assert containers.knows_nvidia({"DiscoveredDevices": [{"ID": "nvidia.com/gpu=all"}]})
    assert not containers.knows_nvidia({"Runtimes": {"runc": {}}, "DiscoveredDevices": None})
    assert containers.named({"Components": [{"Name": "Podman Engine"}]}) == "Podman"


@pytest.fixture
def no_aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """AWS's configuration is that of an empty directory."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


def test_without_aws_there_are_warnings_and_no_calls(
    no_aws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever asked it would wait for this address, which nobody has, and time out.
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/")
    begin = time.monotonic()
    account = cloud.read_account(PLAIN)
    assert time.monotonic() - begin < 5
    finding = cloud.judge_credentials(account, PLAIN)
    check_finding(finding, "warning", "the container's role, the role of an EC2 instance")
    check_finding(cloud.judge_region(account, PLAIN), "warning", "AWS_DEFAULT_REGION")


def test_credentials_are_found_and_not_shown(no_aws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (no_aws / "config").write_text("[profile team]\nregion = eu-west-1\n")
    (no_aws / "credentials").write_text(
        "[team]\naws_access_key_id = AKIAEXAMPLE\naws_secret_access_key = hunter2\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "team")
    account = cloud.read_account(PLAIN)
    assert "hunter2" not in repr(account)
    finding = cloud.judge_credentials(account, PLAIN)
    assert finding == ok("profile team, by shared-credentials-file")
    assert cloud.judge_region(account, PLAIN) == ok("eu-west-1")


def test_a_profile_that_is_not_there_is_a_problem(
    no_aws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    check_finding(cloud.judge_credentials(cloud.read_account(PLAIN), PLAIN), "problem", "nobody")


def test_online_aws_says_who_this_is(sagemaker: SageMaker) -> None:
    finding = cloud.judge_credentials(cloud.read_account(ONLINE), ONLINE)
    check_finding(finding, "ok", "arn:aws:")
    check_finding(cloud.judge_clock(cloud.read_clock(ONLINE), ONLINE), "ok", "0 s")


def test_online_aws_cannot_be_reached(
    sagemaker: SageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    finding = cloud.judge_credentials(cloud.read_account(ONLINE), ONLINE)
    check_finding(finding, "problem", "Could not ask AWS whose credentials these are")
    clock = cloud.judge_clock(cloud.read_clock(ONLINE), ONLINE)
    check_finding(clock, "problem", "http://127.0.0.1:1 does not answer")


@contextmanager
def web_server(ahead_seconds: float) -> Iterator[str]:
    """A server whose clock is ahead, and which sends readers elsewhere, as AWS's does."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response_only(302)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.send_header("Date", formatdate(time.time() + ahead_seconds, usegmt=True))
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("ahead_seconds", "verdict", "words"),
    [
        (0, "ok", "AWS's"),
        (60, "warning", "behind AWS's. Let the system set it"),
        (-600, "problem", "ahead of AWS's: AWS refuses what is signed with it"),
    ],
)
def test_the_clock_is_compared(ahead_seconds: float, verdict: str, words: str) -> None:
    with web_server(ahead_seconds) as url:
        clock = cloud.compared(cloud.Clock(), url)
    check_finding(cloud.judge_clock(clock, ONLINE), verdict, words)


def test_a_clock_from_before_the_installation_is_a_problem() -> None:
    check_finding(cloud.judge_clock(cloud.Clock(), PLAIN), "ok", "--online")
    check_finding(cloud.judge_clock(cloud.Clock(before_install=True), PLAIN), "problem", "set-ntp")


def test_what_hangs_or_breaks_is_a_problem_and_facts_are_read_once() -> None:
    reads, for_ever = [], threading.Event()

    def read(asked: Asked) -> int:
        reads.append(asked)
        return 7

    def hang(asked: Asked) -> None:
        for_ever.wait()

    def fail(asked: Asked) -> None:
        raise PermissionError("not for you")

    def seven(fact: int, asked: Asked) -> Finding:
        return ok(f"{fact}")

    checks = [
        Check(name, reader, seven, "", "")
        for name, reader in [("a", read), ("b", read), ("c", hang), ("d", fail)]
    ]
    found = list(doctor.examine(PLAIN, checks, limit_seconds=0.2))
    assert [one.name for one in found] == ["a", "b", "c", "d"]
    assert found[0] == replace(ok("7"), name="a")
    assert reads == [PLAIN]
    check_finding(found[2], "problem", "No answer within 0.2 s")
    check_finding(found[3], "problem", "PermissionError: not for you")
    for_ever.set()


def examined(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    monkeypatch.setattr(doctor, "examine", lambda asked: iter(findings))


def test_the_command_shows_each_check_and_its_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = replace(problem("It is on fire.", "Put it out."), name="disk")
    examined(monkeypatch, replace(ok("3.11"), name="Python"), bad)
    assert cli.main(["doctor"]) == 69
    shown = capsys.readouterr()
    assert [line.split() for line in shown.out.splitlines()] == [
        ["ok", "Python", "3.11"],
        ["problem", "disk", "It", "is", "on", "fire."],
        ["fix:", "Put", "it", "out."],
        [],
        ["1", "problem,", "0", "warnings"],
    ]
    assert "Jobs would fail on this machine over: disk." in shown.err


def test_warnings_alone_exit_with_zero_and_json_is_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examined(monkeypatch, replace(warning("Little room.", "Free some."), name="jobs"))
    shown = CliRunner().invoke(doctor_command.examine, ["--json"])
    assert shown.exit_code == 0
    finding = {"verdict": "warning", "found": "Little room.", "fix": "Free some.", "name": "jobs"}
    assert json.loads(shown.output) == {"findings": [finding]}


@pytest.mark.runtime
@pytest.mark.slow
def test_this_machine_is_fit() -> None:
    found = {finding.name: finding for finding in doctor.examine(PLAIN)}
    assert [check.name for check in doctor.CHECKS] == list(found)
    assert {one.name: one.found for one in found.values() if one.verdict == "problem"} == {}
    assert found["xla device"].found.startswith("computes on the")
    assert all(one.fix for one in found.values() if one.verdict != "ok")


def check_finding(finding: Finding, verdict: str, words: str) -> None:
    """A finding is as bad as it should be, says these words, and what to do unless all is well."""
    assert finding.verdict == verdict, finding
    assert words in f"{finding.found} {finding.fix}"
    assert bool(finding.fix) == (verdict != "ok")
