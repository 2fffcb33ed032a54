"""The plan: the real request, deterministic, without effects, secrets masked."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trcomp import (
    BackendUnavailableError,
    Estimator,
    MissingExtraError,
    SpecError,
    TrainingCompilerConfig,
    flags,
)
from trcomp.backends import process, source
from trcomp.backends.base import masked, masked_arguments
from trcomp.backends.local_jobs import inherited
from trcomp.backends.local_plan import LocalPlan
from trcomp.backends.process_plan import host_addresses


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRCOMP_HOME", str(tmp_path / "home"))
    directory = tmp_path / "code"
    directory.mkdir()
    (directory / "train.py").write_text("print()\n")
    return directory


def plan_of(code: Path, **words: Any) -> LocalPlan:
    plan = Estimator("train.py", code, **words).plan(job_name="job")
    assert isinstance(plan, LocalPlan)
    return plan


def test_equal_words_make_equal_plans_and_nothing_happens(code: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    first, second = plan_of(code, instance_count=3), plan_of(code, instance_count=3)
    assert first == second
    assert first.to_text() == second.to_text()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_plan_survives_the_way_to_another_process(code: Path) -> None:
    plan = plan_of(
        code,
        hyperparameters={"z": [1, {"a": None}], "a": "x"},
        compiler_config=TrainingCompilerConfig(),
        instance_count=12,
        checkpoint_s3_uri=code / "checkpoints",
    )
    read = LocalPlan.model_validate_json(plan.model_dump_json())
    assert read == plan
    assert list(read.hosts[0].contract.hyperparameters) == ["z", "a"]


def test_secrets_are_masked_when_printed_and_sent_in_full(code: Path) -> None:
    plan = plan_of(
        code,
        environment={"HF_TOKEN": "s3cret", "AWS_SECRET_ACCESS_KEY": "s3cret", "TOKENIZERS": "fast"},
        hyperparameters={"api_key": "s3cret"},
    )
    for text in (plan.to_text(), plan.to_json(), repr(plan), str(plan)):
        assert "s3cret" not in text
    assert "TOKENIZERS=fast" in plan.to_text()
    assert plan.hosts[0].environment["HF_TOKEN"] == "s3cret"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *(
            (name, True)
            for name in ("PGPASSWORD", "db_password_file", "MYSQL_PWD", "sshPassphrase")
        ),
        *((name, True) for name in ("api-key", "HF_TOKEN", "client_secret", "ACCESSKEY")),
        *((name, False) for name in ("PWD", "tokenizer", "max_tokens", "keys", "compass")),
    ],
)
def test_what_is_masked_follows_from_its_name(name: str, secret: bool) -> None:
    assert masked({name: "value"}) == {name: "***" if secret else "value"}
    assert (masked_arguments([f"--{name}", "value"])[1] == "***") == secret


def test_json_holds_what_travels(code: Path) -> None:
    plan = plan_of(
        code,
        hyperparameters={"b": True, "s": "text"},
        compiler_config=TrainingCompilerConfig(enabled=False, debug=True, cache="executables"),
        distribution={"pytorchxla": {"enabled": True}},
    )
    contract = json.loads(plan.to_json())["hosts"][0]["contract"]
    assert contract["hyperparameters"] == {"b": "true", "s": '"text"'}
    settings = contract["settings"]
    assert settings["program"] == "train.py"
    assert settings["compiler_enabled"] is False
    assert settings["compiler_debug"] is True
    assert settings["compiler_cache"] == str(Path("executables").absolute())
    assert settings["pytorchxla_enabled"] is True


def test_a_plan_says_where_executables_are_kept(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def line(**words: Any) -> str:
        lines = plan_of(code, **words).to_text().splitlines()
        return next((text for text in lines if text.startswith("cache")), "")

    def with_cache(cache: str | None) -> str:
        return line(compiler_config=TrainingCompilerConfig(cache=cache))

    assert with_cache("s3://bucket/team/").endswith(" s3://bucket/team/")
    assert with_cache("here").endswith(f" {Path('here').absolute()}")
    assert with_cache("off").endswith(" off")
    monkeypatch.delenv(flags.CACHE.name)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert with_cache(None).endswith(" /caches/trcomp")
    assert line(environment={flags.CACHE.name: "s3://bucket"}).endswith(" s3://bucket")
    assert line(compiler_config=TrainingCompilerConfig(enabled=False)) == ""


def test_without_compiler_config_the_container_hears_of_none(code: Path) -> None:
    assert plan_of(code).hosts[0].contract.settings.compiler_enabled is None


def test_the_files_are_the_code_without_what_is_no_code(code: Path, tmp_path: Path) -> None:
    for name in ("pkg/mod.py", ".git/HEAD", "__pycache__/x.pyc", "venv/pyvenv.cfg", "venv/x.py"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("12345")
    (tmp_path / "shared.py").write_text("s")
    (code / "shared.py").symlink_to(tmp_path / "shared.py")
    (code / "pkg" / "loop").symlink_to(code)
    plan = plan_of(code)
    sizes = {file.destination: file.size_bytes for file in plan.files}
    assert sizes == {"pkg/mod.py": 5, "shared.py": 1, "train.py": 8}


def test_without_source_dir_the_script_goes_alone(code: Path) -> None:
    plan = Estimator(code / "train.py").plan(job_name="job")
    assert [file.destination for file in plan.files] == ["train.py"]


@given(job=st.from_regex(r"[a-z][a-z0-9]{0,30}", fullmatch=True), count=st.integers(1, 600))
def test_every_host_of_a_job_has_a_loopback_address_of_its_own(job: str, count: int) -> None:
    addresses = host_addresses(job, [f"algo-{index}" for index in range(count)])
    parts = [[int(part) for part in address.split(".")] for address in addresses.values()]
    assert len(set(addresses.values())) == count
    assert all(p[0] == 127 and 1 <= p[1] <= 254 and 1 <= p[3] <= 254 for p in parts)


def test_two_jobs_have_different_addresses() -> None:
    assert host_addresses("a", ["algo-1"]) != host_addresses("b", ["algo-1"])


def test_a_job_inherits_nothing_of_an_enclosing_job() -> None:
    outer = {
        "PATH": "/bin",
        "TRCOMP_PREFETCH": "3",
        "SM_HP_LR": "1",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "x",
        "TRCOMP_WORKER": "1",
        "TRCOMP_TOPOLOGY": "{}",
        "SAGEMAKER_BASE_DIR": "/x",
    }
    assert inherited(outer) == {"PATH": "/bin", "TRCOMP_PREFETCH": "3"}


@pytest.mark.parametrize("name", ["train.sh", "../train.py", "missing.py", "sub"])
def test_the_entry_point_is_a_script_inside_the_source(code: Path, name: str) -> None:
    with pytest.raises(SpecError, match="entry_point"):
        Estimator(name, code)


def test_a_misspelt_script_is_suggested(code: Path) -> None:
    with pytest.raises(SpecError, match=r"Did you mean 'train\.py'"):
        Estimator("trian.py", code)


def test_a_script_is_suggested_by_its_name_wherever_it_lies(code: Path) -> None:
    (code / "deep").mkdir()
    (code / "deep" / "evaluate.py").write_text("")
    with pytest.raises(SpecError, match=r"Did you mean 'train\.py'"):
        Estimator("somewhere/else/train.py", code)
    with pytest.raises(SpecError, match=r"Did you mean 'deep/evaluate\.py'"):
        Estimator("evaluate.py", code)
    with pytest.raises(SpecError, match=r"Did you mean '.*/code/train\.py'"):
        Estimator(code / "trian.py")


def test_the_ignore_file_says_what_else_is_no_code(code: Path) -> None:
    for name in (".env", "data/a.bin", "notes.txt", "pkg/data/b.py", "pkg/keep.txt"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("")
    names = [file.destination for file in plan_of(code).files]
    assert names == ["data/a.bin", "notes.txt", "pkg/data/b.py", "pkg/keep.txt", "train.py"]
    (code / ".trcompignore").write_text("# comment\n/data/\n*.txt\n!keep.txt\n!.env\n")
    names = [file.destination for file in plan_of(code).files]
    assert names == [".env", "pkg/data/b.py", "pkg/keep.txt", "train.py"]
    (code / ".trcompignore").write_text("!\n")
    with pytest.raises(SpecError, match=r"\.trcompignore'; Invalid git pattern: '!'"):
        plan_of(code)


def test_a_directory_that_cannot_be_read_is_left_behind() -> None:
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "train.py").write_text("")
        (Path(place) / "closed" / "data").mkdir(parents=True)
        (Path(place) / "link").symlink_to(Path(place) / "closed" / "data")
        os.chmod(place, 0o755)
        os.chmod(Path(place) / "closed", 0)
        try:
            # Everything is open to root.
            os.seteuid(65534 if root else os.geteuid())
            plan = plan_of(Path(place))
            with pytest.raises(SpecError, match=r"Did you mean 'train\.py'"):
                Estimator("trian.py", place).plan()
        finally:
            os.seteuid(0 if root else os.geteuid())
            os.chmod(Path(place) / "closed", 0o700)
    assert [file.destination for file in plan.files] == ["train.py"]
    assert "closed/" in plan.left_behind


def test_a_file_that_is_gone_since_it_was_listed_is_no_part(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = source._walk
    monkeypatch.setattr(source, "_walk", lambda root, *leave: [*walk(root, *leave), root / "gone"])
    assert [file.destination for file in plan_of(code).files] == ["train.py"]


def test_an_entry_point_inside_the_source_is_found_however_it_is_spelt(code: Path) -> None:
    for spelling in ("./train.py", code / "train.py", "sub/../train.py"):
        assert Estimator(spelling, code).to_spec().program == "train.py"


def test_an_entry_point_may_be_a_path_from_here_into_the_source(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(code.parent)
    assert Estimator("code/train.py", "code").to_spec().program == "train.py"
    # What lies in source_dir itself comes first.
    (code / "code").mkdir()
    (code / "code" / "train.py").write_text("")
    assert Estimator("code/train.py", "code").to_spec().program == "code/train.py"


@pytest.mark.parametrize(
    ("name", "value"), [("TRCOMP_PREFETCH", "many"), ("TRCOMP_WORKER", "1"), ("TRCOMP_DEBUG", "?")]
)
def test_flags_of_the_job_are_checked_before_it_starts(code: Path, name: str, value: str) -> None:
    with pytest.raises(SpecError, match=name):
        Estimator("train.py", code, environment={name: value})


@pytest.mark.parametrize("missing", ["torch", "jax"])
def test_a_job_for_xla_needs_the_packages_of_its_workers(
    code: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "find_spec", lambda name: None if name == missing else name)
    fitted = Estimator("train.py", code, compiler_config=TrainingCompilerConfig())
    with pytest.raises(
        MissingExtraError, match=rf"'{missing}'.*\n.*pip install 'trcomp\[runtime\]'"
    ):
        fitted.fit()
    assert not (code.parent / "home").exists()


@pytest.mark.parametrize("config", [None, TrainingCompilerConfig(enabled=False)])
def test_a_job_without_xla_needs_none_of_them(
    code: Path, config: TrainingCompilerConfig | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submitted(plan: LocalPlan, objects: object, place_data: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "find_spec", lambda name: None)
    monkeypatch.setattr(process, "prepare", submitted)
    with pytest.raises(KeyboardInterrupt):
        Estimator("train.py", code, compiler_config=config).fit(wait=False)


def test_a_place_that_cannot_be_written_is_no_defect(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRCOMP_HOME", str(code / "train.py"))
    with pytest.raises(BackendUnavailableError, match="TRCOMP_HOME"):
        Estimator("train.py", code).fit()
