"""`trcomp build` and `trcomp push`: the image of jobs in containers, made and pushed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from trcomp.backends import ecr
from trcomp.errors import Problem, SpecError
from trcomp.images import engine
from trcomp.images.build import build as build_image
from trcomp.images.build import configured, find, parsed
from trcomp.images.context import WHERE, Recipe, arguments
from trcomp.images.push import push as push_image
from trcomp.json_output import json_option, print_json


@click.command()
@click.option("--gpu/--cpu", default=True, help="With CUDA's libraries, the default, or without.")
@click.option(
    "--base-image", help="What the image is built on: any Linux with Python 3.11 or newer."
)
@click.option(
    "--from", "extends", metavar="IMAGE", help="Add --requirements to this image of trcomp."
)
@click.option(
    "--requirements",
    type=click.Path(path_type=Path),
    help="A requirements file whose packages are baked in.",
)
@click.option(
    "--build-arg",
    "build_args",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Of the Dockerfile; without a value, the environment's. Repeatable.",
)
@click.option("--rebuild", is_flag=True, help="Pull the base and build anew, also if it is there.")
@click.option(
    "--context",
    "context_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what an engine elsewhere builds from, a tar for `docker build -`; build nothing.",
)
@json_option
def build(
    gpu: bool,
    base_image: str | None,
    extends: str | None,
    requirements: Path | None,
    build_args: Sequence[str],
    rebuild: bool,
    context_file: Path | None,
    as_json: bool,
) -> None:
    """Build the image of jobs in containers, unless the engine has it; print its name."""
    recipe = _recipe(gpu, base_image, extends, requirements, build_args)
    if context_file is not None:
        context_file.write_bytes(recipe.archive())
        if as_json:
            print_json({"context": str(context_file), "build_args": _shown(recipe)})
            return
        click.echo(_command(recipe, context_file))
        return
    with closing(engine.connect()) as client:
        found = None if rebuild else find(client, recipe)
        image = found or build_image(client, recipe, _progress, anew=rebuild)
    if as_json:
        print_json({"image": image, "built": found is None})
        return
    click.echo(image)


@click.command()
@click.argument("image", required=False)
@click.option("--to", metavar="NAME", help="REGISTRY/REPOSITORY:TAG; default: Amazon ECR.")
@click.option("--region", help="Of Amazon ECR; default: as boto3 is configured.")
@click.option("--gpu/--cpu", default=True, help="Without IMAGE: as of `trcomp build`.")
@json_option
def push(image: str | None, to: str | None, region: str | None, gpu: bool, as_json: bool) -> None:
    """Push IMAGE to a registry; without it trcomp's own, built if need be. Print its name there.

    A repository of Amazon ECR that is not there is created, and scans what is pushed.
    """
    recipe = Recipe(gpu, args=configured())
    to = to or ecr.own(image or recipe.image, region).uri
    target = ecr.parsed(to)
    # A tag of trcomp's own says what is in the image: where it is, there is nothing to do.
    kept = target if target and image is None and target.tag == recipe.tag else None
    done = kept is not None and ecr.exists(kept)
    name = to if done else _pushed(image, recipe, to, target)
    if as_json:
        print_json({"image_uri": to, "pinned": None if done else name, "pushed": not done})
        return
    click.echo(to)


def _pushed(image: str | None, recipe: Recipe, to: str, target: ecr.Image | None) -> str:
    """Push an image; gives the name by which exactly it is pulled."""
    if target is not None:
        return ecr.push(image or recipe, target, _progress)
    with closing(engine.connect()) as client:
        local = image or find(client, recipe) or build_image(client, recipe, _progress)
        return push_image(client, local, to, _progress)


def _recipe(
    gpu: bool,
    base_image: str | None,
    extends: str | None,
    requirements: Path | None,
    build_args: Sequence[str],
) -> Recipe:
    if extends is not None and (base_image is not None or requirements is None):
        allowed = "it goes with --requirements, and without --base-image."
        raise SpecError([Problem("--from", extends, allowed)])
    try:
        text = "" if requirements is None else requirements.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        allowed = f"it cannot be read: {error}"
        raise SpecError([Problem("--requirements", str(requirements), allowed)]) from error
    given = parsed(build_args, "--build-arg", os.environ)
    given |= {"BASE_IMAGE": base_image} if base_image else {}
    plain = Recipe(gpu, text, extends)
    # The environment's are for every image: those that this Dockerfile lacks do not matter.
    known = arguments(plain.dockerfile)
    usual = {name: value for name, value in configured().items() if name in known or not extends}
    return Recipe(gpu, text, extends, usual | given)


def _shown(recipe: Recipe) -> dict[str, str]:
    """The arguments of a build without those that may hold a secret."""
    args = recipe.build_args.items()
    return {name: value for name, value in args if not name.startswith(WHERE)}


def _command(recipe: Recipe, path: Path) -> str:
    """What builds the image of a context; what may hold a secret comes from the environment."""
    shown = _shown(recipe)
    given = [
        f"{name}={shlex.quote(shown[name])}" if name in shown else name
        for name in sorted(recipe.build_args)
    ]
    options = "".join(f"--build-arg {text} " for text in given)
    return f"docker build {options}-t {recipe.image} - < {shlex.quote(str(path))}"


def _progress(line: str) -> None:
    click.echo(line, err=True)
