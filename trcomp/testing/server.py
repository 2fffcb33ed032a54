"""One HTTP server for all of AWS that a job needs; this process's environment leads there."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from trcomp.backends import aws, sagemaker
from trcomp.backends.sagemaker_logs import GROUP
from trcomp.errors import MissingExtraError
from trcomp.testing.cloudwatch import LogBehaviour
from trcomp.testing.control import ControlPlane, Refusal

ACCOUNT = "123456789012"
"""The account that moto stands for."""
REGION = "us-east-1"
_SERVICE = "SageMaker."

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass
class _Fault:
    operation: str
    code: str | None
    """None: the connection is lost while the call's body is read."""
    message: str
    times: int
    after: int


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

    def refuse(
        self, operation: str, code: str, message: str = "", times: int = 1, after: int = 0
    ) -> None:
        """Let the next calls of an operation fail.

        Args:
            operation: Spelt as in `calls`.
            code: AWS's name of the error, such as ``ThrottlingException``.
            message: Its text.
            times: How many calls fail.
            after: How many more succeed before.
        """
        self._faults.append(_Fault(operation, code, message, times, after))

    def cut(self, operation: str, times: int = 1) -> None:
        """Lose the connection half-way through the next calls of an operation, as an upload."""
        self._faults.append(_Fault(operation, None, "", times, 0))

    @property
    def no_capacity(self) -> set[str]:
        """Instance types of which AWS has none left: jobs fail for it, those on spot wait."""
        return self.control.no_capacity

    @property
    def no_quota(self) -> set[str]:
        """Instance types of which the account may have none."""
        return self.control.no_quota

    @property
    def logs(self) -> LogBehaviour:
        """How lines come to CloudWatch: in how many streams, and how late."""
        return self.control.logs

    def interrupt(self, job_name: str) -> None:
        """Take the spot instances of a job away while it trains; it starts anew.

        Raises:
            ValueError: The job has no spot instances, or does not train.
        """
        self.control.jobs[job_name].interrupt()

    def lose_stream(self, job_name: str, host: str = "algo-1") -> None:
        """Delete what a host has printed so far from CloudWatch."""
        logs = self.client("logs")
        found = logs.describe_log_streams(
            logGroupName=GROUP, logStreamNamePrefix=f"{job_name}/{host}-"
        )
        for stream in found["logStreams"]:
            logs.delete_log_stream(logGroupName=GROUP, logStreamName=stream["logStreamName"])

    def called(self, operation: str) -> _Fault | None:
        """Note a call, and give how it is to fail if it is."""
        self.calls.append(operation)
        for fault in self._faults:
            if fault.operation != operation or fault.times == 0:
                continue
            if fault.after > 0:
                fault.after -= 1
                return None
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
            mock.patch.object(aws, "RENEWAL_SECONDS", (0.0, 0.0, 0.0)),
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
        length = int(request.get("CONTENT_LENGTH") or 0)
        if fault is not None and fault.code is None:
            request["wsgi.input"].read(length // 2)
            request["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError(f"{operation} was cut")
        if fault is not None and not target:
            body = f"<Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error>"
            respond("403 Forbidden", [("Content-Type", "application/xml")])
            return [body.encode()]
        if not target.startswith(_SERVICE) and fault is None:
            return self._others(request, respond)
        arguments = json.loads(request["wsgi.input"].read(length) or b"{}")
        try:
            if fault is not None and fault.code is not None:
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
