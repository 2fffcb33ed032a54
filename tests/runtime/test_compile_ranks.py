"""Compiled data-parallel training: the collectives lie in the step's one graph."""

from __future__ import annotations

import pytest

from tests.runtime.rank_scripts import TRAIN, TRAINING, found_by_ranks

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

SCRIPT = (
    TRAINING
    + """
    def train(kind):
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        if kind == "ddp":
            wrapped = DistributedDataParallel(torch.compile(model, backend="trcomp"))
            update = torch.compile(optimizer.step, backend="trcomp")
        else:
            wrapped = torch.compile(model, backend="trcomp")
            update = lambda: rt.optimizer_step(optimizer)
        x, y = inputs[mine].to(device), labels[mine].to(device)
        for step in range(4):
            before = rt.metrics()
            optimizer.zero_grad()
            loss = F.cross_entropy(wrapped(x), y)
            loss.backward()
            update()
            rt.sync()
        after = rt.metrics()
        counts = [after[k] - before[k] for k in ("executions", "compiles", "early_syncs")]
        found[kind] = {"counts": counts, "weight": model[0].weight.detach().cpu().tolist()}

"""
    + TRAIN
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict]]:
    return {
        world: found_by_ranks(SCRIPT, tmp_path_factory.mktemp(f"ranks-{world}"), world)
        for world in (1, 2)
    }


@pytest.mark.parametrize("kind", ["optimizer_step", "ddp"])
def test_two_ranks_train_as_one_on_the_whole_batch(found: dict[int, list[dict]], kind: str) -> None:
    (alone,) = found[1]
    expected = [number for row in alone["optimizer_step"]["weight"] for number in row]
    for rank in found[2]:
        weight = [number for row in rank[kind]["weight"] for number in row]
        assert weight == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", ["optimizer_step", "ddp"])
def test_a_step_is_one_executable(found: dict[int, list[dict]], kind: str) -> None:
    for rank in found[2]:
        assert rank[kind]["counts"] == [1, 0, 0]
