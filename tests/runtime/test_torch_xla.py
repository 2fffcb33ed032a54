"""The torch_xla module tree: found behind a real one, and what its names do in one process."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from importlib import metadata
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


@pytest.fixture(autouse=True, scope="module")
def tree() -> None:
    trcomp.compat.install()


@pytest.fixture
def xm() -> Any:
    return importlib.import_module("torch_xla.core.xla_model")


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


def test_frameworks_find_torch_xla_installed() -> None:
    assert importlib.util.find_spec("torch_xla") is not None
    assert metadata.version("torch_xla") == metadata.version("torch-xla") == "2.9.0+trcomp"
    assert metadata.packages_distributions()["torch_xla"] == ["torch_xla"]
    requirements = pytest.importorskip("lightning_utilities.core.imports").RequirementCache
    assert requirements("torch_xla>=2.5") and requirements("torch_xla>=2.1", "torch_xla")
    assert not requirements("torch_xla>=3")


def test_what_is_out_of_scope_is_imported_and_refused_when_used() -> None:
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel
    from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
    from torch_xla.distributed.spmd import Mesh
    from torch_xla.experimental.pallas_kernels.ragged_paged_attention_v2 import cdiv

    assert not isinstance(torch.nn.Linear(1, 1), XlaFullyShardedDataParallel)
    for use in (XlaFullyShardedDataParallel, transformer_auto_wrap_policy, Mesh, cdiv):
        with pytest.raises(UnsupportedError, match=rf"torch_xla\..*{use.__name__} was used: .*not"):
            use(1, device=2)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("torch_xla.no_such_module")


def test_an_old_spelling_works_and_says_once_what_replaces_it(xm: Any) -> None:
    space: dict[str, Any] = {"xm": xm, "__name__": "a_script"}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            exec("xm.mark_step(); rank, world = xm.get_ordinal(), xm.xrt_world_size()", space)
    assert (space["rank"], space["world"]) == (0, 1)
    assert [str(warning.message) for warning in told] == [
        "torch_xla.core.xla_model.mark_step is deprecated: use torch_xla.sync().",
        "torch_xla.core.xla_model.get_ordinal is deprecated: use "
        "torch_xla.runtime.global_ordinal().",
        "torch_xla.core.xla_model.xrt_world_size is deprecated: use "
        "torch_xla.runtime.world_size().",
    ]


def test_variables_of_the_first_runtime_are_said_to_have_no_effect(tmp_path: Path) -> None:
    script = """
    import trcomp.compat
    trcomp.compat.install()
    import torch_xla.distributed.xla_multiprocessing as xmp
    for _ in range(2):
        xmp.spawn(lambda index: print("index", index))
    """
    ended = run_script(script, tmp_path, {"XRT_WORKERS": "localservice:0;here:1"})
    assert ended.stdout == "index 0\nindex 0\n"
    assert ended.stderr.count("XRT_WORKERS have no effect") == 1


LAUNCHED = """
    import trcomp.compat
    trcomp.compat.install()
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr


    def main(index, word):
        value = torch.full((2,), index + 1.0, device=torch_xla.device())
        total = xm.all_reduce(xm.REDUCE_SUM, value)
        print("of", xr.world_size(), "rank", index, total.tolist())


    if __name__ == "__main__":
        torch_xla.launch(main, args=("word",), debug_single_process={single})
"""


@pytest.mark.parametrize(
    ("single", "printed"),
    [
        (False, {"of 2 rank 0 [3.0, 3.0]", "of 2 rank 1 [3.0, 3.0]"}),
        (True, {"of 1 rank 0 [1.0, 1.0]"}),
    ],
)
def test_launch_runs_on_all_devices_or_in_this_process(
    tmp_path: Path, single: bool, printed: set[str]
) -> None:
    script = LAUNCHED.replace("{single}", str(single))
    ended = run_script(script, tmp_path, {"GPU_NUM_DEVICES": "2"})
    assert ended.returncode == 0, ended.stderr
    lines = {line.partition("] ")[2] or line for line in ended.stdout.splitlines()}
    assert {line for line in lines if line.startswith("of ")} == printed


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


def test_a_name_that_is_not_there_says_whose_tree_this_is(xm: Any) -> None:
    with pytest.raises(AttributeError, match=r"xla_model.*no 'no_such_name'.*trcomp"):
        _ = xm.no_such_name
    assert not hasattr(xm, "no_such_name")
