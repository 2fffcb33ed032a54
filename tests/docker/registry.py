"""A registry of images on 127.0.0.1, which engines trust: who signs in may push and pull."""

from __future__ import annotations

import base64
import hashlib
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Registry:
    """What has been pushed."""

    address: str = ""
    username: str = "me"
    password: str = "s3cret-of-the-registry"
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """By ``repository:tag`` and by digest: the media type and the text."""
    uploads: dict[str, bytearray] = field(default_factory=dict)


@contextmanager
def serving() -> Iterator[Registry]:
    """Run a registry."""
    found = Registry()

    class Handler(_Handler):
        registry = found

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    registry: Registry
    protocol_version = "HTTP/1.1"

    def __getattr__(self, name: str) -> Any:
        # do_GET, do_PUT and their like.
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def log_message(self, *words: object) -> None:
        """Print nothing."""

    def _handle(self) -> None:
        body, known = self._body(), self.registry
        signed = base64.b64encode(f"{known.username}:{known.password}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {signed}":
            self._answer(401, {"WWW-Authenticate": 'Basic realm="registry"'})
            return
        url = urlsplit(self.path)
        name, _, rest = url.path.removeprefix("/v2/").rpartition("/")
        if url.path == "/v2/":
            self._answer(200)
        elif name.endswith("/manifests"):
            self._manifest(name.removesuffix("/manifests"), rest, body)
        elif name.endswith("/blobs/uploads"):
            self._upload(url.path, rest, body, parse_qs(url.query).get("digest", [""])[0])
        elif rest in known.blobs:
            self._answer(200, {"Docker-Content-Digest": rest}, known.blobs[rest])
        else:
            self._answer(404)

    def _upload(self, path: str, which: str, body: bytes, digest: str) -> None:
        if self.command == "POST":
            which = uuid.uuid4().hex
            path += which
            self.registry.uploads[which] = bytearray()
        self.registry.uploads[which] += body
        headers = {"Location": path, "Docker-Upload-UUID": which}
        if self.command != "PUT":
            headers["Range"] = f"0-{max(len(self.registry.uploads[which]) - 1, 0)}"
            self._answer(202, headers)
            return
        self.registry.blobs[digest] = bytes(self.registry.uploads.pop(which))
        self._answer(201, {"Location": path, "Docker-Content-Digest": digest})

    def _manifest(self, repository: str, reference: str, body: bytes) -> None:
        kept = self.registry.manifests
        if self.command == "PUT":
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
            kept[digest] = kept[f"{repository}:{reference}"] = (self.headers["Content-Type"], body)
            self._answer(201, {"Docker-Content-Digest": digest})
            return
        found = kept.get(reference) or kept.get(f"{repository}:{reference}")
        if found is None:
            self._answer(404)
            return
        digest = f"sha256:{hashlib.sha256(found[1]).hexdigest()}"
        headers = {"Content-Type": found[0], "Docker-Content-Digest": digest}
        self._answer(200, headers, found[1])

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        whole = bytearray()
        while size := int(self.rfile.readline().strip() or b"0", 16):
            whole += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return bytes(whole)

    def _answer(self, code: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(code)
        every = {"Docker-Distribution-Api-Version": "registry/2.0"} | (headers or {})
        for name, value in (every | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
