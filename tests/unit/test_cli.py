"""The command line: arguments as they are, exit codes, errors without tracebacks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.shell_completion import ShellComplete
from hypothesis import given
from hypothesis import strategies as st

from trcomp.backends import docker, process
from trcomp.cli import cli, main
from trcomp.contract import to_argv
from trcomp.job_options import script_words

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,10}", fullmatch=True)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return tmp_path


@given(args=st.lists(TEXT | NAMES.map(lambda name: f"--{name}") | TEXT.map(lambda t: f"--a={t}")))
def test_arguments_reach_the_script_as_they_are(args: list[str]) -> None:
    words = script_words(args)
    assert [*to_argv(words["hyperparameters"]), *words.get("arguments", ())] == args


@given(values=st.dictionaries(NAMES, TEXT, max_size=6))
def test_plain_pairs_are_hyperparameters(values: dict[str, str]) -> None:
    found = script_words(to_argv(values))
    assert found == {"hyperparameters": values}
    assert list(found["hyperparameters"]) == list(values)


@pytest.mark.parametrize(
    "args",
    [
        ["data"],
        ["--fp16"],
        ["--lr=0.1"],
        ["--shift", "-0.5"],
        ["--layer", "1", "--layer", "2"],
        ["-v", "1"],
        ["--steps", "5", "--", "--fp16"],
        ["--sagemaker_program", "mine.py"],
        ["--text", "x" * 2499],
    ],
)
def test_all_others_travel_as_one_list(args: list[str]) -> None:
    assert script_words(args) == {"hyperparameters": {}, "arguments": args}


def test_a_plan_shows_the_script_as_it_will_be_started(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["data", "--fp16", "--layer", "1", "--layer=2", "--api-key", "s3cret", "--token=s3cret"]
    assert main(["plan", "train.py", "--", *args]) == 0
    text = capsys.readouterr().out
    shown = "train.py data --fp16 --layer 1 --layer=2 --api-key '***' '--token=***'"
    assert f"  script    {shown}\n" in text
    assert main(["plan", "train.py", "--json", "--", *args]) == 0
    text = capsys.readouterr().out
    (host,) = json.loads(text)["hosts"]
    assert host["contract"]["settings"]["arguments"][:2] == ["data", "--fp16"]
    assert "s3cret" not in text


def test_arguments_of_a_file_give_way_to_typed_ones(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "trcomp.toml").write_text('arguments = ["--fp16"]\nhyperparameters = {lr = 0.1}\n')
    for typed, shown in ("", "--fp16"), ("x", "x"), ("--a 1", "--a 1"):
        assert main(["plan", "train.py", "--", *typed.split()]) == 0
        assert f"train.py --lr 0.1 {shown}\n" in capsys.readouterr().out


def test_plan_prints_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["plan", "train.py", "--job-name", "j", "--devices", "2", "--env", "A_TOKEN=s3cret"]
    assert main([*options, "--json", "--", "--steps", "5"]) == 0
    plan = json.loads(capsys.readouterr().out)
    (host,) = plan["hosts"]
    assert host["environment"]["GPU_NUM_DEVICES"] == "2"
    assert host["environment"]["A_TOKEN"] == "***"
    assert host["contract"]["hyperparameters"] == {"steps": '"5"'}
    assert host["contract"]["settings"]["compiler_enabled"] is True
    assert main([*options, "--once-per-host"]) == 0
    assert "algo-1" in capsys.readouterr().out


def test_plan_of_a_wrong_job_is_64_and_names_everything(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--job-name", "a_b", "--instance-count", "0", "--env", "X", "--input", "missing"]
    assert main(["plan", "nope.py", *options, "--", "-x", "y" * 2500]) == 64
    errors = capsys.readouterr().err
    assert "6 problems" in errors
    for field in ("entry_point", "job_name", "instance_count", "--env", "inputs", "arguments"):
        assert field in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    "args",
    [["plan"], ["run", "train.py", "--nope"], ["plan", "train.py", "--devices", "0"], ["nope"]],
)
def test_wrong_usage_is_64(args: list[str]) -> None:
    assert main(args) == 64


def test_options_that_once_per_host_would_leave_without_effect_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--debug", "--no-compiler", "--no-cuda-to-xla"]
    assert main(["plan", "train.py", "--once-per-host", *options]) == 64
    assert "3 problems" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "maps"), [([], True), (["--no-cuda-to-xla"], False)])
def test_cuda_is_left_to_torch_when_asked(
    options: list[str], maps: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "train.py", *options, "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["hosts"][0]["contract"]["settings"]["cuda_to_xla"]
        is maps
    )


@pytest.mark.parametrize("command", ["status", "logs", "stop", "report", "remove"])
def test_an_unknown_job_is_64_and_says_where_to_look(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "process://nope"]) == 64
    assert "trcomp list" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("handle", "code"), [("slurm://x", 69), ("docker://x", 64), ("process://", 64), ("../x", 64)]
)
def test_what_is_no_handle(handle: str, code: int) -> None:
    assert main(["status", handle]) == code


def test_list_without_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_env_prints_every_rank_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["env", "--instance-type", "ml.p4d.24xlarge", "--instance-count", "2"]
    assert main([*options, "--explain"]) == 0
    text = capsys.readouterr().out
    assert text.count("rank ") >= 16
    assert "WORLD_SIZE=16 " in text
    assert main([*options, "--json", "--rank", "9", "--old-image"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["host"], row["local_rank"]) == ("algo-2", 1)
    assert "XRT_WORKERS" in {variable["name"] for variable in row["variables"]}


def test_env_of_an_unknown_type_warns_and_of_no_type_is_64(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["env", "--instance-type", "ml.p9.96xlarge", "--devices", "3"]) == 0
    captured = capsys.readouterr()
    assert "not in trcomp's table" in captured.err
    assert "WORLD_SIZE=3" in captured.out
    assert main(["env", "--instance-type", "p4d"]) == 64


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_what_completes_commands(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    assert "_TRCOMP_COMPLETE" in capsys.readouterr().out


def test_jobs_are_completed_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(typed: str, time: int) -> SimpleNamespace:
        return SimpleNamespace(typed=typed, transitions=[SimpleNamespace(time=time)])

    of_processes = [record("vit-1", 1), record("vit-2", 3), record("other", 4)]
    monkeypatch.setattr(process, "records", lambda: of_processes)
    monkeypatch.setattr(docker, "records", lambda: [record("docker://vit-3", 2)])
    done = ShellComplete(cli, {}, "trcomp", "_TRCOMP_COMPLETE")
    found = [item.value for item in done.get_completions(["status"], "vit")]
    assert found == ["vit-2", "vit-1"]
    found = [item.value for item in done.get_completions(["status"], "docker")]
    assert found == ["docker://vit-3"]
    assert "download" in [item.value for item in done.get_completions([], "do")]


@pytest.mark.parametrize(("typed", "meant"), [("rm", "remove"), ("ps", "list"), ("lgos", "logs")])
def test_a_word_of_another_tool_is_told_ours(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([typed, "vit"]) == 64
    assert f"No such command '{typed}'. Did you mean '{meant}'?" in capsys.readouterr().err
    completed = ShellComplete(cli, {}, "trcomp", "_TRCOMP_COMPLETE").get_completions([typed], "v")
    assert completed == []
