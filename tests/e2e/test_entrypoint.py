"""The entrypoint as a process: real workers, real signals, no torch and no jax."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from trcomp import contract as contracts
from trcomp import flags
from trcomp.contract import Contract, Settings
from trcomp.entrypoint.processes import descendants
from trcomp.env.topology import Topology

pytestmark = pytest.mark.e2e


@dataclass
class HostRun:
    """One host of a job: its tree, its environment, its process."""

    root: Path
    environ: dict[str, str]

    @property
    def failure(self) -> str:
        path = self.root / "output/failure"
        return path.read_text() if path.exists() else ""

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def start(self, *prefix: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "trcomp.entrypoint"],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, *prefix: str) -> tuple[int, list[str]]:
        """Exit code and lines of a run to its end."""
        with self.start(*prefix) as process:
            out, _ = process.communicate(timeout=60)
        return process.returncode, out.decode(errors="replace").splitlines()


class Make:
    """Makes hosts whose script is the given text."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(
        self,
        script: str,
        *,
        devices: int = 2,
        hosts: tuple[str, ...] = ("algo-1",),
        host: str = "algo-1",
        program: str = "train.py",
        enabled: bool | None = True,
        environ: dict[str, str] | None = None,
        **hyperparameters: object,
    ) -> HostRun:
        root = self.directory / host
        contract = Contract(
            job_name="job-1",
            hosts=hosts,
            current_host=host,
            hyperparameters=hyperparameters,
            settings=Settings(program=program, compiler_enabled=enabled),
            instance_type="local_process",
        )
        contracts.write(root, contract)
        (root / "code/train.py").write_text(textwrap.dedent(script))
        base = {
            "PATH": os.environ["PATH"],
            "SAGEMAKER_BASE_DIR": str(root),
            "GPU_NUM_DEVICES": str(devices),
            "JAX_PLATFORMS": "cpu",
            flags.LOG_DIR.name: str(root / "logs"),
            flags.GRACE_SECONDS.name: "20",
        }
        return HostRun(root, base | (environ or {}))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    before = descendants(os.getpid())
    yield Make(tmp_path)
    assert descendants(os.getpid()) <= before, "a process outlived its job"


def lines_until(process: subprocess.Popen[bytes], word: str, count: int) -> list[str]:
    """Read lines until the word was in so many of them."""
    assert process.stdout is not None
    lines: list[str] = []
    while sum(word in line for line in lines) < count:
        line = process.stdout.readline()
        assert line, f"ended before {word!r}: {lines}"
        lines.append(line.decode())
    return lines


def test_one_worker_per_device_runs_the_script_as_main(make: Make) -> None:
    host = make(
        """
        import json, os, sys
        print(json.dumps([__name__, sys.argv[1:], os.environ["RANK"], os.environ["WORLD_SIZE"],
              os.environ["SM_CURRENT_HOST"], os.environ["SM_HP_LR"], os.getcwd(), sys.path[0]]))
        """,
        lr=0.1,
        name="two words",
        none=None,
    )
    code, lines = host.run()
    assert code == 0
    where = str(host.root / "code")
    for rank in ("0", "1"):
        [line] = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        name, argv, found, world, current, lr, cwd, path = json.loads(line.partition("] ")[2])
        assert (name, found, world, current) == ("__main__", rank, "2", "algo-1")
        assert argv == ["--lr", "0.1", "--name", "two words"]
        assert (lr, cwd, path) == ("0.1", where, where)
        assert (host.logs / f"rank-{rank}.log").read_text() == line.partition("] ")[2] + "\n"
    assert (host.logs / "started").exists()
    assert not host.failure


def test_without_a_compiler_config_the_script_runs_once(make: Make) -> None:
    host = make(
        """
        import os
        from trcomp import flags
        print("rank" if "RANK" in os.environ else "no rank", flags.TOPOLOGY.get())
        """,
        enabled=None,
    )
    code, lines = host.run()
    assert code == 0
    [line] = [line for line in lines if "no rank" in line]
    assert line.startswith("no rank")
    topology = Topology.from_json(line.removeprefix("no rank "))
    assert (topology.world_size, topology.device_kind) == (2, "cpu")


@pytest.mark.parametrize(("enabled", "seen"), [(True, "True"), (False, "False")])
def test_workers_know_whether_to_use_xla(make: Make, enabled: bool, seen: str) -> None:
    script = "from trcomp import flags; print(flags.WORKER.get(), flags.ENABLED.get())"
    code, lines = make(script, enabled=enabled).run()
    assert code == 0
    assert sorted(line for line in lines if line.startswith("[rank")) == [
        f"[rank 0] True {seen}",
        f"[rank 1] True {seen}",
    ]


@pytest.mark.parametrize(
    ("ending", "code", "first_line"),
    [
        ("raise ValueError('bad')", 1, "ValueError: bad"),
        ("import sys; sys.exit(3)", 3, "SystemExit: 3"),
        ("import sys; sys.exit('no data')", 1, "SystemExit: no data"),
        ("import os; os._exit(7)", 7, "The script ended with exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", 137, "The script was killed by SIGKILL"),
        ("import os; os.abort()", 134, "The script was killed by SIGABRT"),
        ("def broken(:", 1, "SyntaxError: invalid syntax"),
    ],
)
def test_exit_codes_and_failure_file(make: Make, ending: str, code: int, first_line: str) -> None:
    host = make(ending, devices=1)
    found, lines = host.run()
    assert found == code
    head, who, *_ = host.failure.splitlines()
    assert head.startswith(first_line)
    assert who == f"rank 0 on host algo-1, exit code {code}"
    assert lines[-1].startswith("[trcomp] Failed first: rank 0")


@pytest.mark.slow
def test_ranks_may_end_right_after_a_collective_on_the_host(make: Make) -> None:
    host = make(
        """
        import sys
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        sys.setswitchinterval(10)
        for _ in range(5):
            dist.all_reduce(torch.ones(3))
        """,
        enabled=False,
    )
    for _ in range(3):
        code, lines = host.run()
        assert code == 0, lines


def test_the_failure_file_and_the_log_hold_the_users_own_traceback(make: Make) -> None:
    host = make(
        """
        def step():
            raise RuntimeError("step broke")

        print("before")
        step()
        """,
        devices=1,
    )
    code, lines = host.run()
    assert code == 1
    script = host.root / "code/train.py"
    trace = [
        "Traceback (most recent call last):",
        f'  File "{script}", line 6, in <module>',
        "    step()",
        f'  File "{script}", line 3, in step',
        '    raise RuntimeError("step broke")',
        "RuntimeError: step broke",
    ]
    assert host.failure.splitlines()[3:] == trace
    assert [line.removeprefix("[rank 0] ") for line in lines if "[rank" in line][1:] == trace


def test_what_a_forked_child_raises_is_not_why_the_worker_fails(make: Make) -> None:
    host = make(
        """
        import os

        if not (child := os.fork()):
            raise ValueError("of the child alone")
        os.waitpid(child, 0)
        raise KeyError("of the worker")
        """,
        devices=1,
    )
    assert host.run()[0] == 1
    assert host.failure.startswith("KeyError: 'of the worker'")


def test_what_the_script_wrote_as_its_failure_is_kept(make: Make) -> None:
    host = make(
        """
        import os, sys
        open(os.path.join(os.environ["SM_OUTPUT_DIR"], "failure"), "w").write("my own words")
        sys.exit(2)
        """,
        devices=1,
    )
    assert host.run()[0] == 2
    assert host.failure == "my own words"


def test_the_earliest_failure_is_blamed_even_if_it_ends_last(make: Make) -> None:
    host = make(
        """
        import atexit, os, pathlib, time
        mark = pathlib.Path("rank-1-raised")
        if os.environ["RANK"] == "1":
            def late():
                # Its end comes after the other rank's, whose error is only a consequence.
                mark.touch()
                while not pathlib.Path("rank-0-raised").exists():
                    time.sleep(0.01)
                time.sleep(0.3)
            atexit.register(late)
            raise ValueError("the cause")
        while not mark.exists():
            time.sleep(0.01)
        pathlib.Path("rank-0-raised").touch()
        raise RuntimeError("lost my peer")
        """
    )
    code, _ = host.run()
    assert code == 1
    assert host.failure.splitlines()[:2] == [
        "ValueError: the cause",
        "rank 1 on host algo-1, exit code 1",
    ]


def test_the_first_failure_stops_the_rest(make: Make) -> None:
    host = make(
        """
        import os, pathlib, signal, sys, time
        if os.environ["RANK"] == "1":
            while not pathlib.Path("ready").exists():
                time.sleep(0.01)
            sys.exit(5)

        def stop(number, frame):
            print("told to stop")
            sys.exit(0)

        signal.signal(signal.SIGTERM, stop)
        pathlib.Path("ready").touch()
        while True:
            signal.pause()
        """
    )
    code, lines = host.run()
    assert code == 5
    assert "[rank 0] told to stop" in lines
    assert host.failure.startswith("SystemExit: 5\nrank 1 on host algo-1, exit code 5\n")


def test_a_rank_that_ends_early_leaves_the_rest_alone(make: Make) -> None:
    host = make(
        """
        import os, time
        if os.environ["RANK"] == "0":
            time.sleep(0.5)
        print("done")
        """
    )
    code, lines = host.run()
    assert code == 0
    assert {"[rank 0] done", "[rank 1] done"} <= set(lines)


GRANDCHILD = """
import pathlib, subprocess, sys
# Its parent is gone at once, and its session is its own: only a reaper can still find it.
daemon = '''
import os, pathlib, time
os.fork() and os._exit(0)
os.setsid()
name = f"daemon-{os.environ['RANK']}.pid"
pathlib.Path(f"{name}.draft").write_text(str(os.getpid()))
os.rename(f"{name}.draft", name)
time.sleep(600)
'''
subprocess.run([sys.executable, "-c", daemon])
import os
while not pathlib.Path(f"daemon-{os.environ['RANK']}.pid").exists():
    pass
print("ready")
"""


@pytest.mark.parametrize("ending", ["pass", "sys.exit(4)", "import time; time.sleep(600)"])
def test_no_grandchild_survives(make: Make, ending: str) -> None:
    host = make(GRANDCHILD + ending, devices=1)
    with host.start() as process:
        lines_until(process, "ready", 1)
        if "sleep" in ending:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == {"pass": 0, "sys.exit(4)": 4}.get(ending, 143)
    daemon = int((host.root / "code/daemon-0.pid").read_text())
    assert not Path(f"/proc/{daemon}").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_reaches_every_worker_and_is_no_failure(
    make: Make, number: signal.Signals, code: int
) -> None:
    host = make(
        """
        import signal, sys
        def stop(number, frame):
            print("saved a checkpoint")
            sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        print("ready")
        while True:
            signal.pause()
        """
    )
    with host.start() as process:
        lines_until(process, "ready", 2)
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == code
    assert out.count(b"saved a checkpoint") == 2
    assert not host.failure


def test_what_does_not_stop_is_killed_after_the_grace(make: Make) -> None:
    host = make(
        """
        import signal
        signal.signal(signal.SIGTERM, lambda *_: print("not yet"))
        print("ready")
        while True:
            signal.pause()
        """,
        environ={flags.GRACE_SECONDS.name: "1"},
    )
    with host.start() as process:
        lines_until(process, "ready", 2)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 143


def test_a_second_signal_ends_the_grace(make: Make) -> None:
    host = make(
        """
        import signal
        signal.signal(signal.SIGTERM, lambda *_: print("not yet"))
        print("ready")
        while True:
            signal.pause()
        """,
        environ={flags.GRACE_SECONDS.name: "600"},
    )
    with host.start() as process:
        lines_until(process, "ready", 2)
        process.send_signal(signal.SIGTERM)
        lines_until(process, "not yet", 2)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 143


def test_workers_do_not_outlive_a_killed_entrypoint(make: Make) -> None:
    host = make("import os, signal; print('pid', os.getpid()); signal.pause()", devices=1)
    with host.start() as process:
        pid = int(lines_until(process, "pid", 1)[-1].split()[-1])
        worker = os.pidfd_open(pid)
        process.kill()
        # A process's descriptor becomes readable when it ends.
        assert select.select([worker], [], [], 30)[0]
    os.close(worker)


def test_output_is_byte_exact(make: Make) -> None:
    host = make(
        r"""
        import os
        for part in (b"  indented\n", b"\xff\xfe\n", "half-\u00e4".encode()[:-1], b"\xa4 whole\n",
                     b"10%\r20%\r100%\n", b"no end"):
            os.write(1, part)
        """,
        devices=1,
    )
    with host.start() as process:
        out, _ = process.communicate(timeout=30)
    expected = b"  indented\n" + b"\xff\xfe\n" + "half-ä whole\n".encode()
    expected += b"10%\r20%\r100%\nno end"
    assert (host.logs / "rank-0.log").read_bytes() == expected
    assert b"[rank 0]   indented\n[rank 0] \xff\xfe\n" in out
    assert out.endswith(b"[rank 0] 100%\n[rank 0] no end")


def test_much_output_loses_no_line(make: Make) -> None:
    script = "import os\nfor n in range(20000): print(os.environ['RANK'], n)"
    code, lines = make(script).run()
    assert code == 0
    for rank in ("0", "1"):
        found = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        assert found == [f"[rank {rank}] {rank} {n}" for n in range(20000)]


def test_hosts_agree_on_their_ranks(make: Make) -> None:
    names = ("algo-1", "algo-10", "algo-2")
    pairs = ",".join(f"{name}=127.8.8.{n}" for n, name in enumerate(names, 1))
    script = """
        import os
        print(os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"])
    """
    runs = [
        make(script, hosts=names, host=name, environ={flags.HOST_ADDRESSES.name: pairs})
        for name in names
    ]
    processes = [run.start() for run in runs]
    outputs = [process.communicate(timeout=60)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    found = [line for out in outputs for line in sorted(out.splitlines()) if "[rank" in line]
    assert found == [f"[rank {n}] {n} 6 127.8.8.1" for n in range(6)]


@pytest.mark.runtime
def test_ranks_meet_although_a_proxy_is_set(make: Make) -> None:
    nowhere = "http://127.0.0.1:9"
    host = make(
        """
        import os
        import jax
        from trcomp import flags
        from trcomp.env.variables import identity
        me = identity(os.environ)
        where = flags.COORDINATOR.get()
        jax.distributed.initialize(where, me.world_size, me.rank, initialization_timeout=20)
        print("met", jax.process_count(), os.environ["https_proxy"])
        """,
        environ={name: nowhere for name in ("http_proxy", "https_proxy", "grpc_proxy")}
        | {flags.HOST_ADDRESSES.name: "algo-1=127.7.7.1"},
    )
    code, lines = host.run()
    assert code == 0, lines
    assert {f"[rank {rank}] met 2 {nowhere}" for rank in (0, 1)} <= set(lines)


def test_spawned_children_of_the_script_find_its_functions(make: Make) -> None:
    host = make(
        """
        import multiprocessing

        def double(x):
            return 2 * x

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
        """,
        devices=1,
    )
    code, lines = host.run()
    assert (code, lines[-1]) == (0, "[rank 0] [2, 4]")


def test_what_outlives_the_last_line_still_finds_main(make: Make) -> None:
    host = make(
        """
        import atexit, sys
        word = "found"
        atexit.register(lambda: print(sys.modules["__main__"].word))
        """,
        devices=1,
    )
    assert host.run()[1][-1] == "[rank 0] found"


def wheel(directory: Path) -> Path:
    """A package of one module, as a file: installing it needs no index."""
    path = directory / "answer-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("answer.py", "VALUE = 42\n")
        info = "answer-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: answer\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_requirements_are_installed_before_workers_start(make: Make, tmp_path: Path) -> None:
    target = tmp_path / "packages"
    host = make(
        "import answer; print(answer.VALUE)",
        environ={"PIP_TARGET": str(target), "PIP_NO_INDEX": "1", "PYTHONPATH": str(target)},
    )
    name = wheel(host.root / "code").name
    (host.root / "code/requirements.txt").write_text(f"# what we need\n./{name}\n")
    (host.root / "code/logging.py").write_text("raise ImportError('not for pip')\n")
    code, lines = host.run()
    assert code == 0
    assert {"[rank 0] 42", "[rank 1] 42"} <= set(lines)
    assert sum("Successfully installed" in line for line in lines) == 1


def test_a_failed_installation_is_told_and_starts_nothing(make: Make) -> None:
    host = make("print('started')", environ={"PIP_NO_INDEX": "1"})
    (host.root / "code/requirements.txt").write_text("no-such-package-anywhere\n")
    code, lines = host.run()
    assert code == 1
    assert "[rank" not in "".join(lines)
    assert host.failure.startswith("pip, installing requirements.txt, ended with exit code 1\n")
    assert "no-such-package-anywhere" in host.failure
    assert not (host.logs / "started").exists()


@pytest.mark.parametrize(
    ("program", "says"),
    [("other.py", "there is: train.py"), ("train.sh", "a Python script (.py)")],
)
def test_an_entry_point_that_cannot_run_is_a_wrong_spec(
    make: Make, program: str, says: str
) -> None:
    host = make("", program=program)
    code, lines = host.run()
    assert code == 64
    assert says in "\n".join(lines)
    assert host.failure.startswith("SpecError: ")


def test_a_broken_contract_is_told(make: Make) -> None:
    host = make("")
    (host.root / "input/config/resourceconfig.json").unlink()
    code, lines = host.run()
    assert code == 78
    assert "resourceconfig.json: the file is missing" in "\n".join(lines)
    assert host.failure.startswith("ContractError: ")


@pytest.mark.parametrize("place", ["output", "output/data", "model"])
def test_a_place_that_cannot_be_written_is_told_without_a_traceback(make: Make, place: str) -> None:
    host = make("print('never')")
    path = host.root / place
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("in the way")
    code, lines = host.run()
    text = "\n".join(lines)
    assert code == 69
    assert "A place that the job needs cannot be written: [Errno " in text and str(path) in text
    assert "Traceback" not in text and "never" not in text


def test_a_wrong_number_of_devices_is_told(make: Make) -> None:
    code, lines = make("", environ={"GPU_NUM_DEVICES": "two"}).run()
    assert code == 64
    assert "GPU_NUM_DEVICES: got 'two'" in "\n".join(lines)


def test_secrets_are_not_printed(make: Make) -> None:
    _, lines = make("", environ={"API_TOKEN": "hush-hush"}, password="hush-hush").run()
    assert "hush-hush" not in "\n".join(lines)


def test_as_process_1_of_a_container(make: Make) -> None:
    unshare = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine does not allow process namespaces")
    host = make(GRANDCHILD + "print('parent is', os.getppid())", devices=2)
    code, lines = host.run(*unshare)
    assert code == 0
    assert "[rank 1] parent is 1" in lines


def test_the_entrypoint_opens_no_gpu_and_calls_no_cloud() -> None:
    heavy = "{'torch', 'jax', 'numpy', 'boto3', 'pydantic'}"
    code = f"import sys, trcomp.entrypoint.__main__; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


_FAILS_TWICE = """
    import os, pathlib, sys
    count = os.environ["TORCHELASTIC_RESTART_COUNT"]
    print("start", count, os.environ["TORCHELASTIC_MAX_RESTARTS"], os.environ["MASTER_PORT"])
    if int(count) < 2 and os.environ["RANK"] == "1":
        raise ValueError(f"bad {count}")
"""


def test_workers_start_anew_as_often_as_allowed(make: Make) -> None:
    host = make(_FAILS_TWICE, environ={flags.MAX_RESTARTS.name: "3", flags.GRACE_SECONDS.name: "1"})
    code, lines = host.run()
    assert code == 0 and host.failure == ""
    first = [line for line in lines if line.startswith("[rank 1] start")]
    assert [line.split()[3:5] for line in first] == [["0", "3"], ["1", "3"], ["2", "3"]]
    # Workers of another host may still be at the last place.
    assert len({line.split()[-1] for line in first}) == 3
    assert "[trcomp] Restart 2 of 3: the workers start anew." in lines
    told = [line for line in lines if "Failed first" in line]
    assert [line.rpartition(" ")[2] for line in told] == ["0", "1"]
    # A rank's own log has the lines of every attempt.
    kept = (host.logs / "rank-1.log").read_text().splitlines()
    assert sum(line.startswith("start") for line in kept) == 3


def test_the_last_failure_is_the_jobs_own(make: Make) -> None:
    host = make(_FAILS_TWICE, environ={flags.MAX_RESTARTS.name: "1", flags.GRACE_SECONDS.name: "1"})
    code, lines = host.run()
    assert code == 1
    assert host.failure.startswith("ValueError: bad 1\nrank 1 on host algo-1")
    assert sum("Restart" in line for line in lines) == 1


def test_a_stopped_job_does_not_start_anew(make: Make) -> None:
    host = make(
        'print("up", flush=True)\nimport time\ntime.sleep(60)',
        environ={flags.MAX_RESTARTS.name: "3"},
    )
    with host.start() as process:
        lines_until(process, "up", 2)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert b"Restart" not in out
