"""Checks of what is installed: Python, torch, jax, and whether they fit together."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from trcomp.doctor.findings import Asked, Check, Finding, ok, problem, warning

_INSTALL = "pip install 'trcomp[runtime]'"
PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
_LOOKED_AT = ("trcomp", "torch", "jax", "jaxlib", "numpy", *PLUGINS)
_CLASSIFIER = "Programming Language :: Python :: "


@dataclass(frozen=True)
class Package:
    """A package as its own metadata describes it."""

    version: str
    requires: tuple[str, ...] = ()
    classifiers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Software:
    """What is installed for this Python.

    Attributes:
        python: Its version.
        executable: Where it lies: workers on this machine run on it.
        packages: By their canonical names; all that those looked at need are there, if installed.
    """

    python: str
    executable: str
    packages: Mapping[str, Package]

    def version(self, name: str) -> str | None:
        """The version of a package, None if it is not installed."""
        return self.packages[name].version if name in self.packages else None


def read(asked: Asked) -> Software:
    """What is installed, from the packages' metadata: nothing is imported."""
    packages = {name: found for name in _LOOKED_AT if (found := _package(name))}
    for package in list(packages.values()):
        for requirement in map(Requirement, package.requires):
            name = canonicalize_name(requirement.name)
            if name not in packages and (found := _package(name)):
                packages[name] = found
    return Software(platform.python_version(), sys.executable, packages)


def _package(name: str) -> Package | None:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    classifiers = found.metadata.get_all("Classifier") or []
    return Package(found.version, tuple(found.requires or ()), tuple(classifiers))


def judge_python(software: Software, asked: Asked) -> Finding:
    """Whether this Python is one that trcomp is made for."""
    found = f"{software.python}, {software.executable}"
    ours = software.packages.get("trcomp", Package(""))
    texts = [name.removeprefix(_CLASSIFIER) for name in ours.classifiers if _CLASSIFIER in name]
    known = sorted(_numbers(text) for text in texts if "." in text)
    if known and _numbers(software.python)[:2] > known[-1]:
        newest = ".".join(map(str, known[-1]))
        return warning(
            f"{found}: trcomp has been tried up to {newest}.",
            f"If a package has no wheel for it, make the virtual environment with Python {newest}.",
        )
    return ok(found)


def judge_torch(software: Software, asked: Asked) -> Finding:
    """Whether torch is there, in a version that the runtime stands on."""
    return _supported(software, "torch")


def judge_jax(software: Software, asked: Asked) -> Finding:
    """Whether jax and jaxlib are there, in versions that the runtime stands on."""
    jax, jaxlib = _supported(software, "jax"), _supported(software, "jaxlib")
    if jax.verdict == jaxlib.verdict == "ok":
        return ok(f"{jax.found}, jaxlib {jaxlib.found}")
    return jax if jax.verdict != "ok" else jaxlib


def judge_fit(software: Software, asked: Asked) -> Finding:
    """Whether what is installed meets what each package says it needs."""
    unmet = list(_unmet(software.packages))
    if unmet:
        wanted = " ".join(f"'{requirement}'" for _, requirement in unmet)
        return problem(
            "; ".join(f"{needs}, but {_got(software, what)}" for needs, what in unmet) + ".",
            f"pip install {wanted}",
        )
    names = [name for name in _LOOKED_AT if name in software.packages]
    return ok(f"{', '.join(names)}: each finds what it needs")


def _supported(software: Software, name: str) -> Finding:
    wanted = _wanted(software, name)
    version = software.version(name)
    if version is None:
        return warning(
            f"{name} is not installed: from here jobs can run elsewhere, but not on this machine.",
            _INSTALL,
        )
    if wanted is not None and not wanted.specifier.contains(version, prereleases=True):
        return problem(
            f"{name} {version} is installed; trcomp needs {name}{wanted.specifier}.",
            f"pip install '{name}{wanted.specifier}'",
        )
    return ok(version)


def _wanted(software: Software, name: str) -> Requirement | None:
    """What trcomp's own extra for workers says of a package."""
    for text in software.packages.get("trcomp", Package("")).requires:
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) == name and _applies(requirement, "runtime"):
            return requirement
    return None


def _unmet(packages: Mapping[str, Package]) -> Iterator[tuple[str, Requirement]]:
    for name in _LOOKED_AT:
        for requirement in map(Requirement, packages.get(name, Package("")).requires):
            found = packages.get(canonicalize_name(requirement.name))
            # CUDA's own libraries may be the system's; those that are there must be new enough.
            optional = not _applies(requirement, "")
            if optional and (found is None or not _applies(requirement, "with-cuda")):
                continue
            if found is None or not requirement.specifier.contains(found.version, prereleases=True):
                plain = Requirement(f"{requirement.name}{requirement.specifier}")
                yield f"{name} {packages[name].version} needs {plain}", plain


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _got(software: Software, requirement: Requirement) -> str:
    version = software.version(canonicalize_name(requirement.name))
    return "it is not installed" if version is None else f"{version} is installed"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


CHECKS = (
    Check(
        "Python",
        read,
        judge_python,
        "its version, and where it lies: workers on this machine run on it",
        "it is newer than what trcomp has been tried with",
    ),
    Check(
        "torch",
        read,
        judge_torch,
        "its version",
        "it is missing (a launcher alone needs none), or too old or too new",
    ),
    Check(
        "jax",
        read,
        judge_jax,
        "the versions of jax and jaxlib",
        "one is missing (a launcher alone needs none), or too old or too new",
    ),
    Check(
        "packages",
        read,
        judge_fit,
        "what torch, jax, jaxlib, the CUDA plugin and trcomp say they need",
        "what is installed does not meet it",
    ),
)
