"""Captured steps of two ranks: their collectives lie in the replayed node."""

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
        wrapped = DistributedDataParallel(model) if kind == "ddp" else model

        @trcomp.step
        def run(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(wrapped(x), y)
            loss.backward()
            if kind == "ddp":
                optimizer.step()
            else:
                rt.optimizer_step(optimizer)
            return rt.all_reduce("sum", loss.detach(), 1 / world)

        x, y = inputs[mine].to(device), labels[mine].to(device)
        for step in range(6):
            before = rt.metrics()
            loss = run(x, y)
            rt.sync()
        after = rt.metrics()
        names = ("recorded_nodes", "executions", "compiles", "early_syncs")
        counts = [after[k] - before[k] for k in names]
        weight = model[0].weight.detach().cpu().flatten().tolist()
        found[kind] = {"counts": counts, "weight": weight, "loss": loss.item()}

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
    for rank in found[2]:
        for name in ("weight", "loss"):
            expected = alone["optimizer_step"][name]
            assert rank[kind][name] == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", ["optimizer_step", "ddp"])
def test_a_call_is_one_node_and_one_executable(found: dict[int, list[dict]], kind: str) -> None:
    for rank in found[2]:
        assert rank[kind]["counts"] == [1, 1, 0, 0]
