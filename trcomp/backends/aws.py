"""boto3's clients, found by botocore's own chain, and AWS's refusals in trcomp's words."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, TypeVar

from trcomp._version import __version__
from trcomp.backends import sessions
from trcomp.errors import BackendUnavailableError
from trcomp.iam import CALLS, PUSH_CALLS

T = TypeVar("T")

RENEWAL_SECONDS: tuple[float, ...] = (1.0, 5.0, 15.0)
"""How long to wait before credentials that expired are looked for again, each time."""
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
_UNKNOWN_KEY = {"InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId"}
_NO_CREDENTIALS = "Set AWS_PROFILE, or sign in with `aws configure` or `aws sso login`."
_NO_REGION = "Set AWS_DEFAULT_REGION, or a region in AWS's configuration."
# AWS's own words: User: arn:… is not authorized to perform: s3:PutObject on resource: arn:…
_WHO = re.compile(r"(arn:\S+) is not authorized to perform: (\S+)(?: on resource: (\S+))?")


def client(service: str, region: str | None = None) -> Any:
    """The client of a service, as the environment says now.

    Args:
        service: By boto3's name.
        region: In place of the environment's.

    Raises:
        BackendUnavailableError: There is no region, or no such profile.
    """
    with told("reach AWS"):
        return _client(service, region, tuple(sorted(_configuration())), sessions.given())


def code_of(error: Exception) -> str:
    """AWS's own name for an error of a call."""
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


def renewed(call: Callable[[], T]) -> T:
    """What a call gives; where the credentials have expired, with those that are there a bit later.

    Whoever waits for a job may wait longer than credentials last, and sign in again meanwhile.
    """
    from botocore.exceptions import ClientError

    for pause in RENEWAL_SECONDS:
        try:
            return call()
        except ClientError as error:
            if code_of(error) not in _EXPIRED:
                raise
        # A new client reads the credentials anew.
        _client.cache_clear()
        time.sleep(pause)
    return call()


@contextmanager
def told(purpose: str, hint: str | None = None) -> Iterator[None]:
    """Turn what AWS, or the way there, refuses into an error that says what to do.

    Args:
        purpose: What was to be done, after "could not".
        hint: The next step where the refusal itself suggests none.

    Raises:
        BackendUnavailableError: Something was refused.
    """
    # Here, not above: only a job in SageMaker loads them.
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        CredentialRetrievalError,
        NoCredentialsError,
        NoRegionError,
        SSOError,
        TokenRetrievalError,
    )

    try:
        yield
    except NoCredentialsError as error:
        message = f"Could not {purpose}: there are no AWS credentials."
        raise BackendUnavailableError(message, _NO_CREDENTIALS) from error
    except NoRegionError as error:
        message = f"Could not {purpose}: no AWS region is set."
        raise BackendUnavailableError(message, _NO_REGION) from error
    except ClientError as error:
        raise _refusal(error, purpose, hint) from error
    except (CredentialRetrievalError, SSOError, TokenRetrievalError) as error:
        message = f"Could not {purpose}: {error}"
        raise BackendUnavailableError(
            message, f"{_NO_CREDENTIALS} {hint or ''}".rstrip()
        ) from error
    except BotoCoreError as error:
        message = f"Could not {purpose}: {error}"
        raise BackendUnavailableError(message, hint) from error


def _refusal(error: Any, purpose: str, hint: str | None) -> BackendUnavailableError:
    code, text = code_of(error), error.response.get("Error", {}).get("Message", "")
    message = f"Could not {purpose}: {error.operation_name}: {code}: {text}"
    if code in _DENIED:
        who = _WHO.search(text)
        # S3 does not say which action it denies to whom.
        calls = CALLS | PUSH_CALLS
        action, _ = calls.get(error.operation_name, (error.operation_name, ""))
        actor, action = who.group(1, 2) if who else (_caller(), action)
        place = f" on {who[3]}" if who and who[3] else ""
        return BackendUnavailableError(message, f"Allow {actor} the action {action}{place} in IAM.")
    if code in _EXPIRED:
        renew = f"Renew the credentials, then go on. {hint or ''}".rstrip()
        return BackendUnavailableError(f"Could not {purpose}: the credentials expired.", renew)
    if code in _UNKNOWN_KEY:
        return BackendUnavailableError(message, _NO_CREDENTIALS)
    return BackendUnavailableError(message, hint)


def _caller() -> str:
    """Whose credentials these are, as far as AWS says so."""
    from botocore.exceptions import BotoCoreError, ClientError

    with suppress(BotoCoreError, ClientError):
        arn: str = client("sts").get_caller_identity()["Arn"]
        return arn
    return "these credentials"


def _configuration() -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))


@lru_cache(maxsize=8)
def _client(
    service: str, region: str | None, configuration: tuple[tuple[str, str], ...], session: Any
) -> Any:
    # A client takes a tenth of a second to make. Another configuration is another client.
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=10,
        read_timeout=60,
        max_pool_connections=16,
        # Many may look at the jobs of one account: slow down before SageMaker asks for it.
        retries={"mode": "adaptive", "total_max_attempts": 8},
        user_agent_extra=f"trcomp/{__version__}",
    )
    return (session or boto3.session.Session()).client(service, region_name=region, config=config)
