"""Estimator: SageMaker's words, every problem at once, nothing shared with the caller."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from trcomp import Estimator, OutOfScopeError, SpecError, TrainingCompilerConfig, out_of_scope
from trcomp.huggingface import HuggingFace
from trcomp.pytorch import PyTorch


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    path = tmp_path / "train_it.py"
    path.write_text("")
    return path


def problems_of(*args: Any, **words: Any) -> str:
    with pytest.raises(SpecError) as caught:
        Estimator(*args, **words)
    return str(caught.value)


def test_every_problem_of_words_files_and_backend_is_reported_at_once(tmp_path: Path) -> None:
    text = problems_of(
        "missing.py",
        tmp_path / "nowhere",
        instance_type="local",
        hyperparameter={"a": 1},
        environment={"A": 1},
        max_wiat=3,
        gpus=2,
        output_path="s3://bucket/x",
    )
    assert "6 problems" in text
    assert "Did you mean 'hyperparameters'?" in text
    assert "instance_type='local_gpu' has GPUs" in text
    assert "there is no such directory" in text
    assert "S3 is not supported yet" in text


def test_a_local_job_takes_sagemakers_words_but_for_what_it_cannot_honour(script: Path) -> None:
    words: dict[str, Any] = {
        "role": "arn:aws:iam::123456789012:role/R",
        "image_uri": "image",
        "max_run": 60,
        "subnets": ["subnet-1"],
        "tags": {"team": "vision"},
        "use_spot_instances": True,
    }
    Estimator(script, **words)
    text = problems_of(
        script, **words, enable_network_isolation=True, container_arguments=["x"], input_mode="Pipe"
    )
    assert "3 problems" in text
    for word in ("enable_network_isolation", "container_arguments", "input_mode"):
        assert f"{word}: got" in text


@pytest.mark.parametrize(
    ("kind", "versions"),
    [
        (PyTorch, {"framework_version": "1.13.1", "py_version": "py39"}),
        (HuggingFace, {"transformers_version": "4.21.1", "pytorch_version": "1.11.0"}),
    ],
)
def test_sdk_v2s_estimators_take_versions_and_say_that_they_choose_no_image(
    script: Path, kind: type[Estimator], versions: dict[str, Any]
) -> None:
    words: dict[str, Any] = {"entry_point": script, "hyperparameters": {"lr": 0.1}}
    words |= {"compiler_config": TrainingCompilerConfig(), "image_uri": "image"}
    with pytest.warns(UserWarning, match="no image is chosen by it"):
        estimator = kind(**words, **versions)
    spec = estimator.to_spec(job_name="a")
    plain = Estimator(**words).to_spec(job_name="a")
    assert spec == plain.model_copy(update={"managed": {**plain.managed, **versions}})
    kind(**words)
    with pytest.raises(SpecError, match="there is no such word") as caught:
        kind(entry_point="missing.py", framwork_version="1")
    assert "there is no such file" in str(caught.value)


def test_tensorflow_is_refused(script: Path) -> None:
    with pytest.raises(SpecError, match="trcomp trains PyTorch"):
        HuggingFace(entry_point=script, tensorflow_version="2.6.3")


def test_compiler_config_of_another_sdk_is_refused(script: Path) -> None:
    assert "compiler_config" in problems_of(script, compiler_config=object())


def test_two_estimators_from_one_dict_are_independent(script: Path) -> None:
    words = {"lr": 0.1, "layers": [1]}
    first = Estimator(script, hyperparameters=words)
    second = Estimator(script, hyperparameters=words)
    first.set_hyperparameters(lr=0.2)
    words["layers"].append(2)  # type: ignore[attr-defined]
    assert second.to_spec().hyperparameters == {"lr": 0.1, "layers": [1]}
    assert first.to_spec().hyperparameters == {"lr": 0.2, "layers": [1]}
    assert words == {"lr": 0.1, "layers": [1, 2]}


def test_hyperparameters_are_a_copy_and_keep_their_types(script: Path) -> None:
    estimator = Estimator(script, hyperparameters={"a": [1]})
    estimator.hyperparameters()["a"].append(2)
    estimator.set_hyperparameters(s="text", n=1)
    assert estimator.hyperparameters() == {"a": [1], "s": "text", "n": 1}


def test_a_refused_hyperparameter_changes_nothing(script: Path) -> None:
    estimator = Estimator(script, hyperparameters={"a": 1})
    with pytest.raises(SpecError):
        estimator.set_hyperparameters(b=float("nan"))
    assert estimator.hyperparameters() == {"a": 1}


def test_jobs_are_named_after_the_script_and_the_time(script: Path) -> None:
    assert re.fullmatch(r"train-it-\d{4}(-\d\d){5}-\d{3}", Estimator(script).to_spec().job_name)
    named = Estimator(script, base_job_name="vit").to_spec()
    assert named.job_name.startswith("vit-20")
    long = Estimator(script, base_job_name="b" * 63).to_spec()
    assert len(long.job_name) <= 63


def test_a_base_name_that_makes_no_job_name_is_named_itself(script: Path) -> None:
    text = problems_of(script, base_job_name="my_model")
    assert "base_job_name: got 'my_model'" in text
    assert "1 problem" in text


def test_inputs_are_checked_before_anything_starts(script: Path, tmp_path: Path) -> None:
    estimator = Estimator(script)
    with pytest.raises(SpecError) as caught:
        estimator.fit({"train": tmp_path / "no", "b/c": str(tmp_path)}, job_name="a_b")
    assert "2 problems" in str(caught.value)
    assert estimator.latest_training_job is None
    assert not (tmp_path / "home").exists()


def test_inputs_is_a_path_a_uri_or_a_dict(script: Path, tmp_path: Path) -> None:
    estimator = Estimator(script)
    for inputs in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
        (channel,) = estimator.to_spec(inputs).inputs
        assert (channel.channel, channel.path) == ("training", tmp_path)
    channels = estimator.to_spec({"a": tmp_path, "b": f"file://{tmp_path}"}).inputs
    assert [channel.channel for channel in channels] == ["a", "b"]


def test_unknown_logs_are_refused(script: Path) -> None:
    with pytest.raises(SpecError, match="Did you mean 'None'"):
        Estimator(script).fit(logs="Nome")


def test_variables_that_trcomp_sets_itself_are_refused(script: Path) -> None:
    assert "TRAINING_JOB_NAME" in problems_of(script, environment={"TRAINING_JOB_NAME": "x"})


def test_a_checkpoint_path_outside_the_tree_is_refused_locally(script: Path) -> None:
    assert "checkpoint_local_path" in problems_of(script, checkpoint_local_path="/tmp/c")


def test_role_is_not_needed_and_config_is_kept(script: Path) -> None:
    config = TrainingCompilerConfig(enabled=False)
    spec = Estimator(script, role="arn:x", compiler_config=config).to_spec()
    assert spec.compiler_config == config


def test_a_value_that_cannot_even_be_copied_is_a_problem_like_others(script: Path) -> None:
    assert "hyperparameters['lock']" in problems_of(script, hyperparameters={"lock": Lock()})


@pytest.mark.parametrize("name", sorted(out_of_scope.METHODS))
def test_what_sdk_v2_could_beyond_training_names_what_does_it_now(name: str, script: Path) -> None:
    estimator = Estimator(script)
    assert not hasattr(estimator, name)
    with pytest.raises(OutOfScopeError, match="SageMaker's SDK v3") as caught:
        getattr(estimator, name)
    assert caught.value.hint is not None
    with pytest.raises(AttributeError, match="no attribute 'feet'"):
        _ = estimator.feet


def test_without_a_job_there_is_nothing_to_stop_or_to_show(script: Path) -> None:
    estimator = Estimator(script)
    for call in (estimator.stop, estimator.logs):
        with pytest.raises(SpecError, match="call fit first"):
            call()


def test_a_session_must_be_one(script: Path) -> None:
    assert "sagemaker_session: got 'str'" in problems_of(script, sagemaker_session="default")


def test_modules_beside_a_script_that_goes_alone_are_named(script: Path) -> None:
    script.write_text("import os, model\nfrom layers.norm import Norm\nfrom shared import x\n")
    (script.parent / "layers").mkdir()
    for name in ("model.py", "layers/__init__.py", "shared.py", "os_of_mine.py"):
        (script.parent / name).write_text("")
    shared = str(script.parent / "shared.py")
    with pytest.warns(UserWarning) as caught:
        Estimator(script, dependencies=[shared])
    (said,) = [str(warning.message) for warning in caught]
    assert said == (
        "train_it.py imports from layers/ and model.py, which without source_dir stays behind: "
        f"source_dir='{script.parent}' sends the whole directory."
    )
    Estimator(script.name, script.parent)
