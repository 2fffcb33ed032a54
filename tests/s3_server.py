"""S3 over HTTP for a test: moto's server in a thread, with credentials that it takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest

BUCKET = "executables"


@contextmanager
def running(patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a server that has one bucket; this process's environment leads there."""
    # werkzeug's own server, without moto's wrapper, which prints each request.
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    environ = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in environ.items():
        patch.setenv(name, value)
    try:
        client = boto3.Session().client("s3")
        client.create_bucket(Bucket=BUCKET)
        yield client
        client.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        _forget()


def _forget() -> None:
    """Empty moto's state, which all servers of a process share."""
    from moto.s3.models import s3_backends

    s3_backends.reset()
