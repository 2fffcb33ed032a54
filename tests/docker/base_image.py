"""An image without a registry: this machine's Python and shell, with the libraries that they load.

    python -m tests.docker.base_image NAME

It is for this machine's engine alone. What a site puts into certificates is in it too.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from trcomp.images.engine import connect

COMMANDS = (
    *("sh", "bash", "env", "cat", "cp", "mv", "rm", "mkdir", "rmdir", "chmod", "chown", "ln", "ls"),
    *("touch", "printf", "echo", "test", "[", "true", "false", "sleep", "sed", "grep", "find"),
    *("xargs", "sort", "uniq", "cut", "tr", "wc", "head", "tail", "tee", "dirname", "basename"),
    *("readlink", "realpath", "mktemp", "id", "whoami", "uname", "hostname", "date", "tar", "gzip"),
    *("ldconfig", "sha256sum", "awk"),
)
LIBRARIES = ("libstdc++", "libgcc_s", "libm", "libdl", "librt", "libpthread", "libutil")
"""Which wheels load, beside the name service's."""
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_LINKED = re.compile(r"(?:=>\s*)?(/\S+) \(0x")


def make(client: Any, name: str) -> None:
    """Import the image into an engine."""
    prefix = Path(sys.base_prefix)
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            _add_frame(archive)
            for place, path in sorted({_place(path): path for path in _programs()}.items()):
                archive.add(path.resolve(), arcname=place)
            archive.add(prefix, arcname=str(prefix), filter=_wanted)
        file.flush()
        repository, _, tag = name.partition(":")
        path = f"{prefix}/bin:/usr/local/bin:/usr/bin:/usr/sbin"
        changes = [f"ENV PATH={path}", 'CMD ["python3"]']
        if CERTIFICATES.exists():
            changes += [f"ENV {n}={CERTIFICATES}" for n in ("PIP_CERT", "SSL_CERT_FILE")]
        client.api.import_image_from_file(file.name, repository, tag or "latest", changes)


def _add_frame(archive: tarfile.TarFile) -> None:
    """Directories, the merged /usr, and who root is."""
    for name in (
        "usr/bin",
        "usr/lib",
        "usr/lib64",
        "usr/sbin",
        "etc",
        "proc",
        "sys",
        "dev",
        "root",
    ):
        _add(archive, name, tarfile.DIRTYPE, 0o755)
    for name in ("tmp", "var/tmp"):
        _add(archive, name, tarfile.DIRTYPE, 0o1777)
    for name in ("bin", "lib", "lib64", "sbin"):
        _add(archive, name, tarfile.SYMTYPE, 0o777, link=f"usr/{name}")
    _add(archive, "etc/passwd", tarfile.REGTYPE, 0o644, b"root:x:0:0:root:/root:/bin/sh\n")
    _add(archive, "etc/group", tarfile.REGTYPE, 0o644, b"root:x:0:\n")
    _add(archive, "etc/nsswitch.conf", tarfile.REGTYPE, 0o644, b"hosts: files dns\n")


def _add(
    archive: tarfile.TarFile, name: str, kind: bytes, mode: int, text: bytes = b"", link: str = ""
) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname, info.size = kind, mode, link, len(text)
    archive.addfile(info, io.BytesIO(text))


def _programs() -> set[Path]:
    """Commands, and every library that they and Python's own modules load."""
    found = {Path(path) for command in COMMANDS if (path := shutil.which(command))}
    modules = Path(os.__file__).with_name("lib-dynload").glob("*.so")
    loaded = _loaded([*found, Path(sys.base_prefix, "bin/python3"), *modules])
    named = {Path(path) for path in _named_libraries()}
    certificates = [CERTIFICATES] if CERTIFICATES.exists() else []
    every = {*found, *loaded, *named, *certificates}
    return {path for path in every if not path.is_relative_to(sys.base_prefix)}


def _loaded(files: Iterable[Path]) -> Iterator[Path]:
    listing = subprocess.run(
        ["ldd", *map(str, files)], capture_output=True, text=True, check=False
    ).stdout
    return (Path(match[1]) for match in _LINKED.finditer(listing))


def _named_libraries() -> Iterator[str]:
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    listing = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.startswith((*(f"{library}.so" for library in LIBRARIES), "libnss_", "libresolv")):
            yield path


def _place(path: Path) -> str:
    """A file's name in the image, where /bin and its kin are links into /usr."""
    return re.sub(r"^/(bin|sbin|lib64|lib)/", r"/usr/\1/", str(path))


def _wanted(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = Path(info.name).parts
    if "test" in parts or info.name.endswith(".a"):
        return None
    below = parts[parts.index("site-packages") + 1 :] if "site-packages" in parts else ()
    return info if not below or below[0].startswith("pip") else None


if __name__ == "__main__":
    with closing(connect()) as engine:
        make(engine, sys.argv[1])
