"""The /opt/ml contract: what is written is read back, what is broken is told all at once."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trcomp import contract as contracts
from trcomp.contract import (
    Channel,
    Checkpoints,
    Contract,
    InstanceGroup,
    Paths,
    Settings,
    sm_variables,
    to_argv,
)
from trcomp.errors import ContractError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.text(min_size=1, max_size=20).filter(lambda name: not name.startswith("sagemaker_"))
HYPERPARAMETERS = st.dictionaries(NAMES, JSON, max_size=5)


def make(**changes: object) -> Contract:
    values = {
        "job_name": "job-1",
        "hosts": ("algo-1",),
        "current_host": "algo-1",
        "hyperparameters": {},
        "settings": Settings(program="train.py"),
        "instance_type": "ml.p4d.24xlarge",
    }
    return Contract(**(values | changes))  # type: ignore[arg-type]


def host_names(count: int) -> tuple[str, ...]:
    return tuple(f"algo-{number}" for number in range(1, count + 1))


@pytest.mark.parametrize("count", [1, 2, 12, 120])
def test_what_is_written_is_read_back(tmp_path: Path, count: int) -> None:
    contract = make(
        hosts=host_names(count),
        current_host=f"algo-{count}",
        hyperparameters={"lr": 1e-5, "name": "true", "flag": True, "none": None, "list": [1, "b"]},
        settings=Settings(
            program="sub/train.py",
            submit_directory="s3://bucket/code.tar.gz",
            compiler_enabled=False,
            compiler_debug=True,
            cuda_to_xla=False,
            compiler_cache="/cache",
            profile_steps=(10, 15),
            pytorchxla_enabled=True,
            arguments=("data", "--fp16", "--layer=1", "--layer=2", ""),
            log_level=10,
            region="eu-west-1",
            other={"sagemaker_mpi_enabled": True},
        ),
        channels=(Channel("train"), Channel("test", "FastFile", "text/csv")),
        checkpoints=Checkpoints(s3_uri="s3://bucket/checkpoints"),
        network_interface_name="lo",
    )
    contracts.write(tmp_path, contract)
    assert contracts.read(tmp_path) == contract


@given(
    hyperparameters=HYPERPARAMETERS,
    arguments=st.lists(st.text(), max_size=5),
    enabled=st.sampled_from([None, True, False]),
)
def test_any_hyperparameters_are_read_back_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    hyperparameters: dict[str, object],
    arguments: list[str],
    enabled: bool | None,
) -> None:
    root = tmp_path_factory.mktemp("ml")
    contract = make(
        hyperparameters=hyperparameters,
        settings=Settings(program="train.py", compiler_enabled=enabled, arguments=tuple(arguments)),
    )
    contracts.write(root, contract)
    found = contracts.read(root)
    assert found == contract
    assert list(found.hyperparameters) == list(hyperparameters)
    assert found.argv == to_argv(hyperparameters) + arguments


@pytest.mark.parametrize("raw", ['"--fp16"', '["--fp16", 1]'])
def test_arguments_that_are_no_list_of_text_are_told(tmp_path: Path, raw: str) -> None:
    contracts.write(tmp_path, make())
    path = tmp_path / "input/config/hyperparameters.json"
    path.write_text(
        json.dumps({"sagemaker_job_name": "a", contracts.ARGUMENTS_SETTING: raw}), encoding="utf-8"
    )
    with pytest.raises(ContractError, match="sagemaker_script_arguments"):
        contracts.read(tmp_path)


def test_groups_are_read_back(tmp_path: Path) -> None:
    groups = (
        InstanceGroup("big", "ml.p4d.24xlarge", ("algo-1",)),
        InstanceGroup("small", "ml.g5.xlarge", ("algo-2",)),
    )
    contract = make(hosts=("algo-1", "algo-2"), instance_groups=groups, current_group="big")
    contracts.write(tmp_path, contract)
    assert contracts.read(tmp_path) == contract


def test_hosts_are_in_text_order_whatever_order_they_are_given_in() -> None:
    shuffled = ("algo-2", "algo-12", "algo-1", "algo-10", "algo-11")
    assert make(hosts=shuffled).hosts == ("algo-1", "algo-10", "algo-11", "algo-12", "algo-2")


def test_the_files_are_those_of_sagemaker(tmp_path: Path) -> None:
    contract = make(
        hyperparameters={"epochs": 3, "name": "x"},
        settings=Settings(program="train.py", compiler_enabled=True),
        channels=(Channel("training"),),
    )
    contracts.write(tmp_path, contract)
    config = tmp_path / "input/config"
    hyperparameters = json.loads((config / "hyperparameters.json").read_text())
    assert hyperparameters["epochs"] == "3"
    assert hyperparameters["name"] == '"x"'
    assert hyperparameters["sagemaker_program"] == '"train.py"'
    assert hyperparameters["sagemaker_training_compiler_enabled"] == "true"
    assert hyperparameters["sagemaker_job_name"] == '"job-1"'
    resources = json.loads((config / "resourceconfig.json").read_text())
    assert resources["hosts"] == ["algo-1"]
    assert resources["instance_groups"][0]["instance_group_name"] == "homogeneousCluster"
    channels = json.loads((config / "inputdataconfig.json").read_text())
    assert channels["training"]["TrainingInputMode"] == "File"
    assert not (config / "checkpointconfig.json").exists()
    for place in ("input/data/training", "model", "output/data", "code"):
        assert (tmp_path / place).is_dir()
    assert not (tmp_path / "checkpoints").exists()
    contracts.write(tmp_path, make(checkpoints=Checkpoints()))
    assert (tmp_path / "checkpoints").is_dir()


def test_no_compiler_config_leaves_its_hyperparameter_out(tmp_path: Path) -> None:
    contracts.write(tmp_path, make())
    text = (tmp_path / "input/config/hyperparameters.json").read_text()
    assert "training_compiler" not in text
    assert contracts.read(tmp_path).settings.compiler_enabled is None


def test_raw_text_of_another_client_is_taken_as_it_is(tmp_path: Path) -> None:
    contracts.write(tmp_path, make())
    raw = {"id": "007", "path": "s3://bucket/a b", "sagemaker_program": "train.py"}
    (tmp_path / "input/config/hyperparameters.json").write_text(json.dumps(raw))
    found = contracts.read(tmp_path, {"TRAINING_JOB_NAME": "named-by-the-platform"})
    assert found.hyperparameters == {"id": "007", "path": "s3://bucket/a b"}
    assert found.settings.program == "train.py"
    assert found.job_name == "named-by-the-platform"


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    config = tmp_path / "input/config"
    config.mkdir(parents=True)
    (config / "hyperparameters.json").write_text(
        json.dumps({"epochs": 3, "sagemaker_training_compiler_enabled": '"yes"'})
    )
    (config / "resourceconfig.json").write_text(
        json.dumps({"hosts": ["algo-1", "algo-1"], "current_host": "algo-7"})
    )
    (config / "inputdataconfig.json").write_text(json.dumps({"../up": {}}))
    (config / "checkpointconfig.json").write_text("{")
    with pytest.raises(ContractError) as caught:
        contracts.read(tmp_path)
    text = str(caught.value)
    for part in (
        "epochs: got 3",
        "sagemaker_training_compiler_enabled: got 'yes'",
        "hosts: got ['algo-1', 'algo-1']",
        "current_host: got 'algo-7'",
        "../up",
        "checkpointconfig.json: not readable",
        "no name",
    ):
        assert part in text
    assert caught.value.exit_code == 78


def test_a_missing_tree_is_a_contract_error(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"resourceconfig.json: the file is missing"):
        contracts.read(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (None, []),
        ("", ["--x", ""]),
        ("two words", ["--x", "two words"]),
        ("'quoted'", ["--x", "'quoted'"]),
        ("true", ["--x", "true"]),
        (True, ["--x", "True"]),
        (False, ["--x", "False"]),
        (3, ["--x", "3"]),
        (1e-05, ["--x", "1e-05"]),
        ([1, "a"], ["--x", '[1, "a"]']),
        ({"k": 1}, ["--x", '{"k": 1}']),
        (-3, ["--x=-3"]),
        ("-x", ["--x=-x"]),
        ("--other", ["--x=--other"]),
    ],
)
def test_argument_rules(value: object, sent: list[str]) -> None:
    assert to_argv({"x": value}) == sent


def test_arguments_keep_the_users_order() -> None:
    assert to_argv({"b": 1, "a": 2, "c": None, "d": 3}) == ["--b", "1", "--a", "2", "--d", "3"]


# Python 3.11's argparse drops "--" even where it is a value.
ARGUMENTS = st.text().filter(lambda text: text != "--")


@given(st.dictionaries(st.from_regex(r"[a-z][a-z_-]{0,8}", fullmatch=True), ARGUMENTS, max_size=4))
def test_argparse_gets_every_string_byte_for_byte(hyperparameters: dict[str, str]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name in hyperparameters:
        parser.add_argument(f"--{name}", dest=name)
    assert vars(parser.parse_args(to_argv(hyperparameters))) == hyperparameters


def test_sm_variables(tmp_path: Path) -> None:
    contract = make(
        hosts=("algo-1", "algo-2"),
        current_host="algo-2",
        hyperparameters={"learning-rate": 0.1, "flag": False, "none": None, "name": "x"},
        channels=(Channel("train"), Channel("my-data.v2")),
        settings=Settings(program="train.py", region="eu-west-1"),
    )
    found = sm_variables(contract, Paths(tmp_path), num_gpus=8, num_cpus=96)
    assert json.loads(found["SM_HOSTS"]) == ["algo-1", "algo-2"]
    assert found["SM_CURRENT_HOST"] == "algo-2"
    assert found["SM_NUM_GPUS"] == "8"
    assert found["SM_NUM_CPUS"] == "96"
    assert found["SM_MODEL_DIR"] == str(tmp_path / "model")
    assert found["SM_OUTPUT_DATA_DIR"] == str(tmp_path / "output/data")
    assert found["SM_CHANNEL_TRAIN"] == str(tmp_path / "input/data/train")
    assert json.loads(found["SM_CHANNELS"]) == ["train", "my-data.v2"]
    assert json.loads(found["SM_HPS"]) == dict(contract.hyperparameters)
    assert found["SM_HP_LEARNING-RATE"] == found["SM_HP_LEARNING_RATE"] == "0.1"
    assert found["SM_CHANNEL_MY-DATA.V2"] == found["SM_CHANNEL_MY_DATA_V2"]
    assert found["SM_HP_FLAG"] == "false"
    assert found["SM_HP_NONE"] == ""
    assert found["SM_HP_NAME"] == "x"
    assert json.loads(found["SM_USER_ARGS"]) == to_argv(contract.hyperparameters)
    assert json.loads(found["SM_TRAINING_ENV"])["current_host"] == "algo-2"
    assert found["SAGEMAKER_REGION"] == "eu-west-1"


def test_every_sm_name_of_the_original_toolkit(tmp_path: Path) -> None:
    """The list of sagemaker-training 5.1.4, but for SM_TOPOLOGY (one instance type has it)."""
    names = """HOSTS NETWORK_INTERFACE_NAME HPS USER_ENTRY_POINT FRAMEWORK_PARAMS RESOURCE_CONFIG
        INPUT_DATA_CONFIG OUTPUT_DATA_DIR CHANNELS CURRENT_HOST CURRENT_INSTANCE_TYPE
        CURRENT_INSTANCE_GROUP CURRENT_INSTANCE_GROUP_HOSTS INSTANCE_GROUPS INSTANCE_GROUPS_DICT
        DISTRIBUTION_INSTANCE_GROUPS IS_HETERO MODULE_NAME LOG_LEVEL FRAMEWORK_MODULE INPUT_DIR
        INPUT_CONFIG_DIR OUTPUT_DIR NUM_CPUS NUM_GPUS NUM_NEURONS MODEL_DIR MODULE_DIR TRAINING_ENV
        USER_ARGS OUTPUT_INTERMEDIATE_DIR"""
    found = sm_variables(make(), Paths(tmp_path), num_gpus=0, num_cpus=2)
    assert {f"SM_{name}" for name in names.split()} <= set(found)


def test_paths_move_under_the_root() -> None:
    paths = Paths(Path("/jobs/x/ml"))
    assert paths.local("/opt/ml/checkpoints/a") == Path("/jobs/x/ml/checkpoints/a")
    assert paths.local("/data") == Path("/data")
    assert contracts.base_dir({}) == Path("/opt/ml")
    assert contracts.base_dir({"SAGEMAKER_BASE_DIR": "/x"}) == Path("/x")
