"""Jobs in containers, from submit to what they leave; the scripts need no framework."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.docker.conftest import missing
from tests.docker.jobs import Place, until
from trcomp import Job, JobFailedError, JobStatus, JobStoppedError
from trcomp.cli import main
from trcomp.errors import JobNotFoundError

SLEEPER = """
    import os, signal, sys, time
    if "--deaf" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    time.sleep(600)
"""


def kill_runner(place: Place, *, with_children: bool) -> None:
    """Kill what runs the job, or also what stands for its containers, and wait for their end."""
    record = json.loads((place.root / "home/jobs/job/job.json").read_text())
    runner = record["runner_pid"]
    children = Path(f"/proc/{runner}/task/{runner}/children").read_text().split()
    pids = [runner, *map(int, children if with_children else [])]
    descriptors = [os.pidfd_open(pid) for pid in pids]
    for descriptor in descriptors:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    for descriptor in descriptors:
        select.select([descriptor], [], [])
        os.close(descriptor)


def test_a_job_from_words_to_results(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    script = """
        import json, os, pathlib, sys
        print("args", json.dumps(sys.argv[1:]), os.environ["MINE"], os.environ["SM_CURRENT_HOST"])
        data = pathlib.Path("/opt/ml/input/data")
        print((data / "tree/deep/x.txt").read_text(), os.listdir(data / "one"))
        for file in (data / "tree/new", data / "one/a.csv", "/mine/new"):
            try:
                open(file, "w")
            except OSError as error:
                print("read-only:", error.errno)
        pathlib.Path(os.environ["HOME"], "x").write_text("")
        os.makedirs("/opt/ml/checkpoints/a", exist_ok=True)
        pathlib.Path("/opt/ml/checkpoints/a/step").write_text("1")
        pathlib.Path(os.environ["SM_MODEL_DIR"], "weights").write_text("w")
        pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "note").write_text("n")
        print(os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize >> 20, "MiB")
    """
    tree, one, kept = place.root / "tree", place.root / "a.csv", place.root / "kept"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "x.txt").write_text("the data")
    one.write_text("1")
    estimator = place.estimator(
        script,
        hyperparameters={"z": 1, "name": "a 'b' $d"},
        environment={"MINE": "mine"},
        mounts={str(tree): "/mine:ro"},
        shm_size="96m",
        checkpoint_s3_uri=kept,
        output_path=place.root / "out",
    )
    estimator.fit({"tree": tree, "one": one}, job_name="whole")
    shown = capsys.readouterr().out
    for text in (
        """args ["--z", "1", "--name", "a 'b' $d"] mine algo-1""",
        "the data ['a.csv']",
        "96 MiB",
        "docker://whole",
    ):
        assert text in shown
    assert shown.count("read-only: 30") == 3
    with tarfile.open(place.root / "out/whole/output/model.tar.gz") as archive:
        assert archive.getnames() == ["weights"]
    step = kept / "a" / "step"
    assert step.read_text() == "1"
    assert (step.stat().st_uid, step.stat().st_gid) == (os.getuid(), os.getgid())
    job = Job("docker://whole")
    assert place.containers(job) == place.networks(job) == []
    assert sorted(os.listdir(tree)) == ["deep"]
    job.remove()
    assert not (place.root / "home/jobs/whole").exists()
    assert step.exists()


def test_no_line_is_lost_or_torn(place: Place) -> None:
    script = """
        import os, sys, threading
        os.write(1, b"\\xff\\xfe no text\\n")
        def write(stream, word):
            for number in range(2000):
                print(word, number, word * (number % 7 * 900), file=stream)
        threads = [threading.Thread(target=write, args=pair)
                   for pair in ((sys.stdout, "out"), (sys.stderr, "err"))]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        sys.stdout.flush()
        os.write(1, b"the last, unfinished")
    """
    # The script is process 1: what it prints reaches the engine as it comes, on two streams.
    entry = ["python3", "/opt/ml/code/train.py"]
    job = place.started(script, container_entry_point=entry)
    job.wait(timeout=120)
    lines = list(job.logs())
    assert "�� no text" in lines
    for word in ("out", "err"):
        found = [line for line in lines if line.startswith(word)]
        assert found == [f"{word} {n} {word * (n % 7 * 900)}" for n in range(2000)]
    assert "the last, unfinished" in lines
    assert len(lines) == 4002


def test_a_failure_is_described_to_any_process(place: Place) -> None:
    script = """
        import os, sys
        if os.environ["RANK"] == "1":
            raise ValueError("wrong")
        import time; time.sleep(600)
    """
    job = place.started(script, instance_count=2)
    with pytest.raises(JobFailedError) as caught:
        job.wait(timeout=120)
    assert (caught.value.host, caught.value.rank, caught.value.exit_code) == ("algo-2", 1, 1)
    assert 'raise ValueError("wrong")' in caught.value.traceback
    status = [sys.executable, "-m", "trcomp", "status", "docker://job", "--json"]
    found = json.loads(subprocess.run(status, capture_output=True, check=False).stdout)
    assert found["status"] == "Failed"
    assert found["failure"]["message"] == "ValueError: wrong"
    assert place.containers(job) == place.networks(job) == []


@pytest.mark.parametrize("code", [3, 200])
def test_the_scripts_own_exit_code_is_kept(place: Place, code: int) -> None:
    with pytest.raises(JobFailedError) as caught:
        place.started(f"raise SystemExit({code})").wait(timeout=120)
    assert caught.value.exit_code == code


def test_a_job_is_stopped_and_a_second_stop_kills(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    gentle = place.started(SLEEPER, "gentle")
    monkeypatch.setenv("TRCOMP_GRACE_SECONDS", "300")
    deaf = place.started(SLEEPER, "deaf", hyperparameters={"deaf": "1"})
    for job in (gentle, deaf):
        until(job, "ready")
        job.stop()
    with pytest.raises(JobStoppedError):
        gentle.wait(timeout=60)
    assert any("Stopped by SIGTERM" in line for line in gentle.logs())
    assert deaf.status() is JobStatus.STOPPING
    deaf.stop()
    with pytest.raises(JobStoppedError):
        deaf.wait(timeout=60)
    for job in (gentle, deaf):
        assert place.containers(job) == place.networks(job) == []


def test_a_stopped_job_goes_on_from_its_checkpoint(place: Place) -> None:
    script = """
        import pathlib, signal, sys, time
        file = pathlib.Path("/opt/ml/checkpoints/step")
        step = int(file.read_text()) if file.exists() else 0
        def save(number, frame):
            file.write_text(str(step))
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("from", step, flush=True)
        while step < 12:
            step += 1
            if step == 7:
                print("at 7", flush=True)
                time.sleep(600)
    """
    words = {"checkpoint_s3_uri": place.root / "kept"}
    first = place.started(script, "first", **words)
    until(first, "at 7")
    first.stop()
    with pytest.raises(JobStoppedError):
        first.wait(timeout=60)
    second = place.started(script, "second", **words)
    assert second.wait(timeout=60) == "Completed"
    assert any("from 7" in line for line in second.logs())


def test_memory_that_runs_out_is_named(place: Place) -> None:
    script = "held = bytearray(400 << 20)"
    with pytest.raises(JobFailedError) as caught:
        place.started(script, memory="100m").wait(timeout=120)
    assert caught.value.exit_code == 137
    assert "Out of memory" in str(caught.value)
    assert "memory='100m'" in str(caught.value)


def test_a_child_that_is_killed_for_memory_fails_the_job(place: Place) -> None:
    eater = "python3 -c 'held = bytearray(400 << 20)'; echo went on; exit 0"
    job = place.started(
        "", memory="100m", container_entry_point=["sh", "-c"], container_arguments=[eater]
    )
    with pytest.raises(JobFailedError, match="Out of memory") as caught:
        job.wait(timeout=120)
    assert caught.value.exit_code == 137
    assert "went on" in list(job.logs())


def test_a_container_that_is_killed_is_blamed_and_the_others_end(place: Place) -> None:
    job = place.started(SLEEPER, instance_count=2)
    until(job, "ready", 2)
    place.containers(job)[1].kill()
    with pytest.raises(JobFailedError) as caught:
        job.wait(timeout=60)
    assert (caught.value.host, caught.value.exit_code) == ("algo-2", 137)
    assert place.containers(job) == place.networks(job) == []


def test_a_container_that_is_removed_is_named(place: Place) -> None:
    job = place.started(SLEEPER)
    until(job, "ready")
    (container,) = place.containers(job)
    container.remove(force=True)
    with pytest.raises(JobFailedError, match="container of algo-1 was removed"):
        job.wait(timeout=60)
    assert place.networks(job) == []


@pytest.mark.parametrize("all_of_them", [False, True])
def test_who_asks_ends_what_a_killed_runner_left(place: Place, all_of_them: bool) -> None:
    job = place.started(SLEEPER)
    until(job, "ready")
    kill_runner(place, with_children=all_of_them)
    record = place.root / "home/jobs/job/job.json"
    with pytest.raises(JobFailedError, match="runner died"):
        job.wait(timeout=60)
    assert json.loads(record.read_text())["transitions"][-1]["status"] == "Failed"
    assert place.containers(job) == place.networks(job) == []
    assert any("ready" in line for line in job.logs())
    if not all_of_them:
        assert any("Stopped by SIGTERM" in line for line in job.logs())
    assert main(["remove", "docker://job"]) == 0


def test_without_an_engine_jobs_can_still_be_listed(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = place.started(SLEEPER)
    until(job, "ready")
    kill_runner(place, with_children=True)
    with monkeypatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{place.root}/none.sock")
        assert main(["list"]) == 0
        assert "docker://job" in capsys.readouterr().out
        assert main(["status", "docker://job"]) == 69
        assert "No container engine answers" in capsys.readouterr().err
    assert job.status() is JobStatus.FAILED


def test_jobs_of_one_name_in_two_places_do_not_meet(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = place.started(SLEEPER)
    until(first, "ready")
    monkeypatch.setenv("TRCOMP_HOME", str(place.root / "other"))
    second = place.estimator("print('second')")
    second.fit(job_name="job", logs="None")
    monkeypatch.setenv("TRCOMP_HOME", str(place.root / "home"))
    assert first.status() is JobStatus.TRAINING
    assert len(place.containers(first)) == 1


def test_a_name_is_one_jobs_whatever_runs_it(place: Place) -> None:
    place.started("print('x')").wait(timeout=120)
    with pytest.raises(JobNotFoundError, match="there is docker://job"):
        Job("process://job").status()
    with pytest.raises(ValueError, match="trcomp remove docker://job"):
        place.estimator("", instance_type="local_process").fit(job_name="job")
    assert main(["list", "--backend", "docker"]) == 0


def test_without_an_engine_nothing_is_written(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{place.root}/none.sock")
    script = place.root / "train.py"
    script.write_text("")
    assert main(["run", str(script), "--instance-type", "local", "--detach"]) == 69
    error = capsys.readouterr().err
    assert "No container engine answers" in error
    assert "local_process" in error
    assert not (place.root / "home").exists()


def test_what_is_passed_on_reaches_the_script_and_no_file(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s3cr3t-value"
    monkeypatch.setenv("AWS_SESSION_TOKEN", secret)
    monkeypatch.setenv("OTHER", secret)
    script = """
        import os
        print(len(os.environ["AWS_SESSION_TOKEN"]), "OTHER" in os.environ)
    """
    estimator = place.estimator(script, pass_environment=["AWS_*"])
    assert secret not in str(estimator.plan(job_name="job"))
    job = place.started(script, pass_environment=["AWS_*"])
    job.wait(timeout=120)
    assert any(f"{len(secret)} False" in line for line in job.logs())
    files = [path for path in (place.root / "home").rglob("*") if path.is_file()]
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


def test_hosts_of_an_isolated_job_find_each_other(place: Place) -> None:
    script = """
        import os, socket, time
        other = {"algo-1": "algo-2", "algo-2": "algo-1"}[os.environ["SM_CURRENT_HOST"]]
        print("found", socket.gethostbyname(other) != "127.0.0.1", flush=True)
        time.sleep(600)
    """
    job = place.started(script, instance_count=2, enable_network_isolation=True)
    until(job, "found True", 2)
    (network,) = place.networks(job)
    assert network.attrs["Internal"]


def test_a_job_on_other_networks(place: Place) -> None:
    script = """
        import os, socket, sys
        print("found", socket.gethostbyname("algo-1"))
        print("networks", len(socket.if_nameindex()))
    """
    other = place.client.networks.create(f"trcomp-test-{os.getpid()}")
    try:
        joined = place.started(script, "joined", network=other.name)
        joined.wait(timeout=120)
    finally:
        other.remove()
    # Its own, the other and the loopback.
    assert any("networks 3" in line for line in joined.logs())
    alone = place.started(script, "alone", network="host")
    alone.wait(timeout=120)
    assert any("found 127.0.0.1" in line for line in alone.logs())


def test_a_full_disk_is_named_and_the_job_has_failed(place: Place) -> None:
    home = place.root / "home"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(home)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        missing("A small disk cannot be mounted here: a full one was not tested.")
    script = """
        import os
        with open(os.path.join(os.environ["SM_MODEL_DIR"], "big"), "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    """
    try:
        job = place.started(script)
        with pytest.raises(JobFailedError, match="No space left on device"):
            job.wait(timeout=120)
        record = json.loads((home / "jobs/job/job.json").read_text())
        assert record["transitions"][-1]["status"] == "Failed"
        assert place.containers(job) == place.networks(job) == []
        job.remove()
    finally:
        subprocess.run(["umount", "--lazy", str(home)], check=True)
