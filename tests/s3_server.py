"""S3 over HTTP for a test: moto's server in a thread, with credentials that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest

from trcomp.testing.server import aws_application, forget, listening

BUCKET = "executables"


@contextmanager
def running(patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a server that has one bucket; this process's environment leads there."""
    with listening(aws_application()) as endpoint:
        environ = {
            "AWS_ENDPOINT_URL": endpoint,
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
            forget()
