"""trcomp's own image for jobs in SageMaker: where it is, and how it comes to be there."""

from __future__ import annotations

import re
import sys
import warnings
from functools import lru_cache

from trcomp import flags
from trcomp.backends import ecr
from trcomp.errors import BackendUnavailableError
from trcomp.images import instances
from trcomp.images.build import configured
from trcomp.images.context import REPOSITORY, Recipe
from trcomp.spec import JobSpec

_ROLE = re.compile(r"arn:[^:]+:iam::(\d{12}):role/.+")


def place(spec: JobSpec, region: str | None) -> ecr.Image:
    """Where the image of this trcomp is for a job: its account, its region, the image's own tag."""
    tag = _tag(_has_gpus(spec), tuple(configured().items()))
    return ecr.Image(account(spec) or "ACCOUNT", region or "REGION", REPOSITORY, tag)


def account(spec: JobSpec) -> str | None:
    """The AWS account that the job's role belongs to, and so the job; None without a sound role."""
    match = _ROLE.fullmatch(spec.role or "")
    return match[1] if match else None


def note(spec: JobSpec, image: ecr.Image) -> str:
    """How the image comes to be there, for a plan: nobody has looked."""
    if flags.PUSH.get():
        return "trcomp's own; submit builds and pushes it if it is not there"
    return f"trcomp's own; `{_command(spec, image)}` brings it there"


def ensure(spec: JobSpec, image: ecr.Image) -> None:
    """See that the image is there; build and push it if so configured.

    Raises:
        BackendUnavailableError: It is not there, or AWS refuses to say.
    """
    if ecr.exists(image):
        return
    if not flags.PUSH.get():
        raise BackendUnavailableError(
            f"The job's image is not there: {image.uri}.",
            f"`{_command(spec, image)}` builds it and brings it there; with {flags.PUSH.name}=1 "
            "submit does so. Or give image_uri.",
        )
    recipe = Recipe(_has_gpus(spec), args=configured())
    ecr.push(recipe, image, lambda line: print(line, file=sys.stderr))


def _command(spec: JobSpec, image: ecr.Image) -> str:
    return f"trcomp push{'' if _has_gpus(spec) else ' --cpu'} --region {image.region}"


@lru_cache(maxsize=8)
def _tag(gpu: bool, args: tuple[tuple[str, str], ...]) -> str:
    return Recipe(gpu, args=dict(args)).tag


def _has_gpus(spec: JobSpec) -> bool:
    """Whether any of the job's types has GPUs, or may have."""
    kinds = [group["InstanceType"] for group in spec.groups]
    kinds += [one["InstanceType"] for one in spec.managed.get("instance_preferences", ())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return any(instances.facts(kind).num_gpus != 0 for kind in kinds or [spec.instance_type])
