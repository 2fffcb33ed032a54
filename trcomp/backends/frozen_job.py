"""What a job in one of the Training Compiler's frozen images needs, and cannot do, anywhere."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from trcomp.backends.base import masked_arguments
from trcomp.env.topology import uniform
from trcomp.env.variables import for_xrt_host
from trcomp.errors import Problem
from trcomp.images.frozen import FrozenImage
from trcomp.spec import JobSpec


def problems(spec: JobSpec, image: FrozenImage) -> Iterator[Problem]:
    """What is wrong with a job in such an image."""
    given = spec.distribution
    if spec.pytorchxla and not image.spawns:
        allowed = "images before PyTorch 1.11 have no such launcher; leave it out."
        yield Problem("distribution", given, allowed)
    if spec.instance_count > 1 and image.spawns and not spec.pytorchxla:
        allowed = "several hosts of a frozen image need {'pytorchxla': {'enabled': True}}."
        yield Problem("distribution", given, allowed)
    if spec.arguments:
        allowed = "a frozen image knows hyperparameters alone: --name value, each name once."
        yield Problem("arguments", shlex.join(masked_arguments(spec.arguments)), allowed)
    if spec.max_restarts:
        allowed = "a frozen image starts no workers anew; leave it out, or use fit(retries=...)."
        yield Problem("max_restarts", spec.max_restarts, allowed)
    if spec.compiler_config is not None and spec.compiler_config.cache is not None:
        allowed = "a frozen image keeps no executables; leave it out."
        yield Problem("compiler_config.cache", str(spec.compiler_config.cache), allowed)
    if spec.compiler_config is not None and spec.compiler_config.profile_steps is not None:
        allowed = "a frozen image traces no steps; leave it out."
        yield Problem("compiler_config.profile_steps", spec.compiler_config.profile_steps, allowed)


def environment(
    spec: JobSpec, image: FrozenImage, num_gpus: int, *, efa: bool = False
) -> dict[str, str]:
    """The user's variables, and what the image lacks on one host; the user's own win."""
    if not image.spawns or spec.pytorchxla or spec.instance_count > 1:
        return spec.environment
    topology = uniform(["algo-1"], num_gpus or 1, "gpu" if num_gpus else "cpu")
    computed = for_xrt_host(topology, 0, efa=efa)
    return {v.name: v.value for v in computed if v.value is not None} | spec.environment
