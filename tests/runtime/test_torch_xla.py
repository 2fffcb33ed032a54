"""The torch_xla module tree: found behind a real one, and what its names do in one process."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trcomp.compat
import trcomp.runtime as rt
from tests.runtime.rank_scripts import run_script
from trcomp.errors import UnsupportedError

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.filterwarnings("ignore:torch_xla:DeprecationWarning"),
]

NAMES = {
    "torch_xla": "device devices device_count launch manual_seed real_devices sync __version__",
    "torch_xla.core.xla_model": "REDUCE_AND REDUCE_MAX REDUCE_MIN REDUCE_MUL REDUCE_OR REDUCE_SUM "
    "add_step_closure all_gather all_reduce broadcast_master_param collective_broadcast "
    "get_local_ordinal get_ordinal get_rng_state get_xla_supported_devices "
    "is_master_ordinal is_xla_tensor mark_step master_print mesh_reduce optimizer_step "
    "reduce_gradients rendezvous save send_cpu_data_to_device set_replication set_rng_state unlazy "
    "wait_device_ops xla_device xla_device_hw xla_real_devices xrt_world_size",
    "torch_xla.distributed.parallel_loader": "MpDeviceLoader ParallelLoader",
    "torch_xla.distributed.xla_multiprocessing": "MpModelWrapper MpSerialExecutor spawn",
    "torch_xla.runtime": "addressable_device_count device_type global_device_count global_ordinal "
    "global_runtime_device_count host_index initialize_cache is_bf16_supported is_spmd "
    "local_device_count local_ordinal local_process_count process_count process_index using_pjrt "
    "world_size",
    "torch_xla.debug.metrics": "clear_all counter_names counter_value executed_fallback_ops "
    "metric_data metric_names metrics_report short_metrics_report",
}


@pytest.fixture(autouse=True, scope="module")
def tree() -> None:
    trcomp.compat.install()


@pytest.fixture
def xm() -> Any:
    return importlib.import_module("torch_xla.core.xla_model")


@pytest.mark.parametrize("module", sorted(NAMES))
def test_the_tree_has_these_names(module: str) -> None:
    loaded = importlib.import_module(module)
    missing = [name for name in NAMES[module].split() if not hasattr(loaded, name)]
    assert not missing


def test_installing_twice_adds_one_finder_behind_all_others() -> None:
    trcomp.compat.install()
    finders = [f for f in sys.meta_path if isinstance(f, trcomp.compat.TreeFinder)]
    assert len(finders) == 1


def test_an_installed_torch_xla_wins_and_stderr_says_so_once(tmp_path: Path) -> None:
    package = tmp_path / "torch_xla"
    package.mkdir()
    (package / "__init__.py").write_text("real = True\n")
    script = """
    import trcomp.compat
    trcomp.compat.install()
    trcomp.compat.install()
    import torch_xla
    print(torch_xla.real)
    """
    ended = run_script(script, tmp_path)
    assert ended.stdout.strip() == "True"
    assert ended.stderr.count("torch_xla is installed") == 1


def test_devices(xm: Any) -> None:
    import torch_xla

    assert xm.xla_device() == torch_xla.device() == torch_xla.devices()[0] == rt.device()
    assert xm.get_xla_supported_devices() == ["xla:0"]
    assert xm.is_xla_tensor(torch.ones(1, device="xla"))
    assert not xm.is_xla_tensor(torch.ones(1))
    assert torch_xla.real_devices() in (["CPU:0"], ["CUDA:0"])
    assert torch_xla.runtime.device_type() in ("CPU", "CUDA")


def test_launching_on_one_device_calls_the_function_in_place(xm: Any) -> None:
    import torch_xla
    import torch_xla.distributed.xla_multiprocessing as xmp

    calls: list[Any] = []
    torch_xla.launch(lambda index, word: calls.append((index, word)), args=("a",))
    xmp.spawn(lambda index: calls.append(index), nprocs=1, join=True, daemon=False)
    assert calls == [(0, "a"), 0]
    assert xmp.MpSerialExecutor().run(lambda: "done") == "done"
    model = xmp.MpModelWrapper(torch.nn.Linear(1, 1)).to(xm.xla_device())
    assert model.weight.device.type == "xla"


def test_alone_this_is_the_master_of_one(xm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import torch_xla.runtime as xr

    assert (xm.get_ordinal(), xm.get_local_ordinal(), xm.xrt_world_size()) == (0, 0, 1)
    assert (xr.global_ordinal(), xr.local_ordinal(), xr.world_size()) == (0, 0, 1)
    assert xm.is_master_ordinal() and xm.is_master_ordinal(local=False)
    xm.master_print("hello", 1)
    assert capsys.readouterr().out == "hello 1\n"


def test_a_step_closure_runs_after_the_step_and_cuts_no_graph(xm: Any) -> None:
    early, seen = rt.metrics()["early_syncs"], []
    value = torch.ones(3, device="xla").sum() * 2
    xm.add_step_closure(lambda word, tensor: seen.append((word, tensor.item())), ("sum", value))
    assert seen == []
    xm.mark_step()
    assert seen == [("sum", 6.0)]
    assert rt.metrics()["early_syncs"] == early


def test_one_tensor_is_reduced_to_a_new_one_and_a_list_in_place(xm: Any) -> None:
    tensor = torch.ones(2, device="xla")
    assert xm.all_reduce(xm.REDUCE_SUM, tensor, scale=3.0).tolist() == [3, 3]
    assert tensor.tolist() == [1, 1]
    assert xm.all_reduce(xm.REDUCE_SUM, [tensor], scale=3.0) is None
    assert tensor.tolist() == [3, 3]
    with pytest.raises(UnsupportedError, match="groups"):
        xm.all_reduce(xm.REDUCE_SUM, tensor, groups=[[0], [1]])


def test_optimizer_step_can_be_replaced_by_assignment(
    xm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xm, "optimizer_step", lambda *args: "replaced")
    assert xm.optimizer_step(1) == "replaced"


def test_save_moves_parameters_and_keeps_the_structure(xm: Any, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1).to("xla")
    data = {"model": model.state_dict(), "parameter": model.weight, "step": 3, "pair": (1, "x")}
    xm.save(data, tmp_path / "saved.pt")
    loaded = torch.load(tmp_path / "saved.pt", weights_only=True)
    assert loaded["model"]["weight"].device.type == "cpu"
    assert loaded["parameter"].device.type == "cpu"
    torch.testing.assert_close(loaded["parameter"].detach(), model.weight.detach().cpu())
    assert (loaded["step"], loaded["pair"]) == (3, (1, "x"))


def test_mesh_reduce_takes_what_pickle_takes(xm: Any) -> None:
    assert xm.mesh_reduce("sizes", np.arange(3), lambda parts: len(parts[0])) == 3
    tensor = torch.ones(2, device="xla")
    assert xm.mesh_reduce("tensor", tensor, lambda parts: parts[0]).device.type == "cpu"


def test_random_numbers_can_be_repeated(xm: Any) -> None:
    state = xm.get_rng_state()
    assert torch.tensor(state).dtype is torch.int64
    ones = torch.ones(64, device="xla")
    first = torch.nn.functional.dropout(ones).tolist()
    assert torch.nn.functional.dropout(ones).tolist() != first
    xm.set_rng_state(state)
    assert torch.nn.functional.dropout(ones).tolist() == first


def test_tensor_ids_are_equal_exactly_for_shared_storage() -> None:
    import torch_xla

    identity = torch_xla._XLAC._xla_get_tensor_id
    tensor = torch.ones(4, device="xla")
    assert identity(tensor) == identity(tensor.view(2, 2)) == identity(torch.nn.Parameter(tensor))
    assert identity(tensor) != identity(torch.ones(4, device="xla"))


def test_loaders_give_batches_on_the_device(xm: Any) -> None:
    import torch_xla.distributed.parallel_loader as pl

    data = [(torch.ones(2), "name")] * 3
    loader = pl.MpDeviceLoader(
        data, xm.xla_device(), loader_prefetch_size=8, device_prefetch_size=2
    )
    assert len(loader) == 3
    for _ in range(2):
        assert [(t.device.type, name) for t, name in loader] == [("xla", "name")] * 3
    parallel = pl.ParallelLoader(data, [xm.xla_device()])
    assert len(list(parallel.per_device_loader(xm.xla_device()))) == 3


def test_metrics_under_torch_xlas_names() -> None:
    import torch_xla.debug.metrics as met

    (torch.ones(3, device="xla") + 1).tolist()
    assert "compiles" in met.metrics_report()
    assert met.counter_value("UncachedCompile") >= 1
    assert met.counter_value("NoSuchCounter") is None
    samples, nanoseconds, _ = met.metric_data("CompileTime")
    assert samples >= 1 and nanoseconds > 0
    assert met.metric_data("NoSuchMetric") is None
    assert "MarkStep" in met.counter_names()


def test_a_name_that_is_not_there_says_whose_tree_this_is(xm: Any) -> None:
    with pytest.raises(AttributeError, match=r"xla_model.*no 'no_such_name'.*trcomp"):
        _ = xm.no_such_name
    assert not hasattr(xm, "no_such_name")
