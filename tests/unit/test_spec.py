"""JobSpec: what it refuses, that it refuses all at once, and that JSON keeps it."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trcomp import JobSpec, SpecError, TrainingCompilerConfig, flags

WORDS: dict[str, Any] = {"job_name": "a-job", "entry_point": "train.py"}

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
NAMES = st.from_regex(r"[a-rt-zA-Z][A-Za-z0-9_.-]{0,20}", fullmatch=True)


def problems_of(**words: Any) -> str:
    with pytest.raises(SpecError) as caught:
        JobSpec.of(**WORDS | words)
    return str(caught.value)


@given(hyperparameters=st.dictionaries(NAMES, VALUES, max_size=5))
def test_json_keeps_every_value_and_the_order(hyperparameters: dict[str, Any]) -> None:
    spec = JobSpec.of(**WORDS, hyperparameters=hyperparameters)
    read = JobSpec.from_json(spec.to_json())
    assert read == spec
    assert list(read.hyperparameters) == list(hyperparameters)


def test_json_keeps_every_field(tmp_path: Path) -> None:
    spec = JobSpec.of(
        job_name="j",
        entry_point="train.py",
        source_dir=tmp_path,
        arguments=["data", "--fp16"],
        environment={"A": "b"},
        instance_type="ml.p4d.24xlarge",
        instance_count=2,
        compiler_config=TrainingCompilerConfig(enabled=False, debug=True),
        distribution={"pytorchxla": {"enabled": True}},
        inputs={"train": tmp_path, "test": "s3://bucket/test"},
        output_path="s3://bucket/out",
        checkpoint_s3_uri=tmp_path / "c",
        checkpoint_local_path="/opt/ml/checkpoints",
        role="arn",
    )
    assert JobSpec.from_json(spec.to_json()) == spec
    assert spec.inputs[0].path == tmp_path
    assert spec.inputs[1].path is None


def test_restarts_travel_as_a_variable_wherever_the_job_runs() -> None:
    name = flags.MAX_RESTARTS.name
    spec = JobSpec.of(**WORDS, max_restarts=2, environment={"A": "b"})
    assert spec.environment == {"A": "b", name: "2"}
    assert JobSpec.from_json(spec.to_json()) == spec
    assert JobSpec.of(**WORDS, environment={name: "3"}).environment == {name: "3"}
    assert "a whole number from 0" in problems_of(max_restarts=-1)
    assert "leave out one of the two" in problems_of(max_restarts=2, environment={name: "3"})


def test_every_problem_is_reported_at_once() -> None:
    text = problems_of(
        job_name="not_a_name",
        hyperparameters={"a": math.nan, "sagemaker_program": "x", "b": object()},
        environment={"1A": "x", "B": 3},
        instance_type="local_proces",
        instance_count=0,
        distribution={"pytorch_xla": {"enabled": True}},
        checkpoint_local_path="here",
        source_dri=".",
        arguments=["fine", "a\0b", "x" * 2500],
    )
    assert "13 problems" in text
    for word in ("job_name", "['a']", "sagemaker_program", "['b']", "1A", "['B']"):
        assert word in text
    for suggestion in ("'local_process'", "'pytorchxla'", "'source_dir'", "'3'"):
        assert f"Did you mean {suggestion}?" in text
    assert "instance_count: got 0" in text
    assert "checkpoint_local_path: got 'here'" in text


@pytest.mark.parametrize(
    "name", ["", "-", "a" * 64, "a_b", "a b", "-a", "a-"], ids=lambda name: name[:5] or "empty"
)
def test_a_job_name_is_what_sagemaker_takes(name: str) -> None:
    assert "job_name" in problems_of(job_name=name)


@pytest.mark.parametrize("value", [math.inf, [1, math.nan], {"a": b"x"}, Path("x"), {1: 2}, "a\0b"])
def test_a_hyperparameter_that_does_not_travel_is_refused(value: object) -> None:
    assert "hyperparameters['v']" in problems_of(hyperparameters={"v": value})


@pytest.mark.parametrize("text", ["a\0", "a\ud800"], ids=["NUL", "surrogate"])
def test_text_that_no_file_or_argument_can_hold_is_refused_everywhere(text: str) -> None:
    refused = problems_of(
        source_dir=text,
        hyperparameters={"value": text, "inside": [{"a": text}]},
        environment={"A": text},
        inputs={"a": text},
        output_path=text,
        checkpoint_s3_uri=text,
        checkpoint_local_path=f"/opt/ml/{text}",
        role=text,
    )
    assert "9 problems" in refused
    assert "entry_point" in problems_of(entry_point=text)
    assert "hyperparameters" in problems_of(hyperparameters={text: 1})


@pytest.mark.parametrize("name", ["", "a b", "a=b", 3, "sagemaker_job_name", "x" * 257])
def test_a_hyperparameter_name_that_makes_no_argument_is_refused(name: object) -> None:
    assert "hyperparameters" in problems_of(hyperparameters={name: 1})


def test_dashes_before_a_name_are_told_to_go() -> None:
    assert "Did you mean 'lr'?" in problems_of(hyperparameters={"--lr": 1})


def test_sizes_are_sagemakers() -> None:
    text = problems_of(
        hyperparameters={f"h{i}": "x" for i in range(101)} | {"long": "x" * 2499},
        environment={"SECRET": "s" * 513},
    )
    assert "101" not in JobSpec.of(**WORDS, hyperparameters={"h": "x" * 2498}).to_json()
    assert "at most 100" in text
    assert "at most 2500" in text
    assert "at most 512" in text
    assert "sss" not in text


def test_a_description_holds_no_session() -> None:
    assert "give it to an Estimator" in problems_of(sagemaker_session=object())


def test_a_repository_is_described_without_a_password() -> None:
    secret = "s3cret"
    text = problems_of(
        git_config={
            "repo": f"https://user:{secret}@example.org/x.git",
            "token": secret,
            "brnch": "main",
            "commit": "--upload-pack=x",
        },
    )
    assert secret not in text
    assert "4 problems" in text
    assert "credential helper" in text
    assert "Did you mean 'branch'?" in text
    assert "git_config: got []" in problems_of(git_config={})
    outside = {"source_dir": "/etc", "entry_point": "../x.py", "dependencies": ["a/../../b"]}
    text = problems_of(git_config={"repo": "https://example.org/x.git"}, **outside)
    assert "3 problems" in text


def test_code_in_a_repository_stays_relative_to_it() -> None:
    config = {"repo": "https://example.org/x.git", "branch": "main"}
    words = WORDS | {"source_dir": "src", "dependencies": ["lib"], "git_config": config}
    spec = JobSpec.of(**words)
    assert (spec.source_dir, spec.entry_point, spec.dependencies) == ("src", "train.py", ("lib",))
    assert JobSpec.from_json(spec.to_json()) == spec


def test_a_word_that_is_missing_is_told_without_the_others() -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.of(job_name="a", environment={"SECRET": "s3cret"})
    assert "entry_point: got None; it is needed." in str(caught.value)
    assert "s3cret" not in str(caught.value)


GROUPS = [
    {"InstanceGroupName": "gpus", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2},
    {"InstanceGroupName": "data", "InstanceType": "ml.c5.18xlarge", "InstanceCount": 3},
]


def test_groups_say_how_many_hosts_there_are() -> None:
    spec = JobSpec.of(**WORDS, instance_groups=GROUPS)
    assert (spec.instance_type, spec.instance_count) == ("ml.p4d.24xlarge", 5)
    assert JobSpec.from_json(spec.to_json()) == spec


def test_a_model_to_start_from_is_a_channel_more() -> None:
    spec = JobSpec.of(**WORDS, inputs="s3://bucket/train", model_uri="s3://bucket/model.tar.gz")
    assert [(item.channel, item.uri) for item in spec.inputs] == [
        ("training", "s3://bucket/train"),
        ("model", "s3://bucket/model.tar.gz"),
    ]
    assert spec.inputs[1].content_type == "application/x-sagemaker-model"
    assert JobSpec.from_json(spec.to_json()) == spec
    (only,) = JobSpec.of(
        **WORDS, model_uri="s3://bucket/m.tar.gz", model_channel_name="base"
    ).inputs
    assert only.channel == "base"
    assert "another model_channel_name" in problems_of(
        inputs={"model": "s3://bucket/x"}, model_uri="s3://bucket/m.tar.gz"
    )


def test_words_for_sagemaker_alone_stand_among_the_others_and_are_copied() -> None:
    subnets = ["subnet-1"]
    words: dict[str, Any] = {"max_run": 3600, "tags": {"team": "vision"}, "volume_kms_key": None}
    spec = JobSpec.of(**WORDS, **words, subnets=subnets)
    subnets.append("subnet-2")
    assert spec.managed == {
        "max_run": 3600,
        "tags": {"team": "vision"},
        "subnets": ["subnet-1"],
    }
    assert JobSpec.from_json(spec.to_json()) == spec


def test_words_for_sagemaker_alone_have_types() -> None:
    text = problems_of(max_run="3600", use_spot_instances=1, tags="team", max_wiat=3)
    assert "4 problems" in text
    for part in ("max_run: got '3600'", "use_spot_instances: got 1", "tags: got 'team'"):
        assert part in text
    assert "Did you mean 'max_wait'?" in text


class TrainingInput:
    """Shaped as SageMaker's SDK v2 shapes it."""

    def __init__(self, uri: str, **config: Any) -> None:
        self.config = config | {
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri}}
        }


def test_a_channel_may_be_an_object_of_sagemakers_sdk() -> None:
    train = TrainingInput(
        "s3://bucket/train",
        ContentType="text/csv",
        InputMode="FastFile",
        ShuffleConfig={"Seed": 3},
    )
    spec = JobSpec.of(**WORDS, inputs={"train": train, "test": "s3://bucket/test"})
    first, second = spec.inputs
    assert (first.uri, first.content_type, first.input_mode, first.shuffle_seed) == (
        "s3://bucket/train",
        "text/csv",
        "FastFile",
        3,
    )
    assert second.uri == "s3://bucket/test"
    assert JobSpec.from_json(spec.to_json()) == spec
    kept = SimpleNamespace(s3_data="s3://bucket/kept", distribution="ShardedByS3Key")
    (only,) = JobSpec.of(**WORDS, inputs=kept).inputs
    assert (only.channel, only.uri, only.distribution) == (
        "training",
        "s3://bucket/kept",
        "ShardedByS3Key",
    )
    other = TrainingInput("s3://bucket/train", HubAccess={"HubContentArn": "x"})
    assert "HubAccess.HubContentArn" in problems_of(inputs=other)


def test_a_bool_is_no_number() -> None:
    assert "instance_count: got True" in problems_of(instance_count=True)


def test_an_unknown_sagemaker_type_is_not_refused() -> None:
    spec = JobSpec.of(**WORDS, instance_type="ml.p9.96xlarge")
    assert spec.instance_type == "ml.p9.96xlarge"


def test_a_spec_is_frozen_and_holds_copies() -> None:
    inner = [1, 2]
    spec = JobSpec.of(**WORDS, hyperparameters={"a": inner})
    inner.append(3)
    assert spec.hyperparameters == {"a": [1, 2]}
    with pytest.raises(ValidationError):
        spec.job_name = "other"  # type: ignore[misc]


def test_places_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = JobSpec.of(**WORDS, inputs="data", output_path="file://out")
    assert [(item.channel, item.path) for item in spec.inputs] == [("training", tmp_path / "data")]
    assert spec.output_path == f"file://{tmp_path}/out"
    assert spec.entry_point == str(tmp_path / "train.py")
    assert spec.program == "train.py"


@pytest.mark.parametrize("place", ["http://x/y", 3, ""])
def test_a_place_is_a_path_or_s3(place: object) -> None:
    assert "inputs['a']" in problems_of(inputs={"a": place})


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "x" * 65])
def test_a_channel_is_named_like_a_directory(name: str) -> None:
    assert "inputs" in problems_of(inputs={name: "data"})


def test_broken_json_is_a_spec_error() -> None:
    with pytest.raises(SpecError):
        JobSpec.from_json("{")


@pytest.mark.parametrize("value", [5, "text", {"a": 1}, [5], [[]]])
@pytest.mark.parametrize(
    "word",
    [
        *("instance_groups", "instance_preferences", "rules", "profiler_rules", "dependencies"),
        *("distribution", "git_config", "source_code", "compute", "debugger_hook_config"),
        *("compiler_config", "inputs", "profiler_config", "mlflow_config"),
    ],
)
def test_a_value_of_another_kind_is_a_problem_like_others(word: str, value: object) -> None:
    try:
        JobSpec.of(**WORDS, **{word: value})
    except SpecError as error:
        assert all(problem.field.startswith(word) for problem in error.problems)


def test_metrics_are_checked_wherever_the_job_runs() -> None:
    text = problems_of(
        metric_definitions=[
            {"Name": "loss", "Regex": "loss (["},
            {"Name": "loss", "Regex": "loss (.*)"},
            {"name": "speed", "Regex": "x"},
            {"Name": "", "Regex": "x"},
        ],
        max_run="long",
    )
    assert "5 problems" in text
    for part in (
        "metric_definitions[0].Regex: got 'loss (['; a regular expression of Python's is needed",
        "unterminated character set at position 6",
        "metric_definitions[1].Name: got 'loss'; each metric needs a name of its own.",
        "metric_definitions[2]: got {'name': 'speed', 'Regex': 'x'}",
        "metric_definitions[3]",
        "max_run: got 'long'",
    ):
        assert part in text, part
