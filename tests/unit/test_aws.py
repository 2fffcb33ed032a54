"""AWS's refusals in trcomp's words, without AWS."""

from __future__ import annotations

import pytest
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    UnauthorizedSSOTokenError,
)

from trcomp import BackendUnavailableError
from trcomp.backends.aws import renewed, told

GOES_ON = "The job goes on."


@pytest.mark.parametrize(
    "error",
    [
        NoCredentialsError(),
        UnauthorizedSSOTokenError(),
        CredentialRetrievalError(provider="x", error_msg="y"),
    ],
)
def test_who_is_not_signed_in_is_told_how_to_be(error: Exception) -> None:
    with pytest.raises(BackendUnavailableError, match="aws sso login"), told("look", GOES_ON):
        raise error


def test_an_error_that_is_no_matter_of_credentials_is_not_tried_again() -> None:
    calls = []

    def call() -> None:
        calls.append(1)
        raise ClientError({"Error": {"Code": "ValidationException", "Message": "no"}}, "Describe")

    with pytest.raises(ClientError):
        renewed(call)
    assert calls == [1]
