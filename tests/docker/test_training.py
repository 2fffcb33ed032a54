"""Training in containers: torch and jax are mounted, and ranks meet over the job's network."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.docker.jobs import Place, until
from trcomp import Job, JobFailedError, TrainingCompilerConfig

pytestmark = [pytest.mark.runtime, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
REGRESSION = ROOT / "tests/e2e/scripts/regression.py"

STEPS = """
    import time
    import torch
    import torch_xla.core.xla_model as xm

    device = xm.xla_device()
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100000):
        optimizer.zero_grad()
        model(torch.ones(2, 4, device=device)).sum().backward()
        xm.optimizer_step(optimizer)
        xm.mark_step()
        model.weight.sum().item()
        if step == 3:
            print("training", flush=True)
        time.sleep(0.01)
"""


def losses(job: Job) -> list[list[float]]:
    """The losses of each rank."""
    results = [line.partition("RESULT ")[2] for line in job.logs() if "RESULT " in line]
    return [json.loads(result)["losses"] for result in results]


def test_the_demo_trains_in_a_container(place: Place) -> None:
    script = (ROOT / "examples/vit/train.py").read_text()
    config = TrainingCompilerConfig()
    job = place.started(script, compiler_config=config, hyperparameters={"steps": 10})
    assert job.wait(timeout=240) == "Completed"
    assert any("step 10: loss" in line for line in job.logs())
    assert job.report()["totals"]["steps"] == 10
    assert job.record().model is not None


def test_two_hosts_of_two_workers_train_as_one_process(place: Place) -> None:
    config, script = TrainingCompilerConfig(), REGRESSION.read_text()
    words = {"compiler_config": config, "environment": {"GPU_NUM_DEVICES": "2"}}
    alone = place.started(script, "alone", compiler_config=config)
    alone.wait(timeout=240)
    job = place.started(script, "together", instance_count=2, **words)
    job.wait(timeout=240)
    (expected,) = losses(alone)
    found = losses(job)
    assert len(found) == 4
    for each in found:
        assert each == pytest.approx(expected, rel=1e-5)
    assert job.report()["totals"]["num_ranks"] == 4


def test_a_network_that_is_cut_ends_the_job(place: Place) -> None:
    job = place.started(STEPS, instance_count=2, compiler_config=TrainingCompilerConfig())
    until(job, "training", 2)
    (network,) = place.networks(job)
    network.disconnect(place.containers(job)[1])
    begin = time.monotonic()
    with pytest.raises(JobFailedError):
        job.wait(timeout=240)
    # A silent rank is given up after 20 s; what remains is for both hosts to end.
    assert time.monotonic() - begin < 90
    assert place.containers(job) == place.networks(job) == []
