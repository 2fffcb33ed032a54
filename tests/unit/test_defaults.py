"""Words that a project keeps in a file: which win, and where each comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trcomp import SpecError, defaults
from trcomp.cli import main

PROJECT = """
[project]
name = "x"

[tool.trcomp]
role = "arn:aws:iam::123456789012:role/R"
image_uri = "image"
instance_type = "ml.m5.large"
source_dir = "src"
environment = {MY_TOKEN = "s3cret", COLOUR = "blue"}
hyperparameters = {steps = 5, lr = 0.1}

[tool.trcomp.profiles.large]
instance_type = "ml.p4d.24xlarge"
instance_count = 2
max_run = 3600
compiler_config = {debug = true}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TRCOMP_PROFILE", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "train.py").write_text("")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path / "src" / "deep")
    return tmp_path


def planned(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    assert main(["plan", "train.py", *options]) == 0
    plan: dict[str, object] = json.loads(capsys.readouterr().out)
    return plan


def test_the_nearest_file_the_profile_the_environment_and_what_is_typed_in_this_order(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRCOMP_WORD_MAX_RUN", "60")
    monkeypatch.setenv("TRCOMP_WORD_VOLUME_SIZE", "50")
    typed = ["--json", "--profile", "large", "--set", "volume_size=70", "--env", "COLOUR=red"]
    plan = planned(capsys, *typed, "--", "--lr", "0.5")
    request = plan["request"]
    assert isinstance(request, dict)
    assert request["ResourceConfig"] == {
        "InstanceType": "ml.p4d.24xlarge",
        "InstanceCount": 2,
        "VolumeSizeInGB": 70,
    }
    assert request["StoppingCondition"]["MaxRuntimeInSeconds"] == 60
    assert request["Environment"] == {"COLOUR": "red", "MY_TOKEN": "***"}
    assert request["HyperParameters"]["steps"] == "5"
    assert request["HyperParameters"]["lr"] == '"0.5"'
    assert request["HyperParameters"]["sagemaker_training_compiler_debug_mode"] == "true"
    plain = planned(capsys, "--json", "--instance-type", "local_process")
    assert plain["backend"] == "process"


def test_a_file_of_trcomps_own_stands_before_the_projects(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "trcomp.toml").write_text('role = "arn:aws:iam::123456789012:role/Own"\n')
    assert main(["config", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "role": {
            "value": "arn:aws:iam::123456789012:role/Own",
            "origin": str(project / "trcomp.toml"),
        }
    }


def test_config_show_says_where_each_value_comes_from_and_no_secret(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRCOMP_PROFILE", "large")
    monkeypatch.setenv("TRCOMP_WORD_ROLE", "mine")
    assert main(["config", "show"]) == 0
    shown = capsys.readouterr().out
    place = project / "pyproject.toml"
    assert 'role = "mine"  # TRCOMP_WORD_ROLE\n' in shown
    assert f'image_uri = "image"  # {place} [tool.trcomp]\n' in shown
    assert f"max_run = 3600  # {place} [tool.trcomp], profile large\n" in shown
    assert f'source_dir = "{project / "src"}"' in shown
    assert "s3cret" not in shown


def test_a_wrong_word_is_told_with_its_place(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "trcomp.toml").write_text("instance_kount = 2\nmax_run = 'long'\n")
    assert main(["plan", "train.py"]) == 64
    told = capsys.readouterr().err
    assert f"instance_kount ({project / 'trcomp.toml'})" in told
    assert "Did you mean 'instance_count'?" in told
    assert f"max_run ({project / 'trcomp.toml'})" in told


def test_a_profile_that_is_not_there_and_a_file_that_is_broken(project: Path) -> None:
    with pytest.raises(SpecError, match=r"the profiles large.*Did you mean 'large'"):
        defaults.found(project, {}, "larg")
    (project / "trcomp.toml").write_text("role = \n")
    with pytest.raises(SpecError, match=r"trcomp\.toml: got .*cannot be read"):
        defaults.found(project, {})
    assert defaults.found(Path("/"), {}) == {}
    with pytest.raises(SpecError, match="no profiles"):
        defaults.found(Path("/"), {"TRCOMP_PROFILE": "large"})
