"""What an engine builds the image from, byte for byte the same for the same sources.

Recipe --files----> Dockerfile, layers.py, needed.txt, requirements.txt, trcomp.tar
       --archive--> all of them as one tar
       --digest---> the tag
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path

import trcomp
from trcomp._version import __version__
from trcomp.errors import Problem, SpecError, nearest

REPOSITORY = "trcomp"
_HERE = Path(__file__).parent
_ROOT = "opt/trcomp"
_LAUNCHERS = {"train": "trcomp.entrypoint.__main__", "trcomp": "trcomp.cli"}
_LAUNCHER = """#!/opt/venv/bin/python -P
import sys

from {module} import main

sys.exit(main())
"""
_EPOCH = 315532800
"""1980-01-01: the earliest that every archive can say."""
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Build arguments that every Dockerfile has; the engine keeps them out of an image's history."""
WHERE = ("PIP_", *_PROXIES)
"""Begin the build arguments that say where packages come from, not which: no part of a tag."""
_RUNTIME = re.compile(r"([A-Za-z0-9._-]+)([^;]*); extra == ['\"]runtime['\"]")
_PINNED = {"torch", "jax", "jaxlib"}


@dataclass(frozen=True)
class Recipe:
    """What an image is made of.

    Attributes:
        gpu: Whether it has CUDA's libraries; an image that is extended has its own.
        requirements: Text of a requirements file whose packages are baked in.
        extends: An image of trcomp that is extended, None: one is made from the base.
        args: Build arguments of the Dockerfile.

    Raises:
        SpecError: An argument is none of the Dockerfile's.
    """

    gpu: bool
    requirements: str = ""
    extends: str | None = None
    args: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = arguments(self.dockerfile)
        problems = []
        for name in self.args:
            if name not in known:
                allowed = f"the Dockerfile has {', '.join(known)}."
                near = nearest(name, known)
                problems.append(Problem("build argument", name, allowed, near))
        if problems:
            raise SpecError(problems)

    @property
    def dockerfile(self) -> str:
        """Text of the Dockerfile."""
        name = "Dockerfile.gpu" if self.extends is None else "Dockerfile.extend"
        return (_HERE / name).read_text(encoding="utf-8")

    @property
    def build_args(self) -> dict[str, str]:
        """The arguments, and those that follow from the rest."""
        if self.extends is not None:
            return {**self.args, "FROM_IMAGE": self.extends, "REVISION": self.digest}
        own = {"VERSION": __version__, "REVISION": self.digest}
        return ({} if self.gpu else {"JAX_EXTRA": ""}) | dict(self.args) | own

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that the image is made of."""
        whole = hashlib.sha256()
        parts = {name: hashlib.sha256(data).hexdigest() for name, data in self.files().items()}
        parts |= {name: value for name, value in self.args.items() if not name.startswith(WHERE)}
        parts |= {"kind": self._kind, "extends": self.extends or ""}
        for name, value in sorted(parts.items()):
            whole.update(f"{name}={value}\n".encode())
        return whole.hexdigest()

    @property
    def _kind(self) -> str:
        if self.extends is not None:
            return "extended"
        return "gpu" if self.gpu else "cpu"

    @property
    def tag(self) -> str:
        """The image's tag, the same wherever it is built from the same."""
        version = re.sub(r"[^\w.-]", "-", __version__)
        return f"{version}-{self._kind}-{self.digest[:12]}"

    @property
    def image(self) -> str:
        """The image's name on the machine that builds it."""
        return f"{REPOSITORY}:{self.tag}"

    def files(self) -> dict[str, bytes]:
        """The files of the context, by name."""
        found = {"Dockerfile": self.dockerfile.encode()}
        found["layers.py"] = (_HERE / "layers.py").read_bytes()
        found["requirements.txt"] = self.requirements.encode()
        if self.extends is None:
            found |= {"needed.txt": needed().encode(), "trcomp.tar": package_tar(_epoch())}
        return found

    def archive(self) -> bytes:
        """The context as a tar, as ``docker build -`` takes it on standard input."""
        return _tar({name: (data, 0o644) for name, data in self.files().items()}, _epoch())


def arguments(dockerfile: str) -> tuple[str, ...]:
    """The names of the arguments that a Dockerfile takes, but those that trcomp itself gives."""
    found = dict.fromkeys(re.findall(r"^ARG (\w+)", dockerfile, re.MULTILINE))
    own = {"FROM_IMAGE", "REVISION", "VERSION"}
    return (*(name for name in found if name not in own), *_PROXIES)


def needed() -> str:
    """What trcomp requires beside what the Dockerfile pins, one requirement a line."""
    lines = []
    for text in metadata.distribution("trcomp").requires or ():
        runtime = _RUNTIME.fullmatch(text)
        if ";" not in text:
            lines.append(text)
        elif runtime and runtime[1] not in _PINNED:
            lines.append(f"{runtime[1]}{runtime[2]}".strip())
    return "".join(f"{line}\n" for line in sorted(lines))


@lru_cache(maxsize=2)
def package_tar(epoch: int) -> bytes:
    """trcomp as it lies in the image: the package, its metadata, and the commands.

    The tar becomes a layer as it is, so that the same sources give the same layer.

    Args:
        epoch: The time of every file, in seconds since 1970.
    """
    return _tar(dict(_package_files()), epoch, directories=True)


def _package_files() -> Iterator[tuple[str, tuple[bytes, int]]]:
    assert trcomp.__file__ is not None
    package = Path(trcomp.__file__).parent
    for path in package.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            yield f"{_ROOT}/trcomp/{path.relative_to(package)}", (path.read_bytes(), 0o644)
    installed = metadata.distribution("trcomp")
    folder = f"{_ROOT}/trcomp-{__version__}.dist-info"
    yield f"{folder}/METADATA", (_metadata(installed.requires or ()).encode(), 0o644)
    yield f"{folder}/INSTALLER", (b"trcomp build\n", 0o644)
    entry_points = installed.read_text("entry_points.txt") or ""
    yield f"{folder}/entry_points.txt", (entry_points.encode(), 0o644)
    for name, module in _LAUNCHERS.items():
        yield f"{_ROOT}/bin/{name}", (_LAUNCHER.format(module=module).encode(), 0o755)


def _metadata(requires: Iterable[str]) -> str:
    """What tools ask of a package; its description would make another image of every change."""
    own = [line for line in requires if ";" not in line]
    headers = ["Metadata-Version: 2.1", "Name: trcomp", f"Version: {__version__}"]
    headers += [f"Requires-Dist: {line}" for line in sorted(own)]
    return "\n".join([*headers, ""])


def _tar(files: Mapping[str, tuple[bytes, int]], epoch: int, directories: bool = False) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(_parents(files)) if directories else ():
            archive.addfile(_entry(name, 0o755, epoch, tarfile.DIRTYPE))
        for name, (data, mode) in sorted(files.items()):
            entry = _entry(name, mode, epoch)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _entry(name: str, mode: int, epoch: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mtime, entry.mode, entry.type = epoch, mode, kind
    return entry


def _parents(files: Mapping[str, object]) -> set[str]:
    return {str(parent) for name in files for parent in Path(name).parents if parent.name}


def _epoch() -> int:
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    return int(text) if text.isdigit() else _EPOCH
