"""The image of a job in containers: found, pulled or built, and what a foreign one is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trcomp.backends.docker_files import PACKAGE, SITE, package_mounts
from trcomp.backends.docker_plan import ContainerPlan, DockerPlan
from trcomp.errors import BackendUnavailableError
from trcomp.images import build
from trcomp.images.engine import told

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The engine's own for an image that says nothing."""
_MODULE = "SAGEMAKER_TRAINING_MODULE"
"""Names the function that `train` of SageMaker's toolkit calls."""


def with_image(client: Any, plan: DockerPlan, progress: Callable[[str], None]) -> DockerPlan:
    """The plan with an image that the engine has.

    An image that was named need not have trcomp: it finds this one behind all of its own.

    Raises:
        BackendUnavailableError: There is no such image, or it cannot be built.
    """
    if plan.image is None:
        gpu = any(host.gpus for host in plan.hosts)
        built = build.find_or_build(client, gpu=gpu, progress=progress)
        return plan.model_copy(update={"image": built})
    found = _found(client, plan.image, progress)
    variables = dict(text.partition("=")[::2] for text in found.attrs["Config"].get("Env") or ())
    hosts = tuple(_with_package(plan, host, variables) for host in plan.hosts)
    return plan.model_copy(update={"hosts": hosts})


def _found(client: Any, name: str, progress: Callable[[str], None]) -> Any:
    from docker.errors import ImageNotFound

    with told(f"look for the image {name}"):
        try:
            return client.images.get(name)
        except ImageNotFound:
            progress(f"Pulling {name}.")
    hint = f"`docker pull {name}` must work here; a private registry wants `docker login` first."
    with told(f"pull the image {name}", hint):
        try:
            client.images.pull(name)
            return client.images.get(name)
        except ImageNotFound as error:
            message = f"There is no image {name}, neither here nor in its registry."
            raise BackendUnavailableError(message, hint) from error


def _with_package(
    plan: DockerPlan, host: ContainerPlan, variables: dict[str, str]
) -> ContainerPlan:
    given = host.environment
    path = given.get("PATH") or variables.get("PATH") or _PATH
    added = {"PATH": f"{path}:{PACKAGE}/bin"}
    # SageMaker's toolkit imports the module that it is told to call; elsewhere an image's own
    # trcomp goes before this one.
    if given.get(_MODULE, "").startswith("trcomp."):
        own = given.get("PYTHONPATH") or variables.get("PYTHONPATH")
        added["PYTHONPATH"] = f"{own}:{SITE}" if own else SITE
    update = {
        "environment": given | added,
        "mounts": (*host.mounts, *package_mounts(plan.directory)),
    }
    return host.model_copy(update=update)
