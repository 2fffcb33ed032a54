"""The image of a job in SageMaker: the user's, a frozen one of the Training Compiler, our own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from trcomp.backends import ecr, frozen_job, own_image
from trcomp.backends.region import region as current_region
from trcomp.backends.sagemaker_fields import word
from trcomp.errors import Problem
from trcomp.images import frozen, instances
from trcomp.rules import LOCAL_TYPES
from trcomp.spec import JobSpec


def chosen_image(spec: JobSpec) -> str | None:
    """`image`, in the region of now."""
    return image(spec, current_region())


def image_note(spec: JobSpec) -> str | None:
    """What whoever gives versions, or a frozen image, should know; None if nothing."""
    local, versions = spec.instance_type in LOCAL_TYPES, _versions(spec)
    old = None if local else frozen_image(spec, current_region())
    if old is not None:
        return f"{chosen_image(spec)}: {frozen.NOTE}"
    if not versions:
        return None
    given = ", ".join(f"{name}={value!r}" for name, value in versions.items())
    return f"{given}: no image is chosen by it; the job runs with what its image has."


def image(spec: JobSpec, region: str | None) -> str | None:
    """The image: the user's, the frozen one that versions choose, or trcomp's own.

    None if an algorithm brings it, if the job runs on this machine, or if versions choose none.
    """
    given = spec.managed.get("image_uri")
    if given or spec.managed.get("algorithm_arn"):
        return given
    if _versions(spec) and spec.compiler_config is not None:
        chosen = frozen.of_versions(_versions(spec))
        return None if chosen is None else chosen.uri(region)
    return None if spec.instance_type in LOCAL_TYPES else own_image.place(spec, region).uri


def own(spec: JobSpec, region: str | None) -> ecr.Image | None:
    """Where trcomp's own image is, if the job runs in it."""
    if spec.managed.get("image_uri"):
        return None
    place = own_image.place(spec, region)
    return place if image(spec, region) == place.uri else None


def frozen_image(spec: JobSpec, region: str | None) -> frozen.FrozenImage | None:
    """The Training Compiler's image that the job runs in, None for any other."""
    return frozen.of_uri(image(spec, region))


def image_problems(spec: JobSpec, region: str | None) -> Iterator[Problem]:
    """What is wrong with the image, or with a job in a frozen one."""
    chosen, algorithm = image(spec, region), spec.managed.get("algorithm_arn")
    if chosen and algorithm:
        yield Problem("algorithm_arn", algorithm, "it has an image; leave out one of the two.")
    elif not chosen and not algorithm:
        yield frozen.problem(_versions(spec), region)
    old = frozen_image(spec, region)
    if old is not None:
        yield from frozen_job.problems(spec, old)


def _versions(spec: JobSpec) -> dict[str, str]:
    return {name: str(word(spec, name)) for name in frozen.WORDS if word(spec, name) is not None}


def environment(spec: JobSpec, region: str | None) -> dict[str, str]:
    """The user's variables, and what a frozen image lacks; the user's own win."""
    old = frozen_image(spec, region)
    if old is None:
        return spec.environment
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        facts = instances.facts(spec.instance_type)
    return frozen_job.environment(spec, old, facts.num_gpus or 0, efa=bool(facts.efa_devices))
