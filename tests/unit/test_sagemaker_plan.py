"""The plan of a job in SageMaker: the request, what SageMaker would refuse, and no call at all."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any, ClassVar

import pytest

from trcomp import Estimator, JobSpec, SpecError, TrainingCompilerConfig, limits
from trcomp.backends.sagemaker_fields import FIELDS
from trcomp.backends.sagemaker_plan import SageMakerPlan
from trcomp.backends.sagemaker_request import SHAPE
from trcomp.cli import main
from trcomp.images.context import Recipe
from trcomp.inputs import TrainingInput
from trcomp.managed import NAMES

ROLE = "arn:aws:iam::123456789012:role/Trainer"


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script; the region is known, and nothing may be called."""
    for name in ("AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")

    def refused(*args: object) -> None:
        raise AssertionError("a plan calls nothing")

    monkeypatch.setattr(socket.socket, "connect", refused)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print()\n")
    return tmp_path / "code"


def estimator(code: Path, **words: Any) -> Estimator:
    words = {"role": ROLE, "image_uri": "image", "instance_type": "ml.p4d.24xlarge"} | words
    return Estimator("train.py", code, **words)


def plan_of(code: Path, inputs: Any = None, **words: Any) -> SageMakerPlan:
    plan = estimator(code, **words).plan(inputs, job_name="job")
    assert isinstance(plan, SageMakerPlan)
    return plan


def problems_of(code: Path, **words: Any) -> str:
    with pytest.raises(SpecError) as caught:
        estimator(code, **words)
    return str(caught.value)


def test_the_smallest_job(code: Path) -> None:
    plan = plan_of(code, hyperparameters={"lr": 0.1, "name": "a b", "flag": None})
    archive = f"s3://sagemaker-us-east-1-123456789012/trcomp/code/{plan.digest}/sourcedir.tar.gz"
    assert plan.handle == "sagemaker://job"
    assert plan.request == {
        "TrainingJobName": "job",
        "RoleArn": ROLE,
        "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
        "ResourceConfig": {
            "InstanceType": "ml.p4d.24xlarge",
            "InstanceCount": 1,
            "VolumeSizeInGB": 30,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        "InputDataConfig": [
            {
                "ChannelName": "code",
                "InputMode": "File",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": archive,
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
            }
        ],
        "OutputDataConfig": {"S3OutputPath": "s3://sagemaker-us-east-1-123456789012"},
        "HyperParameters": {
            "lr": "0.1",
            "name": '"a b"',
            "flag": "null",
            "sagemaker_program": '"train.py"',
            "sagemaker_submit_directory": '"/opt/ml/input/data/code/sourcedir.tar.gz"',
            "sagemaker_job_name": '"job"',
            "sagemaker_container_log_level": "20",
            "sagemaker_region": '"us-east-1"',
        },
    }


EVERY: dict[str, Any] = {
    "instance_count": 2,
    "compiler_config": TrainingCompilerConfig(cache="s3://bucket/cache"),
    "environment": {"A": "b"},
    "output_path": "s3://bucket/out",
    "checkpoint_s3_uri": "s3://bucket/checkpoints",
    "checkpoint_local_path": "/opt/ml/checkpoints/here",
    "container_entry_point": ["train"],
    "container_arguments": ["--now"],
    "training_repository_access_mode": "Vpc",
    "training_repository_credentials_provider_arn": "arn:aws:lambda:us-east-1:1234567890"
    "12:function:f",
    "volume_size": 500,
    "volume_kms_key": "volume-key",
    "training_plan": "arn:aws:sagemaker:us-east-1:123456789012:training-plan/plan",
    "instance_placement_config": {"EnableMultipleJobs": True},
    "max_run": 3600,
    "use_spot_instances": True,
    "max_wait": 7200,
    "max_retry_attempts": 3,
    "subnets": ["subnet-1"],
    "security_group_ids": ["sg-1"],
    "enable_network_isolation": True,
    "encrypt_inter_container_traffic": True,
    "input_mode": "FastFile",
    "code_location": "s3://bucket/code/",
    "output_kms_key": "output-key",
    "disable_output_compression": True,
    "tags": {"team": "vision"},
    "metric_definitions": [{"Name": "loss", "Regex": "loss ([0-9.]+)"}],
    "enable_sagemaker_metrics": True,
    "enable_remote_debug": True,
    "enable_infra_check": True,
    "enable_session_tag_chaining": True,
    "max_pending": 7200,
    "profiler_config": {"S3OutputPath": "s3://bucket/profile", "DisableProfiler": False},
    "profiler_rules": [{"RuleConfigurationName": "r", "RuleEvaluatorImage": "i"}],
    "rules": [{"RuleConfigurationName": "s", "RuleEvaluatorImage": "i"}],
    "tensorboard_output_config": {"S3OutputPath": "s3://bucket/board"},
    "mlflow_config": {
        "MlflowResourceArn": "arn:aws:sagemaker:us-east-1:123456789012:mlflow-app/app"
    },
    "model_package_config": {
        "ModelPackageGroupArn": "arn:aws:sagemaker:us-east-1:123456789012:model-package-group/g"
    },
}


IN_PLACE_OF_OTHERS: dict[str, Any] = {
    "instance_groups": [
        {"InstanceGroupName": "g", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1}
    ],
    "instance_preferences": [{"InstanceType": "ml.p5.48xlarge"}],
    "algorithm_arn": "arn:aws:sagemaker:us-east-1:123456789012:algorithm/mine",
    "disable_profiler": True,
    "debugger_hook_config": True,
    "framework_version": "1.13",
    "pytorch_version": "1.11",
    "transformers_version": "4.21",
    "py_version": "py38",
}
"""Words that do not go with others, each shown in a test of its own."""


def at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values[part]
    return values


def test_every_word_reaches_the_request(code: Path) -> None:
    told = {"keep_alive_period_in_seconds", "experiment_config", *IN_PLACE_OF_OTHERS}
    assert set(NAMES) == {*EVERY, "image_uri", *told} - set(JobSpec.model_fields)
    request = plan_of(code, **EVERY).request
    changed = {
        "disable_output_compression": "NONE",
        "tags": [{"Key": "team", "Value": "vision"}],
        "output_path": "s3://bucket/out",
    }
    told = {"code_location", "compiler_config"}
    for field in FIELDS:
        if field.word in EVERY and field.word not in told:
            expected = changed.get(field.word, EVERY[field.word])
            assert at(request, field.path) == expected, field.word
    digest = plan_of(code, **EVERY).digest
    archive = request["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"]
    assert archive == f"s3://bucket/code/trcomp/code/{digest}/sourcedir.tar.gz"
    cache = request["HyperParameters"]["sagemaker_training_compiler_cache"]
    assert cache == '"s3://bucket/cache"'
    warm = plan_of(code, keep_alive_period_in_seconds=600).request
    assert warm["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 600
    experiment = {"ExperimentName": "e"}
    planned = estimator(code).plan(job_name="job", experiment_config=experiment)
    assert isinstance(planned, SageMakerPlan)
    assert planned.request["ExperimentConfig"] == experiment


def test_groups_and_preferences_stand_in_place_of_a_type(code: Path) -> None:
    groups = [
        {"InstanceGroupName": "gpus", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2},
        {"InstanceGroupName": "data", "InstanceType": "ml.c5.18xlarge", "InstanceCount": 1},
    ]
    words: dict[str, Any] = {"instance_type": None, "instance_groups": groups}
    distribution = {"pytorchxla": {"enabled": True}, "instance_groups": ["gpus"]}
    train = TrainingInput("s3://bucket/train", instance_groups=["gpus"])
    plan = plan_of(code, {"train": train}, **words, distribution=distribution)
    assert plan.request["ResourceConfig"] == {"VolumeSizeInGB": 30, "InstanceGroups": groups}
    source = plan.request["InputDataConfig"][0]["DataSource"]["S3DataSource"]
    assert source["InstanceGroupNames"] == ["gpus"]
    settings = plan.request["HyperParameters"]
    assert settings["sagemaker_distribution_instance_groups"] == '["gpus"]'
    assert "hosts      gpus 2 x ml.p4d.24xlarge, 8 x A100 each" in plan.to_text()
    ranks = {host["name"]: len(host["ranks"] or ()) for host in plan.to_dict()["hosts"]}
    assert ranks == {"algo-1": 8, "algo-2": 8, "algo-3": 0}

    choice = [{"InstanceType": "ml.p5.48xlarge"}, {"InstanceType": "ml.p4d.24xlarge"}]
    request = plan_of(
        code, instance_type=None, instance_preferences=[item["InstanceType"] for item in choice]
    ).request
    assert request["ResourceConfig"]["InstancePreferences"] == choice
    assert request["ResourceConfig"]["InstanceCount"] == 1
    assert "InstanceType" not in request["ResourceConfig"]
    counted = [item | {"InstanceCount": 2} for item in choice]
    request = plan_of(code, instance_type=None, instance_preferences=counted).request
    assert "InstanceCount" not in request["ResourceConfig"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"distribution": {"instance_groups": ["gpu"]}}, "Did you mean 'gpus'?"),
        ({"instance_count": 5}, "instance_groups have 3 hosts"),
        ({"instance_type": "ml.p3.2xlarge"}, "instance_groups begin with ml.p4d.24xlarge"),
        ({"compiler_config": TrainingCompilerConfig()}, "ranks run on hosts of one type"),
    ],
)
def test_what_does_not_fit_groups(words: dict[str, Any], problem: str, code: Path) -> None:
    groups = [
        {"InstanceGroupName": "gpus", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2},
        {"InstanceGroupName": "data", "InstanceType": "ml.c5.18xlarge", "InstanceCount": 1},
    ]
    given = {"instance_type": None, "instance_groups": groups} | words
    assert problem in problems_of(code, **given)


def test_preferences_go_without_what_sagemaker_excludes(code: Path) -> None:
    text = problems_of(
        code,
        instance_type=None,
        instance_preferences=[{"InstanceType": "ml.p5.48xlarge", "InstanceCount": 1}, "ml.p4d.x"],
        use_spot_instances=True,
        max_wait=86400,
    )
    assert "either all of them have an InstanceCount" in text
    assert "use_spot_instances: got True; it does not go with instance_preferences" in text


def test_an_algorithm_stands_in_place_of_an_image(code: Path) -> None:
    arn = IN_PLACE_OF_OTHERS["algorithm_arn"]
    request = plan_of(code, image_uri=None, algorithm_arn=arn).request
    assert request["AlgorithmSpecification"] == {"AlgorithmName": arn, "TrainingInputMode": "File"}
    assert "leave out one of the two" in problems_of(code, algorithm_arn=arn)


def test_the_debugger_and_the_profiler(code: Path) -> None:
    assert not {"DebugHookConfig", "ProfilerConfig"} & set(plan_of(code).request)
    off = plan_of(code, debugger_hook_config=False, disable_profiler=True).request
    assert "DebugHookConfig" not in off
    assert off["ProfilerConfig"] == {"DisableProfiler": True}
    on = plan_of(code, debugger_hook_config=True, output_path="s3://bucket/out").request
    assert on["DebugHookConfig"] == {"S3OutputPath": "s3://bucket/out"}
    given = {"profiler_config": {"ProfilingIntervalInMilliseconds": 500}}
    both = plan_of(code, **given, disable_profiler=True).request
    assert both["ProfilerConfig"] == given["profiler_config"] | {"DisableProfiler": True}
    assert given == {"profiler_config": {"ProfilingIntervalInMilliseconds": 500}}


def frozen(code: Path, **words: Any) -> Estimator:
    words = {"image_uri": None, "compiler_config": TrainingCompilerConfig()} | words
    with pytest.warns(UserWarning, match="it is frozen"):
        return estimator(code, **words)


HUGGING_FACE = {"transformers_version": "4.21.1", "pytorch_version": "1.11.0", "py_version": "py38"}


def test_versions_choose_a_frozen_image_that_gets_what_it_needs(code: Path) -> None:
    chosen = frozen(code, **HUGGING_FACE, distribution={"pytorchxla": {"enabled": True}})
    uri = (
        "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-trcomp-training:"
        "1.11.0-transformers4.21.1-gpu-py38-cu113-ubuntu20.04"
    )
    assert chosen.training_image_uri() == uri
    plan = chosen.plan()
    assert isinstance(plan, SageMakerPlan)
    assert plan.request["AlgorithmSpecification"]["TrainingImage"] == uri
    # This image's own launcher sets XRT's variables on every host.
    assert plan.request["HyperParameters"]["sagemaker_pytorch_xla_multi_worker_enabled"] == "true"
    assert plan.request["HyperParameters"]["sagemaker_training_compiler_enabled"] == "true"
    assert "Environment" not in plan.request
    assert "image      PyTorch 1.11.0, transformers 4.21.1, py38: it is frozen" in plan.to_text()
    assert [host["ranks"] for host in plan.to_dict()["hosts"]] == [None]


def test_a_script_that_spawns_in_a_frozen_image_finds_xrts_variables(code: Path) -> None:
    alone = frozen(code, framework_version="1.13", environment={"NCCL_PROTO": "mine"})
    plan = alone.plan()
    assert isinstance(plan, SageMakerPlan)
    assert plan.request["Environment"] == {
        "XRT_WORKERS": "localservice:0;127.0.0.1:43857",
        "XRT_HOST_ORDINAL": "0",
        "XRT_SHARD_WORLD_SIZE": "1",
        "GPU_NUM_DEVICES": "8",
        "NCCL_PROTO": "mine",
        "FI_EFA_USE_DEVICE_RDMA": "1",
        "OFI_NCCL_NIC_DUP_CONNS": "8",
    }
    assert plan.to_dict()["hosts"][0]["environment"]["XRT_HOST_ORDINAL"] == "0"
    # So does one whose image is named in full.
    uri = alone.training_image_uri()
    named = frozen(code, image_uri=uri, compiler_config=None).plan()
    assert isinstance(named, SageMakerPlan)
    assert named.request["Environment"]["XRT_HOST_ORDINAL"] == "0"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"framework_version": "2.1"}, "PyTorch 1.13.1, py39; PyTorch 1.12.0, py38"),
        ({"framework_version": "1.13.1", "py_version": "py38"}, "none of the Training Compiler"),
        ({"framework_version": "1.13", "instance_count": 2}, "several hosts of a frozen image"),
        (
            {"pytorch_version": "1.10.2", "transformers_version": "4.17"}
            | {"distribution": {"pytorchxla": {"enabled": True}}},
            "no such launcher",
        ),
        (
            {"framework_version": "1.13", "compiler_config": TrainingCompilerConfig(cache="off")},
            "keeps no executables",
        ),
        ({"framework_version": "1.13", "max_restarts": 1}, "starts no workers anew"),
        (
            {"framework_version": "1.13", "arguments": ["data", "--api-key=s3cret"]},
            "arguments: got \"data '--api-key=***'\"; a frozen image knows hyperparameters alone",
        ),
    ],
)
def test_what_no_frozen_image_can_do(words: dict[str, Any], problem: str, code: Path) -> None:
    given = {"image_uri": None, "compiler_config": TrainingCompilerConfig()} | words
    assert problem in problems_of(code, **given)


def test_a_frozen_image_is_not_in_every_region(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "ap-south-2")
    chosen = {"image_uri": None, "compiler_config": TrainingCompilerConfig()}
    assert "not in region ap-south-2" in problems_of(code, framework_version="1.13", **chosen)
    uri = frozen(code, framework_version="1.12").training_image_uri()
    assert uri == "772153158452.dkr.ecr.ap-south-2.amazonaws.com/pytorch-trcomp-training:" + (
        "1.12.0-gpu-py38"
    )


def test_without_an_image_a_job_runs_in_trcomps_own(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, gpu in {"ml.p4d.24xlarge": True, "ml.m5.large": False}.items():
        chosen = estimator(code, image_uri=None, instance_type=kind)
        uri = f"123456789012.dkr.ecr.us-east-1.amazonaws.com/{Recipe(gpu).image}"
        assert chosen.training_image_uri() == uri
        plan = chosen.plan()
        assert json.loads(plan.to_json())["request"]["AlgorithmSpecification"] == {
            "TrainingImage": uri,
            "TrainingInputMode": "File",
        }
        command = f"trcomp push{'' if gpu else ' --cpu'} --region us-east-1"
        assert f"image      trcomp's own; `{command}` brings it there" in plan.to_text()
        assert command in json.loads(plan.to_json())["own_image"]
    monkeypatch.setenv("TRCOMP_PUSH", "1")
    assert "submit builds and pushes it if it is not there" in plan.to_text()
    # Another base is another image.
    monkeypatch.setenv("TRCOMP_BUILD_ARGS", "BASE_IMAGE=other")
    assert chosen.training_image_uri() != uri
    monkeypatch.setenv("AWS_DEFAULT_REGION", "cn-north-1")
    assert ".dkr.ecr.cn-north-1.amazonaws.com.cn/trcomp:" in str(chosen.training_image_uri())
    assert "own_image" in plan_of(code).to_dict()
    assert plan_of(code).to_dict()["own_image"] is None


def test_code_in_s3_is_taken_as_it_is(code: Path) -> None:
    for uri, there in {
        "s3://bucket/code/old.tar.gz": "/opt/ml/input/data/code/old.tar.gz",
        "s3://bucket/code/tree": "/opt/ml/input/data/code",
    }.items():
        plan = Estimator(
            "train.py", uri, role=ROLE, image_uri="image", instance_type="ml.m5.large"
        ).plan()
        assert isinstance(plan, SageMakerPlan)
        assert plan.code_uri == uri
        channel = plan.request["InputDataConfig"][0]
        assert channel["DataSource"]["S3DataSource"]["S3Uri"] == uri
        submitted = plan.request["HyperParameters"]["sagemaker_submit_directory"]
        assert submitted == json.dumps(there)
        assert f"{uri}, as it is there" in plan.to_text()
    with pytest.raises(SpecError, match="code in S3 is taken as it is"):
        Estimator(
            "train.py",
            uri,
            dependencies=[code],
            role=ROLE,
            image_uri="image",
            instance_type="ml.m5.large",
        )


def test_a_repository_is_not_cloned_by_a_plan(code: Path) -> None:
    config = {"repo": "https://example.org/x.git", "branch": "main"}
    plan = Estimator(
        "train.py",
        "src",
        git_config=config,
        role=ROLE,
        image_uri="image",
        instance_type="ml.m5.large",
    ).plan()
    assert plan.files == ()
    assert "https://example.org/x.git at main, cloned as the job is submitted" in plan.to_text()


def members(path: str, shape: str = SHAPE) -> bool:
    """Whether a request has such a field."""
    name, _, rest = path.partition(".")
    member = limits._shapes()[shape].get("members", {}).get(name)
    return member is not None and (not rest or members(rest, member["shape"]))


def test_every_field_of_the_table_exists_and_none_stands_twice() -> None:
    words = [field.word for field in FIELDS]
    assert len(words) == len(set(words))
    for field in FIELDS:
        path = field.path
        assert path.startswith("HyperParameters") or members(path), path


def test_every_pattern_of_the_request_can_be_read() -> None:
    shapes, seen = [SHAPE], set()
    while shapes:
        name = shapes.pop()
        if name in seen:
            continue
        seen.add(name)
        model = limits._shapes()[name]
        if "pattern" in model:
            limits._compiled(model["pattern"])
        inner = [*model.get("members", {}).values()]
        inner += [model[part] for part in ("member", "key", "value") if part in model]
        shapes += [member["shape"] for member in inner]
    assert len(seen) > 100


def test_channels_reach_the_request_as_they_were_given(code: Path) -> None:
    class TrainingInput:
        config: ClassVar[dict[str, Any]] = {
            "DataSource": {
                "S3DataSource": {
                    "S3DataType": "ManifestFile",
                    "S3Uri": "s3://bucket/train",
                    "S3DataDistributionType": "ShardedByS3Key",
                }
            },
            "CompressionType": "Gzip",
            "ContentType": "text/csv",
            "InputMode": "Pipe",
            "RecordWrapperType": "RecordIO",
            "ShuffleConfig": {"Seed": 7},
        }

    channels = plan_of(code, {"a": TrainingInput(), "b": "s3://bucket/b"}).request[
        "InputDataConfig"
    ]
    assert channels[0] == {"ChannelName": "a", **TrainingInput.config}
    assert [channel["ChannelName"] for channel in channels] == ["a", "b", "code"]


def test_everything_that_sagemaker_would_refuse_is_told_at_once(code: Path) -> None:
    text = problems_of(
        code,
        role="Trainer",
        output_path=code,
        checkpoint_local_path="/opt/ml/checkpoints",
        volume_size=-1,
        max_wait=3,
        subnets=["subnet-1"],
        input_mode="Fast",
        tags=[{"Key": "a"}],
        metric_definitions=[{"Name": "n", "Regex": "x" * 600}],
        keep_alive_period_in_seconds=10**6,
        compiler_config=TrainingCompilerConfig(cache="here"),
        environment={"TRAINING_JOB_NAME": "x"},
    )
    assert "12 problems" in text
    for part in (
        "role: got 'Trainer'; SageMaker needs the ARN",
        "aws iam get-role --role-name Trainer",
        "SageMaker needs s3://bucket/prefix.",
        "checkpoint_s3_uri: got None; SageMaker needs it.",
        "volume_size: got -1",
        "it is for use_spot_instances=True",
        "security_group_ids: got None; SageMaker needs it.",
        "SageMaker takes Pipe, File, FastFile.",
        "tags: got None",
        "metric_definitions: got",
        "0 to 21600",
        "an absolute path there",
        "TRAINING_JOB_NAME",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"use_spot_instances": True}, "max_wait: got None"),
        ({"use_spot_instances": True, "max_wait": 60, "max_run": 61}, "61 (max_run) or more"),
        (
            {"use_spot_instances": True, "max_wait": 86400, "keep_alive_period_in_seconds": 60},
            "spot instances cannot be kept",
        ),
        ({"hyperparameters": {f"h{i}": 1 for i in range(99)}}, "hyperparameters: got '1"),
        ({"output_path": "s3://Bucket/x"}, "output_path: got 's3://Bucket/x'"),
    ],
)
def test_rules_between_words(words: dict[str, Any], problem: str, code: Path) -> None:
    assert problem in problems_of(code, **words)


def test_a_channel_that_is_taken_or_local_is_refused(code: Path) -> None:
    with pytest.raises(SpecError, match="choose another"):
        estimator(code).plan({"code": "s3://bucket/x"})
    with pytest.raises(SpecError, match="aws s3 sync"):
        estimator(code).plan(code)
    lines = {"s3_data_type": "AugmentedManifestFile", "attribute_names": ["source-ref"]}
    with pytest.raises(SpecError, match="an augmented manifest is streamed"):
        estimator(code).plan({"train": TrainingInput("s3://bucket/lines", **lines)})


def test_a_new_instance_type_is_not_refused(code: Path) -> None:
    plan = plan_of(code, instance_type="ml.p9.96xlarge")
    assert plan.request["ResourceConfig"]["InstanceType"] == "ml.p9.96xlarge"


def test_a_type_that_may_be_misspelt_is_asked_about(code: Path) -> None:
    text = plan_of(code, instance_type="ml.p4d.24xlarg").to_text()
    assert "1 x ml.p4d.24xlarg, unknown to botocore: is it ml.p4d.24xlarge?" in text


def test_an_unknown_region_is_told_and_does_not_hinder_a_plan(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    text = plan_of(code).to_text()
    assert "region     unknown: set AWS_DEFAULT_REGION" in text
    assert "s3://sagemaker-REGION-123456789012/job/output" in text


def test_equal_jobs_make_equal_plans_that_survive_json(code: Path) -> None:
    first, second = plan_of(code, **EVERY), plan_of(code, **EVERY)
    assert first == second
    assert first.to_text() == second.to_text()
    assert SageMakerPlan.model_validate_json(first.model_dump_json()) == first


def test_secrets_are_masked_and_every_hosts_environment_is_there(code: Path) -> None:
    plan = plan_of(
        code,
        instance_count=2,
        compiler_config=TrainingCompilerConfig(),
        environment={"HF_TOKEN": "s3cret"},
        hyperparameters={"api_key": "s3cret"},
        arguments=["--fp16", "--token", "s3cret"],
    )
    assert "script    train.py --api_key '***' --fp16 --token '***'" in plan.to_text()
    shown = json.loads(plan.to_json())["request"]["HyperParameters"]
    assert shown["sagemaker_script_arguments"] == '["--fp16", "--token", "***"]'
    assert plan.request["HyperParameters"]["sagemaker_script_arguments"].count("s3cret") == 1
    for text in (plan.to_text(), plan.to_json(), repr(plan)):
        assert "s3cret" not in text
    assert plan.request["Environment"] == {"HF_TOKEN": "s3cret"}
    hosts = json.loads(plan.to_json())["hosts"]
    assert [host["name"] for host in hosts] == ["algo-1", "algo-2"]
    assert hosts[1]["environment"] == {
        "HF_TOKEN": "***",
        "TRAINING_JOB_NAME": "job",
        "AWS_REGION": "us-east-1",
    }
    ranks = [rank["rank"] for host in hosts for rank in host["ranks"]]
    assert ranks == list(range(16))
    assert hosts[1]["ranks"][0]["environment"]["MASTER_ADDR"] == "algo-1"


def test_the_command_line_plans_for_sagemaker(
    code: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--instance-type", "ml.m5.large", "--role", ROLE, "--image-uri", "image"]
    assert main(["plan", str(code / "train.py"), *words, "--json", "--", "--lr", "0.1"]) == 0
    request = json.loads(capsys.readouterr().out)["request"]
    assert request["RoleArn"] == ROLE
    assert request["HyperParameters"]["lr"] == '"0.1"'
    assert main(["plan", str(code / "train.py"), "--instance-type", "ml.m5.large"]) == 64
    error = capsys.readouterr().err
    assert re.search(r"1 problem\..*role: got None", error, re.DOTALL)
