"""What holds between trcomp and SageMaker's SDK v2; `make interop` runs it where that is."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sagemaker.estimator", reason="SageMaker's SDK v2 is not installed")

import sagemaker as sdk
from sagemaker import image_uris, instance_group
from sagemaker.debugger import (
    CollectionConfig,
    DebuggerHookConfig,
    ProfilerConfig,
    ProfilerRule,
    Rule,
    TensorBoardOutputConfig,
    rule_configs,
)
from sagemaker.huggingface import TrainingCompilerConfig as OfHuggingFace
from sagemaker.inputs import FileSystemInput, TrainingInput
from sagemaker.pytorch import PyTorch as Theirs
from sagemaker.pytorch import TrainingCompilerConfig as OfPyTorch

import trcomp
from docs import sagemaker as pages
from trcomp import Job, TrainingCompilerConfig
from trcomp.backends.sagemaker_plan import SageMakerPlan
from trcomp.huggingface import HuggingFace
from trcomp.images import frozen
from trcomp.pytorch import PyTorch
from trcomp.testing import SageMaker

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.e2e]

SCRIPT = "import sys\nprint('found', *sys.argv[1:])\n"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    return tmp_path / "code"


def request_of(estimator: trcomp.Estimator, inputs: Any = None) -> dict[str, Any]:
    plan = estimator.plan(inputs, job_name="job")
    assert isinstance(plan, SageMakerPlan)
    return plan.request


def test_an_estimator_of_the_sdk_carries_trcomp(sagemaker: SageMaker, code: Path) -> None:
    estimator = Theirs(
        "train.py",
        source_dir=str(code),
        role=sagemaker.role,
        instance_type="ml.m5.large",
        instance_count=1,
        sagemaker_session=sdk.Session(default_bucket=sagemaker.bucket),
        disable_profiler=True,
        debugger_hook_config=False,
        **trcomp.sagemaker_kwargs(
            TrainingCompilerConfig(enabled=False),
            image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/trcomp:1",
            hyperparameters={"lr": 0.5, "name": "a b"},
            environment={"A": "b"},
        ),
    )
    estimator.fit(wait=False, job_name="theirs")
    job = Job("sagemaker://theirs")
    assert job.wait(120) == "Completed"
    assert "[rank 0] found --lr 0.5 --name a b" in list(job.logs())
    attached = trcomp.Estimator.attach("theirs")
    assert attached.hyperparameters() == {"lr": 0.5, "name": "a b"}


def test_objects_of_the_sdk_say_what_they_say_there(sagemaker: SageMaker, code: Path) -> None:
    train = TrainingInput(
        "s3://bucket/train",
        distribution="ShardedByS3Key",
        content_type="text/csv",
        input_mode="FastFile",
        shuffle_config=sdk.inputs.ShuffleConfig(7),
        instance_groups=["gpus"],
    )
    mounted = FileSystemInput("fs-0123456789abcdef0", "FSxLustre", "/m/data", "rw")
    group = instance_group.InstanceGroup("gpus", "ml.p4d.24xlarge", 2)
    hook = DebuggerHookConfig("s3://b/d", collection_configs=[CollectionConfig("losses")])
    rules = [
        Rule.sagemaker(rule_configs.loss_not_decreasing()),
        ProfilerRule.sagemaker(rule_configs.ProfilerReport()),
    ]
    estimator = HuggingFace(
        entry_point="train.py",
        source_dir=code,
        role=sagemaker.role,
        image_uri="image",
        instance_groups=[group],
        compiler_config=OfHuggingFace(debug=True),
        distribution={"pytorchxla": {"enabled": True}, "instance_groups": [group]},
        debugger_hook_config=hook,
        rules=rules,
        profiler_config=ProfilerConfig(s3_output_path="s3://b/p"),
        tensorboard_output_config=TensorBoardOutputConfig("s3://b/t"),
        sagemaker_session=sdk.Session(default_bucket="own-bucket", default_bucket_prefix="in"),
    )
    request = request_of(estimator, {"train": train, "mounted": mounted})
    first, second, _ = request["InputDataConfig"]
    assert first == {"ChannelName": "train", **train.config}
    assert second == {"ChannelName": "mounted", **mounted.config}
    assert request["ResourceConfig"]["InstanceGroups"] == [group._to_request_dict()]
    assert request["DebugHookConfig"] == hook._to_request_dict()
    names = [rule["RuleConfigurationName"] for rule in request["DebugRuleConfigurations"]]
    assert names == [rules[0].name]
    names = [rule["RuleConfigurationName"] for rule in request["ProfilerRuleConfigurations"]]
    assert names == [rules[1].name]
    assert request["ProfilerConfig"]["S3OutputPath"] == "s3://b/p"
    assert request["TensorBoardOutputConfig"] == {"S3OutputPath": "s3://b/t"}
    assert request["OutputDataConfig"] == {"S3OutputPath": "s3://own-bucket/in"}
    settings = request["HyperParameters"]
    assert settings["sagemaker_training_compiler_debug_mode"] == "true"
    assert json.loads(settings["sagemaker_distribution_instance_groups"]) == ["gpus"]


@pytest.mark.parametrize("image", frozen.IMAGES, ids=str)
@pytest.mark.parametrize(
    "region", ["us-east-1", "eu-west-1", "ap-east-1", "ap-south-2", "mx-central-1", "cn-north-1"]
)
def test_frozen_images_are_the_sdks(image: frozen.FrozenImage, region: str) -> None:
    words: dict[str, Any] = {"framework": "pytorch", "version": image.pytorch}
    words["training_compiler_config"] = OfPyTorch()
    if image.transformers:
        words = {"framework": "huggingface", "version": image.transformers}
        words["base_framework_version"] = f"pytorch{image.pytorch}"
        words["training_compiler_config"] = OfHuggingFace()
    try:
        expected = image_uris.retrieve(
            region=region,
            py_version=image.python,
            instance_type="ml.p4d.24xlarge",
            image_scope="training",
            **words,
        )
    except ValueError:
        expected = None
    assert image.uri(region) == expected


def test_the_docs_have_every_parameter_of_the_sdk() -> None:
    def parameters(call: Any) -> set[str]:
        return set(inspect.signature(call).parameters) - {"self", "kwargs"}

    documented = {kind: set(names) for kind, names in pages.V2.items()}
    base = parameters(sdk.estimator.EstimatorBase.__init__) | {"image_uri"}
    assert documented["every estimator"] == base
    assert documented["PyTorch"] == parameters(Theirs.__init__) - base
    theirs = parameters(sdk.huggingface.HuggingFace.__init__) - base
    assert documented["HuggingFace"] == theirs - documented["PyTorch"]
    assert documented["fit"] == parameters(Theirs.fit)


def test_the_launch_of_the_training_compilers_time_asks_for_the_same(
    sagemaker: SageMaker, code: Path
) -> None:
    words: dict[str, Any] = {
        "entry_point": "train.py",
        "source_dir": str(code),
        "role": sagemaker.role,
        "instance_type": "ml.p4d.24xlarge",
        "instance_count": 1,
        "framework_version": "1.13.1",
        "py_version": "py39",
        "distribution": {"pytorchxla": {"enabled": True}},
        "compiler_config": OfPyTorch(),
        "hyperparameters": {"lr": 0.5},
    }
    theirs = Theirs(**words, sagemaker_session=sdk.Session(), disable_profiler=True)
    ours = PyTorch(**words)
    request = request_of(ours)
    assert theirs.training_image_uri() == request["AlgorithmSpecification"]["TrainingImage"]
    settings, own = theirs.hyperparameters(), request["HyperParameters"]
    for name in ("lr", "sagemaker_pytorch_xla_multi_worker_enabled"):
        assert settings[name] == own[name]
    assert (
        settings["sagemaker_training_compiler_enabled"]
        == own["sagemaker_training_compiler_enabled"]
    )
