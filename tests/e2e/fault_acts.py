"""What brings each fault of the matrix about: from outside, around the job, in its script."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

from tests.e2e.fault_scene import (
    Row,
    Scene,
    entrypoints,
    fill,
    job_processes,
    small_disk,
    whole_host,
    workers,
)
from trcomp import Estimator, Job, TrainingCompilerConfig, flags
from trcomp.backends import process
from trcomp.backends.process_plan import host_addresses
from trcomp.env.topology import Topology

XLA = {"compiler_config": TrainingCompilerConfig()}


def in_rank(rank: int, lines: str) -> str:
    """What one rank does while the other waits."""
    body = "\n".join(f"    {line}" for line in ["fault_comes()", *lines.splitlines()])
    return f'if rank == "{rank}":\n{body}\ntime.sleep(600)'


def kill_worker(scene: Scene, job: Job) -> None:
    os.kill(workers(job)["1"], signal.SIGKILL)


def kill_entrypoint(scene: Scene, job: Job) -> None:
    os.kill(entrypoints(job)["algo-1"], signal.SIGKILL)


def kill_host(scene: Scene, job: Job) -> None:
    for pid in whole_host(job, "algo-2"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


REDUCES = """
    import torch
    import trcomp.runtime as rt

    total = torch.ones(2, device=rt.device())
    for step in range(10_000):
        total = rt.all_reduce("sum", total) / rt.world_size()
        total.tolist()
        time.sleep(0.05)
        if step == 20:
            print("trains", flush=True)
"""


ADDS_UP = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for step in range(10_000):
        dist.all_reduce(torch.ones(2))
        time.sleep(0.05)
        if step == 20:
            print("trains", flush=True)
"""


def silence_host(scene: Scene, job: Job) -> None:
    """As if it had lost its power or its network: no connection is closed."""
    _until_it_trains(job)
    scene.fault_time.write_text(str(time.monotonic()))
    for pid in whole_host(job, "algo-2"):
        os.kill(pid, signal.SIGSTOP)


def kill_runner(scene: Scene, job: Job) -> None:
    pid = job.record().runner_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def stop(scene: Scene, job: Job) -> None:
    job.stop()


def saved_once(scene: Scene, job: Job) -> str:
    [file] = scene.checkpoints.glob("step-*.pt")
    return f"`{file.name}`"


SAVES = """
    import torch
    import torch.distributed as dist
    from trcomp.checkpoint import Checkpointer

    model = torch.nn.Linear(4, 4)
    checkpointer = Checkpointer(os.environ["CHECKPOINTS"], every={every}, model=model)
    print("resumed", checkpointer.resume(), flush=True)
    while True:
        time.sleep(0.02)
        checkpointer.step()
        if checkpointer.steps == 3:
            print("trains", flush=True)
"""


def stop_in_training(scene: Scene, job: Job) -> None:
    _until_it_trains(job)
    job.stop()


def _until_it_trains(job: Job) -> None:
    for line in job.logs(follow=True):
        if "trains" in line:
            break


STEPS = """
    import signal
    import torch
    import trcomp.runtime as rt

    for step in range(1000):
        rt.sync()
        time.sleep(0.05)
        if step == 40 and rank == "1":
            fault_comes()
            os.kill(os.getpid(), signal.SIGSTOP)
"""

FILLS_TEMPORARY = """
    import contextlib, tempfile
    import torch
    import trcomp.runtime as rt

    for step in range(160):
        rt.sync()
        time.sleep(0.05)
        if step == 20 and rank == "0":
            fault_comes()
            filler = tempfile.TemporaryFile(buffering=0)
            with contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(4096))
            {then}
"""

FILLS = """
    place = os.environ["{variable}"]
    if rank == "1":
        fault_comes()
        with open(os.path.join(place, "large"), "wb") as stream:
            while True:
                stream.write(bytes(1 << 16))
    time.sleep(600)
"""


@contextlib.contextmanager
def small_home(scene: Scene) -> Iterator[None]:
    scene.places_lost |= {"output"}
    with small_disk(scene.place / "home", 8 << 20):
        yield


@contextlib.contextmanager
def small_results(scene: Scene) -> Iterator[None]:
    scene.places_lost |= {"output"}
    with small_disk(scene.place / "results", 64 << 10):
        fill(scene.place / "results")
        scene.words["output_path"] = scene.place / "results"
        yield


@contextlib.contextmanager
def small_cache(scene: Scene) -> Iterator[None]:
    with small_disk(scene.place / "cache", 64 << 10):
        fill(scene.place / "cache")
        scene.environment[flags.CACHE.name] = str(scene.place / "cache")
        yield


@contextlib.contextmanager
def small_temporary(scene: Scene) -> Iterator[None]:
    with small_disk(scene.place / "temporary", 1 << 20):
        scene.environment["TMPDIR"] = str(scene.place / "temporary")
        yield


@contextlib.contextmanager
def small_checkpoints(scene: Scene) -> Iterator[None]:
    with small_disk(scene.checkpoints, 160 << 10):
        yield


def one_is_whole(scene: Scene, job: Job) -> str:
    files = sorted(scene.checkpoints.glob("step-*.pt"))
    assert files and not list(scene.checkpoints.glob("*.part"))
    torch.load(files[-1], weights_only=True)
    return f"`{files[-1].name}`"


@contextlib.contextmanager
def broken_contract(scene: Scene) -> Iterator[None]:
    """What the host finds is cut off half way."""
    scene.places_lost |= {"log", "output", "checkpoint"}
    prepare = process.prepare

    def cut(plan: Any, *given: Any) -> None:
        prepare(plan, *given)
        for name in ("hyperparameters.json", "resourceconfig.json"):
            file = plan.hosts[0].root / "input/config" / name
            file.write_text(file.read_text()[:40])

    process.prepare = cut
    try:
        yield
    finally:
        process.prepare = prepare


@contextlib.contextmanager
def never_starts(scene: Scene) -> Iterator[None]:
    scene.places_lost |= {"log", "output", "checkpoint"}
    yield


def port(number: int) -> Any:
    @contextlib.contextmanager
    def taken(scene: Scene) -> Iterator[None]:
        """Somebody listens where the job's ranks would meet, and answers nothing."""
        address = host_addresses(scene.name, ["algo-1"])["algo-1"]
        with socket.create_server((address, number)):
            yield

    return taken


@contextlib.contextmanager
def jumping_clock(scene: Scene) -> Iterator[None]:
    """Every Python process of the job sees the hour change once the fault has come."""
    shim = scene.place / "shim"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(
        "import os, time\n"
        "_true = time.time\n"
        "_mark, _jump = os.environ['FAULT_TIME'], float(os.environ['CLOCK_JUMP'])\n"
        "time.time = lambda: _true() + (_jump if os.path.exists(_mark) else 0)\n"
    )
    before = os.environ.get("PYTHONPATH")
    own = {
        "PYTHONPATH": f"{shim}:{before}" if before else str(shim),
        "FAULT_TIME": str(scene.fault_time),
        "CLOCK_JUMP": os.environ.get("CLOCK_JUMP", "3600"),
    }
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            del os.environ[name]
        if before:
            os.environ["PYTHONPATH"] = before


@contextlib.contextmanager
def clock_back(scene: Scene) -> Iterator[None]:
    os.environ["CLOCK_JUMP"] = "-3600"
    with jumping_clock(scene):
        yield


TRAINS = """
    import torch
    import trcomp.runtime as rt

    model = torch.nn.Linear(4, 4).to(rt.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        model(torch.ones(2, 4).to(rt.device())).sum().backward()
        rt.optimizer_step(optimizer, barrier=True)
        if step == 2:
            fault_comes()
    print("loss", model(torch.ones(2, 4).to(rt.device())).sum().item())
"""


def beside(scene: Scene) -> Any:
    """Another job of the same script and ports at the same time."""

    @contextlib.contextmanager
    def another() -> Iterator[None]:
        estimator = Estimator(
            scene.code / "other.py",
            compiler_config=TrainingCompilerConfig(enabled=False),
            environment={"GPU_NUM_DEVICES": "2"},
        )
        estimator.fit(wait=False, job_name="other")
        other = estimator.latest_training_job
        assert other is not None
        try:
            yield
        finally:
            assert other.wait(timeout=120) == "Completed"
            assert job_processes("other") == []

    (scene.code / "other.py").write_text(MEETS)
    return another()


MEETS = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
"""


@contextlib.contextmanager
def stale_store(scene: Scene) -> Iterator[None]:
    """The store of an earlier job still answers, and says that all its ranks are there."""
    address = host_addresses(scene.name, ["algo-1"])["algo-1"]
    with socket.create_server((address, Topology.master_port)) as listener:
        descriptor = os.dup(listener.fileno())
        store = TCPStore(
            address,
            Topology.master_port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=descriptor,
        )
        yield
        del store


@contextlib.contextmanager
def corrupt_cache(scene: Scene) -> Iterator[None]:
    """An earlier job has compiled the same; what it kept is damaged."""
    cache = scene.place / "cache"
    scene.environment[flags.CACHE.name] = str(cache)
    before = scene.estimator(Row("", "", 0, script=TRAINS, words=XLA))
    before.fit(wait=False, job_name="before")
    assert before.latest_training_job is not None
    assert before.latest_training_job.wait(timeout=120) == "Completed"
    scene.fault_time.unlink()
    for file in [path for path in cache.rglob("*") if path.is_file()]:
        data = file.read_bytes()
        file.write_bytes(data[: len(data) // 2])
    yield


@contextlib.contextmanager
def memory_group(scene: Scene) -> Iterator[None]:
    version_1, version_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    root = version_1 if version_1.is_dir() else version_2
    group = root / f"trcomp-faults-{os.getpid()}"
    try:
        group.mkdir()
        limit = "memory.limit_in_bytes" if root == version_1 else "memory.max"
        (group / limit).write_text(str(64 << 20))
    except OSError:
        scene.environment["OOM_GROUP"] = ""  # The script is killed as the kernel would.
        yield
        return
    scene.environment["OOM_GROUP"] = str(group / "cgroup.procs")
    try:
        yield
    finally:
        group.rmdir()


GROWS = """
    import signal

    if rank == "1":
        group = os.environ["OOM_GROUP"]
        fault_comes()
        if not group:
            os.kill(os.getpid(), signal.SIGKILL)
        pathlib.Path(group).write_text(str(os.getpid()))
        held = []
        while True:
            held.append(bytearray(os.urandom(1 << 20)))
    time.sleep(600)
"""

LOADER = """
    import torch
    import trcomp.runtime as rt


    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index == 5 and rank == "1":
                fault_comes()
                {fault}
            return torch.ones(2)


    loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers={workers})
    for batch in rt.DeviceLoader(loader):
        pass
    time.sleep(600)
"""

HOOK = """
    import torch

    value = torch.ones(2, requires_grad=True)


    def hook(gradient):
        fault_comes()
        raise ValueError("bad gradient")


    value.register_hook(hook)
    if rank == "1":
        value.sum().backward()
    time.sleep(600)
"""
