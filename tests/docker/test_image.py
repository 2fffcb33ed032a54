"""The image, as a real engine builds it out of packages without content, and as it is pushed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.docker import registry, wheels
from tests.docker.jobs import Place
from trcomp import BackendUnavailableError, TrainingCompilerConfig
from trcomp.cli import main
from trcomp.images.build import build, configured, find_or_build
from trcomp.images.context import Recipe

SECRET = "s3cret-of-the-index"
REGRESSION = Path(__file__).parents[1] / "e2e/scripts/regression.py"


@pytest.fixture
def built(engine: Any, settings: dict[str, str]) -> str:
    """The image without requirements."""
    return find_or_build(engine, gpu=False, progress=print)


def output(engine: Any, image: str, *command: str, **words: Any) -> str:
    """What a command prints in a container of an image."""
    raw: bytes = engine.containers.run(image, list(command), remove=True, **words)
    return raw.decode().strip()


def layers(engine: Any, image: str, place: Path) -> dict[str, str]:
    """The digest of each layer, by the instruction that made it."""
    path = place / "image.tar"
    with path.open("wb") as file:
        file.writelines(engine.images.get(image).save())
    with tarfile.open(path) as archive:
        (manifest,) = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(archive.extractfile(manifest["Config"]))  # type: ignore[arg-type]
    made = [step.get("created_by", "") for step in config["history"] if not step.get("empty_layer")]
    return dict(zip(made, config["rootfs"]["diff_ids"], strict=True))


def test_what_is_in_the_image(engine: Any, built: str) -> None:
    script = """
        ls /root/.cache /var/lib/apt/lists /tmp 2>/dev/null | grep -v : | wc -w
        for command in train trcomp pip python; do command -v $command; done
        python -c 'import trcomp, torch, jax; print(trcomp.__file__, torch.VERSION)'
        python -m pip check
        pip list --format=freeze | grep trcomp
        command -v gcc || command -v cc || command -v make || echo no compiler
    """
    lines = output(engine, built, "sh", "-c", script).splitlines()
    assert lines.pop(0) == "0"
    assert lines[:2] == ["/opt/trcomp/bin/train", "/opt/trcomp/bin/trcomp"]
    assert lines[2:4] == ["/opt/venv/bin/pip", "/opt/venv/bin/python"]
    assert lines[4] == f"/opt/trcomp/trcomp/__init__.py {wheels.VERSION}"
    assert lines[5] == "No broken requirements found."
    assert lines[6].startswith("trcomp==")
    assert lines[7:] == ["no compiler"]
    attributes = engine.images.get(built).attrs
    assert attributes["Config"]["Cmd"] == ["train"]
    assert not attributes["Config"].get("Entrypoint")
    assert not attributes["Config"].get("Healthcheck")
    labels = attributes["Config"]["Labels"]
    assert labels["org.opencontainers.image.title"] == "trcomp"
    assert labels["org.opencontainers.image.revision"].startswith(built[-12:])
    environment = dict(entry.split("=", 1) for entry in attributes["Config"]["Env"])
    assert environment["NVIDIA_VISIBLE_DEVICES"] == ""


def test_whoever_runs_the_container_may_install(engine: Any, built: str) -> None:
    script = f"""
        pip install -q --no-index --find-links {wheels.FOLDER} later_package
        python -c 'import os, later_package; print(os.getuid(), later_package.VERSION)'
    """
    environment = {"HOME": "/tmp"}
    text = output(engine, built, "sh", "-c", script, user="1234:1234", environment=environment)
    assert text == f"1234 {wheels.VERSION}"


def test_each_concern_is_a_layer_of_its_own(engine: Any, built: str) -> None:
    lists = output(engine, built, "sh", "-c", "grep -l . /opt/venv/layers/*.txt").split()
    names = [Path(path).stem for path in lists]
    # Without CUDA and without requirements these two bring nothing.
    assert names == ["jax", "needed", "python", "torch"]
    torch = output(engine, built, "cat", "/opt/venv/layers/torch.txt")
    assert "site-packages/torch.py" in torch
    assert "jax" not in torch


def test_the_same_sources_give_the_same_layer(
    engine: Any, settings: dict[str, str], built: str, tmp_path: Path
) -> None:
    (added,) = (made for made in layers(engine, built, tmp_path) if "ADD file:" in made)
    first = layers(engine, built, tmp_path)
    # Below it is another layer, so that no cache can have this one.
    recipe = Recipe(False, requirements="extra_package\n", args=settings)
    second = layers(engine, build(engine, recipe, print), tmp_path)
    assert second[added] == first[added]
    assert set(second.values()) - set(first.values())


def test_nothing_that_pip_is_told_stays(engine: Any, settings: dict[str, str]) -> None:
    secret = {"PIP_INDEX_URL": f"https://me:{SECRET}@127.0.0.1:1/simple"}
    seen: list[str] = []
    recipe = Recipe(False, "extra_package\n", args=settings | secret)
    name = build(engine, recipe, seen.append)
    assert SECRET not in json.dumps(engine.api.history(name))
    assert SECRET not in json.dumps(engine.api.inspect_image(name))
    assert SECRET not in "".join(seen)
    assert output(engine, name, "python", "-c", "import extra_package as e; print(e.VERSION)")


def test_requirements_on_top_of_an_image(
    engine: Any, built: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = tmp_path / "requirements.txt"
    wanted.write_text("later_package\n")
    assert main(["build", "--cpu", "--from", built, "--requirements", str(wanted)]) == 0
    name = capsys.readouterr().out.strip()
    code = "import later_package, trcomp; print(later_package.VERSION)"
    assert output(engine, name, "python", "-c", code) == wheels.VERSION
    below = engine.images.get(built).attrs["RootFS"]["Layers"]
    assert engine.images.get(name).attrs["RootFS"]["Layers"][: len(below)] == below
    # What the image has is not replaced.
    wanted.write_text("torch<50\n")
    assert main(["build", "--cpu", "--from", built, "--requirements", str(wanted)]) == 69
    assert "torch" in capsys.readouterr().err


def test_a_job_runs_in_the_image_that_is_found(place: Place, built: str) -> None:
    script = """
        import os, trcomp, later_package
        print("found", trcomp.__file__, later_package.VERSION)
        print("process", os.readlink("/proc/1/exe"), open("/proc/1/cmdline").read())
    """
    words: dict[str, Any] = {"image_uri": None, "mounts": {}}
    estimator = place.estimator(script, environment={"PIP_FIND_LINKS": wheels.FOLDER}, **words)
    (place.root / "code" / "requirements.txt").write_text("later_package\n")
    estimator.fit(job_name="own", logs=False)
    job = estimator.latest_training_job
    assert job is not None
    place.submitted.append(job)
    text = "\n".join(job.logs())
    assert f"found /opt/trcomp/trcomp/__init__.py {wheels.VERSION}" in text
    assert "/opt/trcomp/bin/train" in text


def test_a_push_signs_in_and_leaves_nothing(
    engine: Any, built: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".docker").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("DOCKER_CONFIG", str(home / ".docker"))
    with registry.serving() as running:
        to = f"{running.address}/team/trcomp:1"
        monkeypatch.setenv("TRCOMP_REGISTRY_USERNAME", running.username)
        monkeypatch.setenv("TRCOMP_REGISTRY_PASSWORD", "wrong")
        assert main(["push", built, "--to", to]) == 69
        assert running.manifests == {}
        monkeypatch.setenv("TRCOMP_REGISTRY_PASSWORD", running.password)
        assert main(["push", built, "--to", to]) == 0
        assert "team/trcomp:1" in running.manifests
        config = json.loads(running.manifests["team/trcomp:1"][1])["config"]["digest"]
        assert running.blobs[config]
    engine.images.remove(to, force=False)
    left = [path for path in home.rglob("*") if path.is_file()]
    assert left == []
    assert running.password not in json.dumps(engine.api.history(built))


def test_a_base_that_is_not_to_be_had(engine: Any, settings: dict[str, str]) -> None:
    missing = settings | {"BASE_IMAGE": "127.0.0.1:9/absent:1"}
    with pytest.raises(BackendUnavailableError) as caught:
        build(engine, Recipe(False, args=missing), print)
    assert "127.0.0.1:9/absent:1" in str(caught.value)
    assert "docker load" in str(caught.value)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_model_trains_in_the_image_of_users(
    place: Place, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Downloads torch and jax; TRCOMP_BUILD_ARGS says where from, if not as the Dockerfile does.
    given = {"BASE_IMAGE": image} | configured()
    monkeypatch.setenv("TRCOMP_BUILD_ARGS", wheels.as_text(given))
    words: dict[str, Any] = {"image_uri": None, "mounts": {}, "instance_count": 2}
    job = place.started(
        REGRESSION.read_text(),
        compiler_config=TrainingCompilerConfig(),
        environment={"GPU_NUM_DEVICES": "2", "PYTHONPATH": ""},
        **words,
    )
    assert job.wait(timeout=600) == "Completed"
    assert job.report()["totals"]["num_ranks"] == 4
