"""SageMaker Training Compiler's own images, as a dated catalogue: frozen, and still to be pulled.

After the catalogues of image URIs in SageMaker's SDK v2, 2.257.7. None was built for a partition
other than ``aws``. The images have PyTorch with torch_xla's XRT runtime and none of trcomp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trcomp.errors import Problem

AS_OF = "2026-11"
"""When the catalogue was last written."""
NOTE = "it is frozen: AWS builds and patches it no more. Its torch_xla is what trains, not trcomp."
WORDS = ("framework_version", "pytorch_version", "transformers_version", "py_version")
"""The words that choose an image."""


@dataclass(frozen=True)
class FrozenImage:
    """One image.

    Attributes:
        pytorch: Version of PyTorch.
        transformers: Of Hugging Face's transformers, None for an image without.
        python: Of Python, as ``py38``.
        suffix: What its tag ends with beyond that.
        absent: Regions of the catalogue that lack it.
        only: The only regions that have it; empty: all others do.
    """

    pytorch: str
    transformers: str | None
    python: str
    suffix: str
    absent: frozenset[str] = frozenset()
    only: frozenset[str] = frozenset()

    @property
    def repository(self) -> str:
        """The repository's name, the same in every region."""
        return f"{'huggingface-' if self.transformers else ''}pytorch-trcomp-training"

    @property
    def tag(self) -> str:
        """The image's tag."""
        middle = f"-transformers{self.transformers}" if self.transformers else ""
        return f"{self.pytorch}{middle}-gpu-{self.python}{self.suffix}"

    @property
    def spawns(self) -> bool:
        """Whether it has XLA's launcher, which ``distribution={"pytorchxla": …}`` starts."""
        return _numbers(self.pytorch) >= (1, 11)

    def __str__(self) -> str:
        middle = f", transformers {self.transformers}" if self.transformers else ""
        return f"PyTorch {self.pytorch}{middle}, {self.python}"

    def uri(self, region: str | None) -> str | None:
        """The image's URI in a region, None where it is not; with REGION if that is unknown."""
        if region is None:
            return f"{_SHARED}.dkr.ecr.REGION.amazonaws.com/{self.repository}:{self.tag}"
        account = _ACCOUNTS.get(region)
        if account is None or region in self.absent or (self.only and region not in self.only):
            return None
        return f"{account}.dkr.ecr.{region}.amazonaws.com/{self.repository}:{self.tag}"


_SHARED = "763104351884"
_ACCOUNTS = {
    **dict.fromkeys(
        (
            *("ap-northeast-1", "ap-northeast-2", "ap-south-1", "ap-southeast-1"),
            *("ap-southeast-2", "ca-central-1", "eu-central-1", "eu-north-1"),
            *("eu-west-1", "eu-west-2", "eu-west-3", "sa-east-1"),
            *("us-east-1", "us-east-2", "us-west-1", "us-west-2"),
        ),
        _SHARED,
    ),
    "af-south-1": "626614931356",
    "ap-east-1": "871362719292",
    "ap-east-2": "975050140332",
    "ap-northeast-3": "364406365360",
    "ap-south-2": "772153158452",
    "ap-southeast-3": "907027046896",
    "ap-southeast-4": "457447274322",
    "ap-southeast-5": "550225433462",
    "ap-southeast-7": "590183813437",
    "ca-west-1": "204538143572",
    "eu-central-2": "380420809688",
    "eu-south-1": "692866216735",
    "eu-south-2": "503227376785",
    "il-central-1": "780543022126",
    "me-central-1": "914824155844",
    "me-south-1": "217643126080",
    "mx-central-1": "637423239942",
}
"""The account that holds the images, by region."""

_FIRST = frozenset({"ca-west-1", "eu-west-1", "us-east-1", "us-east-2", "us-west-2"})
_NEVER = frozenset(
    {"ap-east-2", "ap-southeast-3", "ap-southeast-5", "ap-southeast-7"}
    | {"me-central-1", "mx-central-1"}
)
IMAGES = (
    FrozenImage(
        "1.13.1",
        None,
        "py39",
        "",
        absent=_NEVER | {"ap-south-2", "eu-central-2", "eu-south-2"},
    ),
    FrozenImage("1.12.0", None, "py38", "", absent=_NEVER),
    FrozenImage("1.11.0", "4.21.1", "py38", "-cu113-ubuntu20.04"),
    FrozenImage("1.10.2", "4.17.0", "py38", "-cu113-ubuntu20.04"),
    FrozenImage("1.9.0", "4.11.0", "py38", "-cu111-ubuntu20.04", only=_FIRST),
)
"""Newest first."""


def of_uri(uri: str | None) -> FrozenImage | None:
    """The image that a URI names, None if none of these."""
    repository, _, tag = (uri or "").rpartition("/")[2].partition(":")
    for image in IMAGES:
        if repository == image.repository and tag.startswith(f"{image.pytorch}-"):
            return image
    return None


def of_versions(versions: Mapping[str, str]) -> FrozenImage | None:
    """The newest image that has these versions; ``1.13`` means ``1.13.1``.

    Args:
        versions: By `WORDS`, those that are given.
    """
    pytorch = versions.get("framework_version") or versions.get("pytorch_version")
    if pytorch is None:
        return None
    for image in IMAGES:
        if (
            _begins(image.pytorch, pytorch)
            and _begins(image.transformers, versions.get("transformers_version"))
            and versions.get("py_version", image.python) == image.python
        ):
            return image
    return None


def problem(versions: Mapping[str, str], region: str | None) -> Problem:
    """Why versions choose no image."""
    word = next(name for name in WORDS if name in versions)
    image = of_versions(versions)
    if image is not None:
        allowed = f"the image with {image} is not in region {region}."
        return Problem("image_uri", None, allowed)
    choice = "; ".join(map(str, IMAGES))
    allowed = (
        f"these versions choose none of the Training Compiler's frozen images: {choice}. For "
        "others leave the versions out, which is trcomp's own image, or give image_uri."
    )
    return Problem(word, ", ".join(f"{k}={v}" for k, v in versions.items()), allowed)


def _begins(full: str | None, given: str | None) -> bool:
    if full is None or given is None:
        return full == given
    return _numbers(full)[: len(_numbers(given))] == _numbers(given)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
