"""The AWS session that calls go through: the environment's, unless an estimator was given one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

from trcomp import s3
from trcomp.errors import Problem, SpecError

if TYPE_CHECKING:
    from trcomp.backends.base import Backend

_GIVEN: ContextVar[Any] = ContextVar("session", default=None)


def given() -> Any:
    """The boto3 session that calls go through now, None for the environment's."""
    return _GIVEN.get()


@contextmanager
def through(session: Any) -> Iterator[None]:
    """Let calls go through a boto3 session; None leaves them as they are."""
    if session is None:
        yield
        return
    token = _GIVEN.set(session)
    try:
        yield
    finally:
        _GIVEN.reset(token)


class _Through:
    """A backend all of whose calls go through a session."""

    def __init__(self, backend: Backend, session: Any) -> None:
        self._backend = backend
        self._session = session

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._backend, name)
        return _bound(value, self._session) if callable(value) else value


def bound(backend: Backend, session: Any) -> Backend:
    """The backend, its calls through a session if one is given."""
    return backend if session is None else cast("Backend", _Through(backend, session))


def _bound(call: Callable[..., Any], session: Any) -> Callable[..., Any]:
    @wraps(call)
    def inside(*args: Any, **words: Any) -> Any:
        with through(session):
            return call(*args, **words)

    return inside


def boto_session(value: Any) -> Any:
    """The boto3 session of what was given as `sagemaker_session`; None for None.

    Args:
        value: A session of boto3, or of SageMaker's SDK v2 or v3.

    Raises:
        SpecError: It is none of these.
    """
    session = getattr(value, "boto_session", value)
    if session is None or (hasattr(session, "client") and hasattr(session, "region_name")):
        return session
    allowed = "a session of boto3, or of SageMaker's SDK, is needed."
    raise SpecError([Problem("sagemaker_session", type(value).__name__, allowed)])


def default_bucket(value: Any) -> str | None:
    """Where a session of SageMaker's SDK was told to put results; it is not asked to make it."""
    bucket = getattr(value, "_default_bucket", None)
    bucket = bucket or getattr(value, "_default_bucket_name_override", None)
    if not isinstance(bucket, str):
        return None
    prefix = getattr(value, "default_bucket_prefix", None)
    return str(s3.Place(bucket, prefix if isinstance(prefix, str) else ""))
