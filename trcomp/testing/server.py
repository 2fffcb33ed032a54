"""One HTTP server for all of AWS that a job needs; this process's environment leads there."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from trcomp.backends import sagemaker
from trcomp.errors import MissingExtraError
from trcomp.testing.control import ControlPlane, Refusal

ACCOUNT = "123456789012"
"""The account that moto stands for."""
REGION = "us-east-1"
_SERVICE = "SageMaker."

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass
class _Fault:
    operation: str
    code: str
    message: str
    times: int


@dataclass
class SageMaker:
    """The stand-in while it runs."""

    control: ControlPlane
    role: str = f"arn:aws:iam::{ACCOUNT}:role/Training"
    """An ARN that a job can be given."""
    bucket: str = f"sagemaker-{REGION}-{ACCOUNT}"
    """The bucket of jobs without output_path; it exists."""
    calls: list[str] = field(default_factory=list)
    """The operations called so far, such as ``CreateTrainingJob``; of S3 the method, ``S3.PUT``."""
    _faults: list[_Fault] = field(default_factory=list)

    def client(self, service: str) -> Any:
        """boto3's client of a service of the stand-in."""
        import boto3

        return boto3.client(service)

    def refuse(self, operation: str, code: str, message: str = "", times: int = 1) -> None:
        """Let the next calls of an operation fail.

        Args:
            operation: Spelt as in `calls`.
            code: AWS's name of the error, such as ``ThrottlingException``.
            message: Its text.
            times: How many calls fail.
        """
        self._faults.append(_Fault(operation, code, message, times))

    def called(self, operation: str) -> _Fault | None:
        """Note a call, and give how it is to fail if it is."""
        self.calls.append(operation)
        for fault in self._faults:
            if fault.operation == operation and fault.times > 0:
                fault.times -= 1
                return fault
        return None


@contextmanager
def serving(directory: Path) -> Iterator[SageMaker]:
    """Run the stand-in; what boto3 calls in this process and its children goes there.

    Args:
        directory: Where the hosts' files go.

    Raises:
        MissingExtraError: moto is not installed.
    """
    control = ControlPlane(directory, ACCOUNT, REGION)
    stand_in = SageMaker(control)
    with listening(_Router(stand_in, aws_application())) as endpoint:
        environ = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": REGION,
        }
        # A wait between two looks is for a service that is far away.
        with (
            mock.patch.dict(os.environ, environ),
            mock.patch.object(sagemaker, "POLL_SECONDS", 0.1),
            mock.patch.object(sagemaker, "SETTLE_SECONDS", 0.0),
        ):
            os.environ.pop("AWS_PROFILE", None)
            try:
                stand_in.client("s3").create_bucket(Bucket=stand_in.bucket)
                yield stand_in
            finally:
                control.close()
                forget()


@contextmanager
def listening(application: Application) -> Iterator[str]:
    """Serve an application on a free port of this machine; gives its URL."""
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:
            """Print nothing."""

    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def aws_application() -> Application:
    """Moto's services, as it serves them over HTTP.

    Raises:
        MissingExtraError: moto is not installed.
    """
    try:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    except ImportError:
        raise MissingExtraError("moto", "testing", "A stand-in for AWS") from None
    application: Application = DomainDispatcherApplication(create_backend_app)
    return application


def forget() -> None:
    """Empty moto's state, which all servers of a process share."""
    from moto.moto_api._internal.models import moto_api_backend

    moto_api_backend.reset()


class _Router:
    """Calls of training jobs go to the control plane, all others to moto; some are made to fail."""

    def __init__(self, stand_in: SageMaker, others: Application) -> None:
        self._stand_in = stand_in
        self._others = others

    def __call__(self, request: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        target = request.get("HTTP_X_AMZ_TARGET", "")
        operation = target.rpartition(".")[2] or f"S3.{request['REQUEST_METHOD']}"
        fault = self._stand_in.called(operation)
        if fault is not None and not target:
            body = f"<Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error>"
            respond("403 Forbidden", [("Content-Type", "application/xml")])
            return [body.encode()]
        if not target.startswith(_SERVICE) and fault is None:
            return self._others(request, respond)
        length = int(request.get("CONTENT_LENGTH") or 0)
        arguments = json.loads(request["wsgi.input"].read(length) or b"{}")
        try:
            if fault is not None:
                raise Refusal(fault.code, fault.message)
            answer = self._stand_in.control.answer(operation, arguments)
        except Refusal as refusal:
            return _json(respond, "400 Bad Request", refusal.to_dict())
        return _json(respond, "200 OK", answer)


def _json(respond: Callable[..., Any], status: str, answer: dict[str, Any]) -> Iterable[bytes]:
    respond(status, [("Content-Type", "application/x-amz-json-1.1")])
    return [json.dumps(answer, default=_seconds).encode()]


def _seconds(value: Any) -> float:
    """A time, as SageMaker's JSON has it."""
    seconds: float = value.timestamp()
    return seconds
