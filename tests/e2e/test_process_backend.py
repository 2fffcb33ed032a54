"""Jobs of plain processes, from submit to what they leave; the scripts need no framework."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trcomp import (
    Estimator,
    Job,
    JobFailedError,
    JobStatus,
    JobStoppedError,
    Plan,
    TrainingCompilerConfig,
)
from trcomp.backends import local_jobs, process
from trcomp.cli import main
from trcomp.inputs import TrainingInput

pytestmark = pytest.mark.e2e

SLEEPER = """
    import signal, subprocess, sys, time
    if "--deaf" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A grandchild that leaves its parent's session, as daemons do.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                             start_new_session=True)
    print("ready", child.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRCOMP_GRACE_SECONDS", "5")
    monkeypatch.setenv("GPU_NUM_DEVICES", "2")
    return tmp_path


@pytest.fixture
def submitted() -> Iterator[list[Job]]:
    """Jobs that must not outlive the test."""
    jobs: list[Job] = []
    yield jobs
    for job in jobs:
        for _ in range(2):
            job.stop()


def estimator(workplace: Path, script: str, **words: Any) -> Estimator:
    code = workplace / "code"
    code.mkdir(exist_ok=True)
    lines = script.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    (code / "train.py").write_text("\n".join(line[indent:] for line in lines) + "\n")
    words.setdefault("compiler_config", TrainingCompilerConfig(enabled=False))
    return Estimator("train.py", code, **words)


def started(estimator: Estimator, jobs: list[Job], **words: Any) -> Job:
    estimator.fit(wait=False, **words)
    job = estimator.latest_training_job
    assert job is not None
    jobs.append(job)
    return job


def ready_pids(job: Job, count: int) -> list[int]:
    """Wait until that many workers say that they are ready."""
    pids: list[int] = []
    for line in job.logs(follow=True):
        if "ready" in line:
            pids.append(int(line.split()[-1]))
        if len(pids) == count:
            return pids
    raise AssertionError(f"{job} ended before its workers were ready: {list(job.logs())}")


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def job_processes(job: Job) -> list[int]:
    """Processes whose environment names the job."""
    marker = f"TRAINING_JOB_NAME={job.name}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if alive(pid)]


def test_a_job_from_words_to_results(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = """
        import json, os, pathlib, sys
        rank = os.environ["RANK"]
        print("args", json.dumps(sys.argv[1:]), os.environ["MY_VARIABLE"])
        print(pathlib.Path(os.environ["SM_CHANNEL_TRAINING"], "deep", "x.txt").read_text())
        pathlib.Path(os.environ["SM_MODEL_DIR"], f"weights-{rank}").write_text(rank)
        pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "note").write_text("n")
    """
    (workplace / "data" / "deep").mkdir(parents=True)
    (workplace / "data" / "deep" / "x.txt").write_text("the data")
    fitted = estimator(
        workplace,
        script,
        hyperparameters={"z": 1, "name": "a 'b' \"c\" $d", "none": None, "neg": "-x", "e": ""},
        environment={"MY_VARIABLE": "mine"},
        output_path=workplace / "out",
    )
    fitted.fit(workplace / "data", job_name="whole")

    shown = capsys.readouterr().out
    sent = ["--z", "1", "--name", "a 'b' \"c\" $d", "--neg=-x", "--e", ""]
    for rank in range(2):
        assert f"[rank {rank}] args {json.dumps(sent)} mine" in shown
        assert f"[rank {rank}] the data" in shown
    stages = [line.split()[-1] for line in shown.splitlines() if line.strip()[:1].isdigit()]
    assert stages == ["Preparing", "Starting", "Training", "Uploading", "Completed"]
    assert "process://whole" in shown

    job = Job.attach("process://whole")
    assert job.status() is JobStatus.COMPLETED
    assert fitted.model_data == f"file://{workplace}/out/whole/output/model.tar.gz"
    with tarfile.open(workplace / "out/whole/output/model.tar.gz") as archive:
        assert archive.getnames() == ["weights-0", "weights-1"]
    with tarfile.open(workplace / "out/whole/output/output.tar.gz") as archive:
        assert "note" in archive.getnames()
    directory = job.record().directory
    assert (directory / "logs/algo-1/rank-1.log").read_text().startswith("args")
    assert "mine" in (directory / "plan.json").read_text()
    assert json.loads((directory / "report.json").read_text())["job"] == job.handle
    assert f"<h1>{job.handle}</h1>" in (directory / "report.html").read_text()
    assert (directory / "hosts/algo-1/ml/input/config/resourceconfig.json").exists()
    assert job_processes(job) == []


def test_a_failed_job_says_whose_fault_it_was(workplace: Path) -> None:
    script = """
        import os, time
        print("about to fail", flush=True)
        if os.environ["RANK"] == "3":
            raise ValueError("bad luck")
        time.sleep(600)
    """
    fitted = estimator(workplace, script, instance_count=2)
    with pytest.raises(JobFailedError) as caught:
        fitted.fit(logs="None")
    error = caught.value
    assert (error.rank, error.host, error.exit_code) == (3, "algo-2", 1)
    assert "ValueError: bad luck" in str(error)
    assert 'raise ValueError("bad luck")' in error.traceback
    assert "about to fail" in error.last_lines
    job = Job.attach(error.handle)
    assert job.status() is JobStatus.FAILED
    assert job.record().directory.is_dir()
    assert job_processes(job) == []


def test_a_host_that_is_slow_to_end_is_blamed_if_it_failed_first(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_NUM_DEVICES", "1")
    script = """
        import atexit, os, pathlib, sys, time
        gate = pathlib.Path(os.environ["GATE"])
        if os.environ["RANK"] == "1":
            # Runs once the worker has said why it fails.
            atexit.register(lambda: (gate.touch(), time.sleep(600)))
            raise ValueError("the cause")
        while not gate.exists():
            time.sleep(0.01)
        sys.exit(5)
    """
    environment = {"GATE": str(workplace / "gate")}
    with pytest.raises(JobFailedError, match="rank 1 on algo-2 failed, exit code 1: ValueError"):
        estimator(workplace, script, instance_count=2, environment=environment).fit(logs="None")


def test_the_scripts_own_exit_code_is_kept(workplace: Path) -> None:
    with pytest.raises(JobFailedError) as caught:
        estimator(workplace, "raise SystemExit(7)").fit()
    assert caught.value.exit_code == 7


def test_a_killed_worker_is_128_and_its_signal(workplace: Path) -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(JobFailedError) as caught:
        estimator(workplace, script).fit()
    assert caught.value.exit_code == 137


def test_a_stopped_job_leaves_no_process(workplace: Path, submitted: list[Job]) -> None:
    job = started(estimator(workplace, SLEEPER, instance_count=2), submitted)
    grandchildren = ready_pids(job, 4)
    assert job.status() is JobStatus.TRAINING
    job.stop()
    with pytest.raises(JobStoppedError):
        job.wait(timeout=60)
    assert not any(alive(pid) for pid in grandchildren)
    assert job_processes(job) == []
    steps = [step.status for step in job.record().transitions]
    assert steps[-3:] == [JobStatus.STOPPING, JobStatus.UPLOADING, JobStatus.STOPPED]


def test_a_second_stop_kills_a_worker_that_does_not_listen(
    workplace: Path, submitted: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRCOMP_GRACE_SECONDS", "600")
    deaf = estimator(workplace, SLEEPER, hyperparameters={"deaf": 1})
    job = started(deaf, submitted)
    ready_pids(job, 2)
    job.stop()
    job.stop()
    with pytest.raises(JobStoppedError):
        job.wait(timeout=60)
    assert job_processes(job) == []


def test_a_host_outlives_the_grace_of_its_workers(
    workplace: Path, submitted: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRCOMP_GRACE_SECONDS", "1")
    job = started(estimator(workplace, SLEEPER, hyperparameters={"deaf": 1}), submitted)
    ready_pids(job, 2)
    job.stop()
    with pytest.raises(JobStoppedError):
        job.wait(timeout=60)
    assert "[trcomp] Stopped by SIGTERM; all processes have ended." in list(job.logs())


def test_ctrl_c_stops_the_job_and_says_so(workplace: Path, submitted: list[Job]) -> None:
    estimator(workplace, SLEEPER)
    command = [sys.executable, "-m", "trcomp", "run", "train.py", "--job-name", "interrupted"]
    client = subprocess.Popen(
        [*command, "--source-dir", str(workplace / "code")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert client.stdout is not None
    ready = (line for line in client.stdout if "ready" in line)
    pids = [int(next(ready).split()[-1]) for _ in range(2)]
    submitted.append(Job("interrupted"))
    client.send_signal(signal.SIGINT)
    rest = client.communicate(timeout=60)[0]
    assert client.returncode == 130
    assert "stopping process://interrupted" in rest
    assert "process://interrupted: Stopped. No process of it is left." in rest
    assert "Traceback" not in rest
    assert not any(alive(pid) for pid in pids)
    assert job_processes(Job("interrupted")) == []


def test_ctrl_c_while_preparing_starts_nothing(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(plan: Plan, objects: object, place_data: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(process, "prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        estimator(workplace, "print('never')").fit(job_name="early")
    assert Job("early").status() is JobStatus.STOPPED
    assert "process://early: Stopped" in capsys.readouterr().out


def test_ctrl_c_while_the_runner_starts_stops_it(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = local_jobs._start_runner

    def interrupted(*given: Any) -> bool:
        signal.raise_signal(signal.SIGINT)
        return start(*given)

    monkeypatch.setattr(local_jobs, "_start_runner", interrupted)
    with pytest.raises(KeyboardInterrupt):
        estimator(workplace, SLEEPER).fit(job_name="early")
    assert Job("early").status() is JobStatus.STOPPED
    assert job_processes(Job("early")) == []


def test_a_job_outlives_its_client_and_another_process_follows_it(
    workplace: Path, submitted: list[Job]
) -> None:
    script = """
        import os, time
        print("begun", flush=True)
        while not os.path.exists(os.environ["GATE"]):
            time.sleep(0.01)
        print("done")
    """
    gate = workplace / "gate"
    fitted = estimator(workplace, script, environment={"GATE": str(gate)})
    client = f"""
import trcomp
trcomp.Estimator("train.py", {str(workplace / "code")!r}, environment={{"GATE": {str(gate)!r}}},
    compiler_config=trcomp.TrainingCompilerConfig(enabled=False)).fit(wait=False, job_name="alone")
"""
    assert fitted.latest_training_job is None
    subprocess.run([sys.executable, "-c", client], check=True, timeout=60)
    job = Job.attach("process://alone")
    submitted.append(job)
    lines = job.logs(follow=True)
    assert any("begun" in line for line in lines)
    gate.touch()
    assert any("done" in line for line in lines)
    assert job.wait(timeout=60) == "Completed"


def test_a_runner_that_is_killed_takes_the_job_with_it(
    workplace: Path, submitted: list[Job]
) -> None:
    job = started(estimator(workplace, SLEEPER), submitted)
    ready_pids(job, 2)
    runner = json.loads((job.record().directory / "job.json").read_text())["runner_pid"]
    workers = job_processes(job)
    os.kill(runner, signal.SIGKILL)
    with pytest.raises(JobFailedError, match="runner died"):
        job.wait(timeout=60)
    # The hosts hear of it from the kernel and end their workers in their own time.
    for pid in workers:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        _wait_for_end(descriptor)
    assert job_processes(job) == []


def test_two_fits_of_one_estimator_are_two_jobs_at_once(
    workplace: Path, submitted: list[Job]
) -> None:
    fitted = estimator(workplace, SLEEPER)
    jobs = [started(fitted, submitted) for _ in range(2)]
    assert jobs[0].name != jobs[1].name
    for job in jobs:
        ready_pids(job, 2)
    jobs[0].stop()
    with pytest.raises(JobStoppedError):
        jobs[0].wait(timeout=60)
    assert jobs[1].status() is JobStatus.TRAINING


def test_checkpoints_are_found_again_by_the_next_job(workplace: Path) -> None:
    script = """
        import os, pathlib
        from trcomp import flags
        file = pathlib.Path(flags.CHECKPOINT_DIR.get(), f"step-{os.environ['RANK']}")
        count = int(file.read_text()) if file.exists() else 0
        file.write_text(str(count + 1))
    """
    kept = workplace / "kept"
    for _ in range(2):
        estimator(workplace, script, checkpoint_s3_uri=f"file://{kept}").fit(logs="None")
    assert (kept / "step-0").read_text() == (kept / "step-1").read_text() == "2"


def test_a_channel_goes_to_the_hosts_of_its_groups(workplace: Path) -> None:
    script = """
        import os
        channels = sorted(name for name in os.environ if name.startswith("SM_CHANNEL_"))
        found = [*channels, *sorted(os.listdir(os.environ["SM_INPUT_DIR"] + "/data"))]
        print("found", os.environ["SM_CURRENT_HOST"], *found)
    """
    for name in ("one", "all"):
        (workplace / name).mkdir()
    names = ("data", "rest")
    groups = [{"InstanceGroupName": n, "InstanceType": "any", "InstanceCount": 1} for n in names]
    words = {"instance_type": "local_process", "instance_groups": groups}
    job = estimator(workplace, script, **words)
    one = TrainingInput(workplace / "one", instance_groups=["data"])
    job.fit({"one": one, "all": workplace / "all"}, logs="None")
    assert job.latest_training_job is not None
    lines = [line.split("found ")[1] for line in job.latest_training_job.logs() if "found" in line]
    assert sorted({*lines}) == [
        "algo-1 SM_CHANNEL_ALL SM_CHANNEL_ONE all one",
        "algo-2 SM_CHANNEL_ALL all",
    ]


def test_a_job_does_not_touch_its_inputs_or_its_source(workplace: Path) -> None:
    script = """
        import os, pathlib
        data = pathlib.Path(os.environ["SM_CHANNEL_A"])
        if os.environ["RANK"] == "0":
            (data / "new").write_text("")
            (data / "deep" / "new").write_text("")
            (data / "deep" / "x").unlink()
            pathlib.Path("new.py").write_text("")
        assert len(os.listdir(os.environ["SM_CHANNEL_B"])) == 1
        assert (data / "linked" / "one.csv").read_text() == "1"
    """
    (workplace / "data" / "deep").mkdir(parents=True)
    (workplace / "data" / "deep" / "x").write_text("x")
    (workplace / "one.csv").write_text("1")
    (workplace / "data" / "linked").symlink_to(workplace)
    inputs = {"a": workplace / "data", "b": workplace / "one.csv"}
    estimator(workplace, script).fit(inputs, logs="None")
    assert sorted(os.listdir(workplace / "data")) == ["deep", "linked"]
    assert os.listdir(workplace / "data" / "deep") == ["x"]
    assert os.listdir(workplace / "code") == ["train.py"]


def test_results_that_cannot_be_written_fail_the_job(workplace: Path) -> None:
    (workplace / "out").write_text("a file where a directory should be")
    with pytest.raises(JobFailedError, match="could not be written"):
        script = "import os; open(os.environ['SM_MODEL_DIR'] + '/m', 'w').close()"
        estimator(workplace, script, output_path=workplace / "out").fit(logs="None")


def test_a_taken_name_is_refused_and_the_first_job_stays(workplace: Path) -> None:
    fitted = estimator(workplace, "print('first')")
    fitted.fit(job_name="taken", logs="None")
    with pytest.raises(ValueError, match=r"holds a job of that name(.|\n)*trcomp remove taken"):
        fitted.fit(job_name="taken")
    assert Job("taken").status() == "Completed"


def test_a_secret_stays_off_the_disk(workplace: Path) -> None:
    secret = "s3cr3t-value"
    fitted = estimator(workplace, "print('x')", environment={"MY_TOKEN": secret})
    fitted.fit(job_name="quiet", logs="None")
    holders = [
        path
        for path in (workplace / "home").rglob("*")
        if path.is_file() and secret.encode() in path.read_bytes()
    ]
    assert holders == []


def test_the_command_line_from_run_to_report(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = """
        import sys
        print(sys.argv[1:], flush=True)
        sys.exit(7)
    """
    estimator(workplace, script)
    options = ["--source-dir", str(workplace / "code"), "--devices", "1", "--no-compiler"]
    assert main(["run", "train.py", *options, "--job-name", "j", "--", "x y", "--a=1", "--b"]) == 7
    captured = capsys.readouterr()
    assert "jobs/j/report.html" in captured.out
    assert "[rank 0] ['x y', '--a=1', '--b']" in captured.out
    assert "rank 0 on algo-1 failed, exit code 7" in captured.err
    assert "Next: `trcomp logs j`" in captured.err

    assert main(["list"]) == 0
    assert "Failed      process://j" in capsys.readouterr().out
    assert main(["status", "j", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["status"], status["failure"]["exit_code"]) == ("Failed", 7)
    assert main(["logs", "-f", "process://j"]) == 0
    assert "[rank 0] ['x y', '--a=1', '--b']" in capsys.readouterr().out.splitlines()
    assert main(["report", "j", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"] == "process://j"
    assert main(["stop", "j"]) == 0
    assert "Failed" in capsys.readouterr().out
    assert main(["remove", "j"]) == 0
    assert main(["list"]) == 0
    assert capsys.readouterr().out == "process://j  removed\n"


def test_detached_run_prints_the_handle_and_stop_ends_it(
    workplace: Path, submitted: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    estimator(workplace, SLEEPER)
    options = ["--source-dir", str(workplace / "code"), "--no-compiler", "--detach"]
    assert main(["run", "train.py", *options]) == 0
    handle = capsys.readouterr().out.strip()
    job = Job.attach(handle)
    submitted.append(job)
    ready_pids(job, 2)
    assert main(["remove", handle]) == 75
    assert "trcomp stop" in capsys.readouterr().err
    assert main(["stop", handle]) == 0
    assert capsys.readouterr().out == f"{handle}  Stopped\n"
    assert job_processes(job) == []


def _wait_for_end(descriptor: int) -> None:
    ready, _, _ = select.select([descriptor], [], [], 60)
    os.close(descriptor)
    assert ready
