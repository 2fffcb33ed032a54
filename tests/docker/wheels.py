"""A base with packages that are a name and no more: the image is built on it in seconds."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Iterator
from typing import Any

from trcomp.images.context import needed

VERSION = "99.0"
"""Of torch and jax: no real image has it, so none is taken for one of these."""
FOLDER = "/wheels"
_DOCKERFILE = "FROM {image}\nCOPY wheels {folder}\n"


def build_args(client: Any, image: str) -> dict[str, str]:
    """Arguments by which trcomp's image is built on an image, without a network."""
    found = {"BASE_IMAGE": base(client, image)}
    found |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": FOLDER}
    return found | {"TORCH_VERSION": VERSION, "JAX_VERSION": VERSION}


def as_text(args: dict[str, str]) -> str:
    """Arguments as the environment gives them."""
    return " ".join(f"{name}={value}" for name, value in args.items())


def base(client: Any, image: str) -> str:
    """An image that also holds all wheels that trcomp's image is made of; it is made once."""
    from docker.errors import ImageNotFound

    files = {f"wheels/{name}": data for name, data in _wheels()}
    files["Dockerfile"] = _DOCKERFILE.format(image=image, folder=FOLDER).encode()
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    name = f"trcomp-tests/wheels:{digest[:12]}"
    try:
        client.images.get(name)
    except ImageNotFound:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path, data in files.items():
                entry = tarfile.TarInfo(path)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        buffer.seek(0)
        client.images.build(fileobj=buffer, custom_context=True, tag=name, rm=True)
    return name


def _wheels() -> Iterator[tuple[str, bytes]]:
    versions = dict.fromkeys(("torch", "jax", "jaxlib", "extra_package", "later_package"), VERSION)
    for line in needed().splitlines():
        match = re.fullmatch(r"([\w.-]+).*>=([\d.]+).*", line)
        assert match is not None, line
        versions[match[1]] = match[2]
    for name, version in versions.items():
        yield f"{name}-{version}-py3-none-any.whl", _wheel(name, version)


def _wheel(name: str, version: str) -> bytes:
    """A wheel of one module, which has the package's name."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f'VERSION = "{version}"\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return buffer.getvalue()
