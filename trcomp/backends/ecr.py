"""Amazon ECR: the names of an account's images, whether one is there, the way in for a push."""

from __future__ import annotations

import base64
import json
import re
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache

from trcomp.backends.aws import client, code_of, told
from trcomp.backends.region import region as current_region
from trcomp.errors import BackendUnavailableError, Problem, SpecError
from trcomp.images import engine
from trcomp.images.build import Progress, build, find
from trcomp.images.context import Recipe
from trcomp.images.push import push as push_image

_REFERENCE = re.compile(
    r"(\d{12})\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.[a-z0-9.-]+/([^:@]+)(?:[:@](.+))?"
)
_KEPT_IMAGES = 30
_UNTAGGED_DAYS = 14
LIFECYCLE = {
    "rules": [
        {
            "rulePriority": 1,
            "description": "What no tag names is not used.",
            "selection": {
                "tagStatus": "untagged",
                "countType": "sinceImagePushed",
                "countUnit": "days",
                "countNumber": _UNTAGGED_DAYS,
            },
            "action": {"type": "expire"},
        },
        {
            "rulePriority": 2,
            "description": "The newest are kept.",
            "selection": {
                "tagStatus": "any",
                "countType": "imageCountMoreThan",
                "countNumber": _KEPT_IMAGES,
            },
            "action": {"type": "expire"},
        },
    ]
}
"""What becomes of images in a repository that trcomp creates."""


@dataclass(frozen=True)
class Image:
    """An image in Amazon ECR, there or not.

    Attributes:
        account: Whose.
        region: Where; a job pulls from its own region the fastest.
        repository: Its repository.
        tag: Its tag, or its digest.
    """

    account: str
    region: str
    repository: str
    tag: str

    @property
    def uri(self) -> str:
        """What a job's `image_uri` is, and what is pushed to."""
        mark = "@" if self.tag.startswith("sha256:") else ":"
        host = f"{self.account}.dkr.ecr.{self.region}.{_suffix(self.region)}"
        return f"{host}/{self.repository}{mark}{self.tag}"


def parsed(reference: str) -> Image | None:
    """The image that a reference names; None if it is in no Amazon ECR."""
    match = _REFERENCE.fullmatch(reference)
    return match and Image(match[1], match[2], match[3], match[4] or "latest")


def own(name: str, region: str | None) -> Image:
    """Where an image of this machine goes in the account of the credentials.

    Args:
        name: ``REPOSITORY:TAG``.
        region: None for the one of now.

    Raises:
        SpecError: The image has no name, or no region is known.
        BackendUnavailableError: AWS does not say whose the credentials are.
    """
    found = region or current_region()
    problems = []
    if found is None:
        allowed = "a region is needed: give it, or set AWS_DEFAULT_REGION."
        problems.append(Problem("--region", None, allowed))
    repository, _, tag = name.partition(":")
    if "@" in name or repository == "sha256" or not tag:
        allowed = "an image without a tag needs --to REGISTRY/REPOSITORY:TAG."
        problems.append(Problem("IMAGE", name, allowed))
    if problems or found is None:
        raise SpecError(problems)
    with told("see whose account the image goes to"):
        account = client("sts", found).get_caller_identity()["Account"]
    return Image(account, found, repository, tag)


def exists(image: Image) -> bool:
    """Whether the image is there.

    Raises:
        BackendUnavailableError: AWS refuses to say.
    """
    from botocore.exceptions import ClientError

    which = "imageDigest" if image.tag.startswith("sha256:") else "imageTag"
    with told(f"look for {image.uri}"):
        try:
            client("ecr", image.region).describe_images(
                registryId=image.account,
                repositoryName=image.repository,
                imageIds=[{which: image.tag}],
            )
        except ClientError as error:
            if code_of(error) in {"ImageNotFoundException", "RepositoryNotFoundException"}:
                return False
            raise
    return True


def ensure_repository(image: Image) -> bool:
    """Create the image's repository unless it is there; gives whether it was created.

    What is pushed to it is scanned, tags stay what they are, and old images go.

    Raises:
        BackendUnavailableError: It is another account's and not there, or AWS refuses.
    """
    from botocore.exceptions import ClientError

    ecr, name = client("ecr", image.region), image.repository
    where = {"registryId": image.account, "repositoryName": name}
    with told(f"look for the repository {name}"):
        try:
            ecr.describe_repositories(registryId=image.account, repositoryNames=[name])
            return False
        except ClientError as error:
            if code_of(error) != "RepositoryNotFoundException":
                raise
    with told(f"create the repository {name}"):
        account = client("sts", image.region).get_caller_identity()["Account"]
        if account != image.account:
            message = f"The account {image.account} has no repository {name!r} in {image.region}."
            command = f"aws ecr create-repository --repository-name {name} --region {image.region}"
            raise BackendUnavailableError(message, f"Let that account create it: `{command}`.")
        ecr.create_repository(
            **where,
            imageTagMutability="IMMUTABLE",
            imageScanningConfiguration={"scanOnPush": True},
        )
        ecr.put_lifecycle_policy(**where, lifecyclePolicyText=json.dumps(LIFECYCLE))
    return True


def push(local: str | Recipe, image: Image, progress: Progress) -> str:
    """Push an image of the engine, built if a recipe of it is given and it is not there.

    Returns:
        The name by which exactly this image is pulled, with its digest.

    Raises:
        BackendUnavailableError: The engine or AWS refuses.
    """
    with closing(engine.connect()) as engine_client:
        if isinstance(local, Recipe):
            found = find(engine_client, local)
            local = found or build(engine_client, local, progress)
        if ensure_repository(image):
            progress(f"Created the repository {image.repository} in {image.region}.")
        return push_image(engine_client, local, image.uri, progress, login(image))


def login(image: Image) -> dict[str, str]:
    """What the registry is told at a push: good for hours, and kept nowhere.

    Raises:
        BackendUnavailableError: AWS refuses.
    """
    with told(f"sign in to the registry of {image.account} in {image.region}"):
        answer = client("ecr", image.region).get_authorization_token(registryIds=[image.account])
        token = answer["authorizationData"][0]["authorizationToken"]
    name, _, password = base64.b64decode(token).decode().partition(":")
    return {"username": name, "password": password}


@lru_cache(maxsize=32)
def _suffix(region: str) -> str:
    """What host names of a region end with, by its partition in botocore's data."""
    from botocore.session import get_session

    data = get_session().get_component("data_loader").load_data("partitions")
    for partition in data["partitions"]:
        if region in partition["regions"] or re.match(partition["regionRegex"], region):
            return str(partition["outputs"]["dnsSuffix"])
    return "amazonaws.com"
