"""Checks of what AWS asks of this machine: credentials, a region, a clock that is right."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from trcomp.backends import aws
from trcomp.backends.region import region
from trcomp.doctor.findings import Asked, Check, Finding, ok, problem, warning
from trcomp.errors import BackendUnavailableError

_SIGN_IN = "Set AWS_PROFILE, or sign in with `aws configure` or `aws sso login`"
_LOCAL = "jobs on this machine need none"
# botocore's names of the ways that call somebody, or run a program, to get credentials at all.
_CALLING = {"container-role", "iam-role", "custom-process"}
_CALL_SECONDS = 5
_SKEW_SECONDS, _REFUSED_SECONDS = 30, 300
"""AWS refuses what was signed more than five minutes away from its own time."""


@dataclass(frozen=True)
class Account:
    """Whose credentials there are. None of them is kept here.

    Attributes:
        method: botocore's name of the way they were found, empty if they were not.
        profile: The profile of AWS's configuration that counts.
        unasked: Ways that were not tried, since they call somebody.
        region: The region that calls go to, None if none is set.
        error: Why nothing could be found out.
        identity: Who AWS says that this is, if it was asked.
        refused: What it said instead, and what to do.
    """

    method: str = ""
    profile: str = "default"
    unasked: tuple[str, ...] = ()
    region: str | None = None
    error: str = ""
    identity: str = ""
    refused: tuple[str, str] | None = None


@dataclass(frozen=True)
class Clock:
    """This machine's clock, compared with another.

    Attributes:
        ahead_seconds: How far it is ahead of AWS's, None if that was not asked.
        error: Why it could not be compared.
        before_install: Whether trcomp was installed later than now, by this clock.
    """

    ahead_seconds: float | None = None
    error: str = ""
    before_install: bool = False


def read_account(asked: Asked) -> Account:
    """Whose credentials there are, from botocore's own chain; AWS is called only if asked to."""
    from botocore.exceptions import BotoCoreError
    from botocore.session import get_session

    session = get_session()
    account = Account(profile=session.get_config_variable("profile") or "default")
    try:
        method = "" if asked.online else _found_without_call(session)
        unasked = () if asked.online or method else _unasked(session)
        account = replace(account, region=region(), method=method, unasked=unasked)
        if not asked.online:
            return account
        credentials = session.get_credentials()
    except (BotoCoreError, ValueError, RuntimeError) as error:
        return replace(account, error=str(error))
    return account if credentials is None else _asked(replace(account, method=credentials.method))


def _found_without_call(session: Any) -> str:
    for provider in session.get_component("credential_provider").providers:
        if provider.METHOD not in _CALLING and (found := provider.load()) is not None:
            return str(found.method)
    return ""


def _unasked(session: Any) -> tuple[str, ...]:
    ways = []
    if "credential_process" in session.get_scoped_config():
        ways.append("the profile's credential_process")
    names = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if any(os.environ.get(name) for name in names):
        ways.append("the container's role")
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "false").lower() != "true":
        ways.append("the role of an EC2 instance")
    return tuple(ways)


def _asked(account: Account) -> Account:
    """With what AWS says of the caller."""
    import boto3
    from botocore.config import Config

    quick = Config(
        connect_timeout=_CALL_SECONDS,
        read_timeout=_CALL_SECONDS,
        retries={"total_max_attempts": 2, "mode": "standard"},
    )
    try:
        with aws.told("ask AWS whose credentials these are"):
            answer = boto3.session.Session().client("sts", config=quick).get_caller_identity()
    except BackendUnavailableError as error:
        return replace(account, refused=(error.message, error.hint or f"{_SIGN_IN}."))
    return replace(account, identity=answer["Arn"])


def judge_credentials(account: Account, asked: Asked) -> Finding:
    """Whether there are credentials, and, if it was asked, whether AWS takes them."""
    if account.error:
        return problem(f"AWS's configuration cannot be used: {account.error}.", f"{_SIGN_IN}.")
    if account.refused:
        return problem(*account.refused)
    if not account.method:
        ways = ", ".join(account.unasked)
        unasked = f" ({ways}: not asked without --online)" if ways else ""
        return warning(f"None found{unasked}.", f"{_SIGN_IN}, for SageMaker; {_LOCAL}.")
    found = f"profile {account.profile}, by {account.method}"
    return ok(f"{account.identity}, {found}" if account.identity else found)


def judge_region(account: Account, asked: Asked) -> Finding:
    """Whether a region is set."""
    if account.region:
        return ok(account.region)
    if account.error:
        return warning("Unknown: AWS's configuration cannot be used.", "See AWS credentials.")
    where = "Set AWS_DEFAULT_REGION, or a region in AWS's configuration"
    return warning("None is set.", f"{where}, for SageMaker; {_LOCAL}.")


def read_clock(asked: Asked) -> Clock:
    """This machine's clock; it is compared with AWS's only if asked to."""
    installed = Path(__file__).stat().st_mtime
    clock = Clock(before_install=installed > time.time() + 86_400)
    return compared(clock, _endpoint()) if asked.online else clock


def _endpoint() -> str:
    """Where AWS says who somebody is, in the region that calls go to."""
    import boto3

    client = boto3.session.Session().client("sts", region_name=region() or "us-east-1")
    return str(client.meta.endpoint_url)


def compared(clock: Clock, url: str) -> Clock:
    """A clock with the difference to that of a web server, to the second."""
    request = urllib.request.Request(url, method="HEAD")
    opener = urllib.request.build_opener(_NoRedirect)
    begin = time.time()
    try:
        with opener.open(request, timeout=_CALL_SECONDS) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:
        with error:
            headers = error.headers
    except (OSError, ValueError) as error:
        return replace(clock, error=f"{url} does not answer: {error}")
    now = (begin + time.time()) / 2
    try:
        other = parsedate_to_datetime(headers.get("Date", "")).timestamp()
    except ValueError:
        return replace(clock, error=f"{url} gives no time")
    # Headers tell whole seconds, rounded down.
    return replace(clock, ahead_seconds=now - other - 0.5)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **words: Any) -> None:
        """The first server's clock is asked for, not where it sends readers."""


def judge_clock(clock: Clock, asked: Asked) -> Finding:
    """Whether the clock is right."""
    fix = "Let the system set it: `sudo timedatectl set-ntp true`; in a container, on its host."
    if clock.before_install:
        return problem("It is slow: by it, trcomp was installed after today.", fix)
    if clock.error:
        return problem(
            f"It cannot be compared: {clock.error}.",
            "See that this machine reaches AWS; HTTPS_PROXY may name a proxy.",
        )
    if clock.ahead_seconds is None:
        return ok("not compared without --online")
    seconds = abs(clock.ahead_seconds)
    found = f"{seconds:.0f} s {'ahead of' if clock.ahead_seconds > 0 else 'behind'} AWS's"
    if seconds > _REFUSED_SECONDS:
        return problem(f"It is {found}: AWS refuses what is signed with it.", fix)
    return warning(f"It is {found}.", fix) if seconds > _SKEW_SECONDS else ok(found)


CHECKS = (
    Check(
        "AWS credentials",
        read_account,
        judge_credentials,
        "botocore's own chain, as far as it calls nobody; with `--online` all of it, and whose "
        "they are. They are never printed",
        "there are none; AWS's configuration is broken, or AWS refuses them",
    ),
    Check(
        "AWS region",
        read_account,
        judge_region,
        "the environment and AWS's configuration",
        "none is set",
    ),
    Check(
        "clock",
        read_clock,
        judge_clock,
        "with `--online`, the difference to AWS's",
        f"it is more than {_SKEW_SECONDS} s; from {_REFUSED_SECONDS} s on AWS refuses calls",
    ),
)
