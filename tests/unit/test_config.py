"""TrainingCompilerConfig and distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trcomp import JobSpec, SpecError, TrainingCompilerConfig
from trcomp.config import asked_for, distribution_problems


def test_bool_is_enabled() -> None:
    assert TrainingCompilerConfig()
    assert not TrainingCompilerConfig(enabled=False)


def test_values_must_be_bools_and_all_are_named() -> None:
    with pytest.raises(SpecError, match="3 problems"):
        TrainingCompilerConfig(enabled="yes", debug=1, cuda_to_xla="cuda")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "cache",
    [None, "off", "~/executables", Path("here"), "s3://my-bucket", "s3://b.c.d/team/vit=1/"],
)
def test_where_executables_may_be_kept(cache: str | Path | None) -> None:
    assert TrainingCompilerConfig(cache=cache).cache == cache


@pytest.mark.parametrize(
    "cache",
    [
        *["", 3, True, "s3://", "s3:///prefix", "s3://Bucket/x", "s3://ab/x", "s3://a..b/x"],
        *["s3://10.0.0.1/x", "s3://key:secret@bucket/x", "s3://bucket/x?versionId=1"],
        *[
            "s3://bucket/../other",
            "s3://bucket/a//b",
            "s3://bucket/a b",
            "s3://bucket/" + "x" * 600,
        ],
    ],
)
def test_where_executables_cannot_be_kept_is_refused(cache: Any) -> None:
    with pytest.raises(SpecError, match=r"compiler_config\.cache"):
        TrainingCompilerConfig(cache=cache)


def test_all_that_is_wrong_with_a_place_in_s3_is_said() -> None:
    with pytest.raises(SpecError, match="4 problems"):
        TrainingCompilerConfig(debug=1, cache="s3://B/../a b")  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [(1, 5), (15, 10), (3,), (2.0, 3), "10", "ten-15", 7, True])
def test_steps_that_cannot_be_traced_are_refused(steps: Any) -> None:
    with pytest.raises(SpecError, match=r"compiler_config\.profile_steps.*2 at least"):
        TrainingCompilerConfig(profile_steps=steps)


def test_steps_to_trace_are_the_same_from_json() -> None:
    config = TrainingCompilerConfig(profile_steps=(10, 15))
    spec = JobSpec.of(job_name="a", entry_point="train.py", compiler_config=config)
    assert JobSpec.from_json(spec.to_json()) == spec
    listed: Any = [10, 15]
    assert TrainingCompilerConfig(profile_steps=listed) == config


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"pytorchxla": {"enabled": False}},
        {"trcomp": {"enabled": True, "debug": True, "cuda_to_xla": False, "cache": "off"}},
        {"torch_distributed": {"enabled": True}, "instance_groups": ["gpus"]},
    ],
)
def test_what_distribution_takes(value: Any) -> None:
    assert distribution_problems(value) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"trcomp": {"profile_steps": [1, 5]}}, "2 at least"),
        ({"pytorchXLA": {"enabled": True}}, "Did you mean 'pytorchxla'?"),
        ({"pytorchxla": {"enable": True}}, "Did you mean 'enabled'?"),
        ({"pytorchxla": {"enabled": "true"}}, "True or False"),
        ({"pytorchxla": True}, "is needed"),
        ({"smdistributed": {"dataparallel": {"enabled": True}}}, "starts no such runtime"),
        ({"trcomp": {"debg": True}}, "Did you mean 'debug'?"),
        ({"trcomp": {"cache": 3}}, "compiler_config.cache"),
        ({"torch_distribute": {"enabled": True}}, "Did you mean 'torch_distributed'?"),
        ({"instance_groups": "gpus"}, "a list of names"),
        (
            {"torch_distributed": {"enabled": True}, "pytorchxla": {"enabled": True}},
            "leave one out",
        ),
        ("pytorchxla", "is needed"),
    ],
)
def test_what_distribution_refuses(value: object, text: str) -> None:
    (problem,) = distribution_problems(value)
    assert text in str(problem)


@pytest.mark.parametrize(
    ("value", "config"),
    [
        (None, None),
        ({"pytorchxla": {"enabled": False}}, None),
        ({"pytorchxla": {"enabled": True}}, TrainingCompilerConfig()),
        ({"trcomp": {"debug": True}}, TrainingCompilerConfig(debug=True)),
        ({"trcomp": {"enabled": False}}, TrainingCompilerConfig(enabled=False)),
        ({"torch_distributed": {"enabled": True}}, TrainingCompilerConfig(enabled=False)),
    ],
)
def test_distribution_means_what_it_says(value: Any, config: TrainingCompilerConfig | None) -> None:
    assert asked_for(value) == config
    spec = JobSpec.of(job_name="a", entry_point="train.py", distribution=value)
    assert spec.compiler_config == config
    assert JobSpec.from_json(spec.to_json()) == spec
    own = TrainingCompilerConfig(cache="off")
    words: dict[str, Any] = {"job_name": "a", "entry_point": "train.py", "compiler_config": own}
    assert JobSpec.of(**words, distribution=value).compiler_config == own
