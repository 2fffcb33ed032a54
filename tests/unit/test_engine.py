"""What whoever has no container engine, or may not use it, reads."""

from __future__ import annotations

import grp
import json
import os
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from trcomp import BackendUnavailableError
from trcomp.images import engine

Serve = Callable[[dict[str, str]], Path]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may look into, as pytest's own is not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def serve(place: Path) -> Iterator[Serve]:
    """Serves what an engine of a version answers, on a socket."""
    with ExitStack() as running:

        def start(version: dict[str, str]) -> Path:
            class Handler(BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    body = json.dumps(version).encode()
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

                def address_string(self) -> str:
                    return "socket"

                def log_message(self, *words: object) -> None:
                    pass

            path = place / "engine.sock"
            server = running.enter_context(socketserver.UnixStreamServer(str(path), Handler))
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            running.callback(thread.join)
            running.callback(server.shutdown)
            return path

        yield start


def test_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(
        BackendUnavailableError, match=r"No container engine answers.*/no\.sock"
    ) as e:
        engine.connect()
    assert "Install Docker" in str(e.value)
    assert "local_process" in str(e.value)


def test_an_engine_that_is_gone(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    with pytest.raises(BackendUnavailableError, match=r"tcp://127\.0\.0\.1:9 does not answer"):
        engine.connect()


def test_an_old_engine(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    path = serve({"ApiVersion": "1.40", "Version": "19.03.8"})
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with pytest.raises(BackendUnavailableError, match=r"19\.03\.8 speaks API 1\.40, and 1\.41"):
        engine.connect()


def test_a_new_engine(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    path = serve({"ApiVersion": "1.51", "Version": "28.3.0"})
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    engine.connect().close()


def test_a_socket_of_others_names_its_group(serve: Serve) -> None:
    path = serve({"ApiVersion": "1.51"})
    path.chmod(0)
    code = (
        "import os, docker\n"
        "from trcomp.images import engine\n"
        "if os.getuid() == 0: os.seteuid(65534)\n"
        "try: engine.connect()\n"
        "except engine.BackendUnavailableError as error: print(error)\n"
    )
    environment = {**os.environ, "DOCKER_HOST": f"unix://{path}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert f"No permission to use the container engine at {path}" in done.stdout
    assert f"The socket is for the group {grp.getgrgid(os.getgid()).gr_name!r}" in done.stdout


def test_the_usual_sockets(tmp_path: Path) -> None:
    podman = tmp_path / "podman" / "podman.sock"
    podman.parent.mkdir()
    podman.touch()
    assert engine.address({"DOCKER_HOST": "tcp://box:2375"}) == "tcp://box:2375"
    if not Path("/var/run/docker.sock").exists():
        assert engine.address({"XDG_RUNTIME_DIR": str(tmp_path)}) == f"unix://{podman}"


def test_a_full_disk_says_what_to_free() -> None:
    with pytest.raises(BackendUnavailableError, match="docker system prune"):
        engine.refuse("build the image", "write /x: no space left on device")
