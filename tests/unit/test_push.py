"""Images brought to registries: names, repositories of Amazon ECR, signing in, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests import s3_server
from trcomp import BackendUnavailableError, Estimator, SpecError
from trcomp.backends import ecr, own_image, sagemaker_image
from trcomp.cli import main
from trcomp.images import engine
from trcomp.images.context import Recipe
from trcomp.images.push import push

ACCOUNT = "123456789012"
DIGEST = f"sha256:{'a' * 64}"
TARGET = ecr.Image(ACCOUNT, "eu-west-1", "team/trcomp", "1")


class Engine:
    """Has every image, and notes what is pushed and as whom."""

    def __init__(self, *lines: dict[str, Any]) -> None:
        self.lines = lines or ({"aux": {"Digest": DIGEST}},)
        self.pushed: list[tuple[str, str, Any]] = []
        self.images = SimpleNamespace(get=self._get)
        self.api = SimpleNamespace(push=self._push)

    def _get(self, name: str) -> Any:
        from docker.errors import ImageNotFound

        if name == "absent:1":
            raise ImageNotFound("no such image")
        return SimpleNamespace(tag=lambda repository, tag: True)

    def _push(self, repository: str, *, tag: str, auth_config: Any, **words: Any) -> Any:
        self.pushed.append((repository, tag, auth_config))
        return iter(self.lines)

    def close(self) -> None:
        pass


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine that commands find."""
    found = Engine()
    monkeypatch.setattr(engine, "connect", lambda: found)
    return found


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with s3_server.running(monkeypatch):
        yield


def put(image: ecr.Image) -> None:
    """Let the repository have an image, as a push would."""
    ecr.ensure_repository(image)
    client = ecr.client("ecr", image.region)
    manifest = {"schemaVersion": 2, "config": {"digest": DIGEST}, "layers": []}
    manifest["mediaType"] = "application/vnd.docker.distribution.manifest.v2+json"
    where = {"registryId": image.account, "repositoryName": image.repository}
    client.put_image(**where, imageManifest=json.dumps(manifest), imageTag=image.tag)


def test_names_in_amazon_ecr() -> None:
    for region, suffix in {
        "us-east-1": "amazonaws.com",
        "cn-north-1": "amazonaws.com.cn",
        "us-gov-west-1": "amazonaws.com",
        "us-iso-east-1": "c2s.ic.gov",
        "eusc-de-east-1": "amazonaws.eu",
    }.items():
        uri = f"{ACCOUNT}.dkr.ecr.{region}.{suffix}/team/trcomp:1"
        found = ecr.parsed(uri)
        assert found == ecr.Image(ACCOUNT, region, "team/trcomp", "1")
        assert found.uri == uri
    pinned = f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/trcomp@{DIGEST}"
    found = ecr.parsed(pinned)
    assert found and found.uri == pinned
    assert ecr.parsed("registry.example/trcomp:1") is None


def test_a_repository_is_created_once_with_scans_and_a_lifecycle(aws: None) -> None:
    assert ecr.ensure_repository(TARGET)
    assert not ecr.ensure_repository(TARGET)
    client = ecr.client("ecr", TARGET.region)
    (found,) = client.describe_repositories(repositoryNames=[TARGET.repository])["repositories"]
    assert found["imageScanningConfiguration"] == {"scanOnPush": True}
    assert found["imageTagMutability"] == "IMMUTABLE"
    policy = client.get_lifecycle_policy(repositoryName=TARGET.repository)["lifecyclePolicyText"]
    assert [rule["action"]["type"] for rule in json.loads(policy)["rules"]] == ["expire"] * 2
    # It is in its own region, whatever the region of now.
    here = ecr.client("ecr").describe_repositories()["repositories"]
    assert here == []


def test_another_accounts_repository_is_not_created(aws: None) -> None:
    theirs = ecr.Image("210987654321", "eu-west-1", "trcomp", "1")
    with pytest.raises(BackendUnavailableError, match="aws ecr create-repository"):
        ecr.ensure_repository(theirs)


def test_whether_an_image_is_there(aws: None) -> None:
    assert not ecr.exists(TARGET)
    put(TARGET)
    assert ecr.exists(TARGET)
    assert not ecr.exists(ecr.Image(ACCOUNT, "eu-west-1", "team/trcomp", "2"))


def test_a_push_signs_in_for_itself_alone(
    aws: None, running: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", "mine/it:7", "--region", "eu-west-1", "--json"]) == 0
    repository = f"{ACCOUNT}.dkr.ecr.eu-west-1.amazonaws.com/mine/it"
    printed = capsys.readouterr()
    expected = {"image_uri": f"{repository}:7", "pinned": f"{repository}@{DIGEST}"}
    assert json.loads(printed.out) == expected | {"pushed": True}
    ((name, tag, auth),) = running.pushed
    assert (name, tag) == (repository, "7")
    assert auth == {"username": "AWS", "password": f"{ACCOUNT}-auth-token"}
    assert "auth-token" not in printed.err


def test_trcomps_own_image_is_pushed_once(
    aws: None, running: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ecr.own(Recipe(False).image, "eu-west-1")
    assert main(["push", "--cpu", "--region", "eu-west-1"]) == 0
    assert capsys.readouterr().out.strip() == own.uri
    assert len(running.pushed) == 1
    put(own)
    assert main(["push", "--cpu", "--region", "eu-west-1"]) == 0
    assert len(running.pushed) == 1
    # Another tag says nothing about what is in the image.
    put(TARGET)
    assert main(["push", "--cpu", "--to", TARGET.uri]) == 0
    assert len(running.pushed) == 2


def test_other_registries_are_signed_in_to_by_the_environment(
    running: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = "registry.example:5000/team/trcomp:1"
    assert main(["push", "trcomp:1", "--to", target]) == 0
    monkeypatch.setenv("TRCOMP_REGISTRY_USERNAME", "me")
    monkeypatch.setenv("TRCOMP_REGISTRY_PASSWORD", "s3cret")
    assert main(["push", "trcomp:1", "--to", target]) == 0
    # None: the SDK asks Docker's own configuration.
    assert [auth for _, _, auth in running.pushed] == [
        None,
        {"username": "me", "password": "s3cret"},
    ]


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("denied: not authorized", "TRCOMP_REGISTRY_USERNAME"),
        ("no basic auth credentials", "trcomp iam-policy --for push"),
        ("name unknown: no such repository", "create it there"),
        ("tag invalid: it is immutable", "choose another tag"),
        ("write /var/lib/x: no space left on device", "docker system prune"),
    ],
)
def test_refusals_say_what_to_do(error: str, hint: str) -> None:
    client: Any = Engine({"status": "Preparing"}, {"error": error})
    with pytest.raises(BackendUnavailableError, match=hint) as caught:
        push(client, "trcomp:1", "registry.example/trcomp:1", lambda line: None)
    assert error in str(caught.value)


def test_what_cannot_be_pushed(running: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    client: Any = running
    with pytest.raises(BackendUnavailableError, match="trcomp build"):
        push(client, "absent:1", "registry.example/trcomp:1", lambda line: None)
    with pytest.raises(SpecError, match="without a digest"):
        push(client, "trcomp:1", f"registry.example/trcomp@{DIGEST}", lambda line: None)
    assert main(["push", DIGEST, "--region", "eu-west-1"]) == 64
    assert "needs --to" in capsys.readouterr().err


def test_a_job_without_image_uri_needs_trcomps_own(
    aws: None, running: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: dict[str, Any] = {"instance_type": "ml.m5.large"}
    words["role"] = f"arn:aws:iam::{ACCOUNT}:role/Training"
    spec = Estimator(__file__, **words).to_spec()
    place = sagemaker_image.own(spec, "us-east-1")
    assert place is not None
    with pytest.raises(BackendUnavailableError, match="trcomp push --cpu --region us-east-1"):
        own_image.ensure(spec, place)
    assert running.pushed == []
    monkeypatch.setenv("TRCOMP_PUSH", "1")
    own_image.ensure(spec, place)
    assert [f"{name}:{tag}" for name, tag, _ in running.pushed] == [place.uri]
    put(place)
    own_image.ensure(spec, place)
    assert len(running.pushed) == 1
