"""Objects of SageMaker's SDKs, known by their attributes: stand-ins shaped as they are."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from trcomp import JobSpec, SpecError, TrainingCompilerConfig

WORDS: dict[str, Any] = {"job_name": "a-job", "entry_point": "train.py"}


def version_2(**attributes: Any) -> Any:
    """Any object whose class is named TrainingCompilerConfig."""
    return type("TrainingCompilerConfig", (), attributes)()


class Form:
    """An object of SDK v2 that gives the request's own form."""

    def __init__(self, **form: Any) -> None:
        self._form = form

    def _to_request_dict(self) -> dict[str, Any]:
        return self._form


class Rule:
    def to_debugger_rule_config_dict(self) -> dict[str, Any]:
        return {"RuleConfigurationName": "d", "RuleEvaluatorImage": "i"}


class ProfilerRule:
    def to_profiler_rule_config_dict(self) -> dict[str, Any]:
        return {"RuleConfigurationName": "p", "RuleEvaluatorImage": "i"}


class Unassigned:
    """What SDK v3 has in place of nothing."""


class Model:
    """An object of SDK v3: what it has is in model_fields."""

    model_fields: ClassVar[dict[str, Any]] = {}

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def version_3(**attributes: Any) -> Any:
    kind = type("Model", (Model,), {"model_fields": dict.fromkeys(attributes)})
    return kind(**attributes)


def test_the_compilers_config_of_sdk_v2() -> None:
    for enabled in (True, False):
        given = version_2(enabled=enabled, debug=True)
        spec = JobSpec.of(**WORDS, compiler_config=given)
        assert spec.compiler_config == TrainingCompilerConfig(enabled, debug=True)


def test_objects_of_sdk_v2_become_the_requests_own_form() -> None:
    group = Form(InstanceGroupName="g", InstanceType="ml.p4d.24xlarge", InstanceCount=2)
    group.instance_group_name = "g"  # type: ignore[attr-defined]
    spec = JobSpec.of(
        **WORDS,
        instance_groups=[group],
        distribution={"pytorchxla": {"enabled": True}, "instance_groups": [group]},
        rules=[Rule(), ProfilerRule(), {"RuleConfigurationName": "own", "RuleEvaluatorImage": "i"}],
        debugger_hook_config=Form(S3OutputPath="s3://b/d", LocalPath=None),
        profiler_config=Form(S3OutputPath="s3://b/p"),
        tensorboard_output_config=Form(S3OutputPath="s3://b/t"),
    )
    assert spec.instance_count == 2
    assert spec.distribution == {"pytorchxla": {"enabled": True}, "instance_groups": ["g"]}
    managed = spec.managed
    assert [rule["RuleConfigurationName"] for rule in managed["rules"]] == ["d", "own"]
    assert [rule["RuleConfigurationName"] for rule in managed["profiler_rules"]] == ["p"]
    assert managed["debugger_hook_config"] == {"S3OutputPath": "s3://b/d"}
    assert JobSpec.from_json(spec.to_json()) == spec


def test_objects_of_sdk_v3_say_several_words() -> None:
    spec = JobSpec.of(
        job_name="a",
        source_code=version_3(source_dir="s3://bucket/code", entry_script="main.py", command=None),
        compute=version_3(
            instance_type="ml.p4d.24xlarge",
            instance_count=2,
            volume_size_in_gb=100,
            keep_alive_period_in_seconds=Unassigned(),
            enable_managed_spot_training=True,
        ),
        networking=version_3(subnets=["s"], security_group_ids=["g"]),
        stopping_condition=version_3(max_runtime_in_seconds=60, max_wait_time_in_seconds=120),
    )
    assert (spec.source_dir, spec.entry_point) == ("s3://bucket/code", "main.py")
    assert (spec.instance_type, spec.instance_count) == ("ml.p4d.24xlarge", 2)
    assert spec.managed == {
        "volume_size": 100,
        "use_spot_instances": True,
        "subnets": ["s"],
        "security_group_ids": ["g"],
        "max_run": 60,
        "max_wait": 120,
    }


@pytest.mark.parametrize("compute", [version_3(instance_type="ml.p4d.24xlarge"), "ml.p4d.24xlarge"])
def test_what_two_words_say_is_refused(compute: Any) -> None:
    with pytest.raises(SpecError, match="that says what no other word says"):
        JobSpec.of(**WORDS, instance_type="ml.p5.48xlarge", compute=compute)


@pytest.mark.parametrize(("word", "value"), [("command", "ls"), ("requirements", "other.txt")])
def test_what_a_source_code_asks_for_in_vain_is_refused(word: str, value: str) -> None:
    given = version_3(source_dir="s3://b/c", entry_script="main.py", **{word: value})
    with pytest.raises(SpecError, match=word):
        JobSpec.of(job_name="a", source_code=given)
