"""The AWS region of now: of the session that calls go through, the environment, or the profile."""

from __future__ import annotations

from trcomp.backends import sessions


def region() -> str | None:
    """The region that boto3 would use; None if none is set."""
    if sessions.given() is not None:
        name: str | None = sessions.given().region_name
        return name
    # Here, not above: only a job in SageMaker needs it.
    from botocore.session import get_session

    found: str | None = get_session().get_config_variable("region")
    return found
