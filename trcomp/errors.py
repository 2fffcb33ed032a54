"""Every exception trcomp raises: a sentence, the next step, an exit code, a docs anchor.

TrcompError
├── SpecError                  64  a job's description is wrong; holds every problem at once
├── OutOfScopeError            64  what SDK v2's estimators could beyond training
├── BackendUnavailableError    69  what should run the job cannot (no engine, no devices)
│   ├── QuotaError             69  the AWS account may have no (more) instances of that type
│   └── MissingExtraError      69  a package of an optional extra is not installed
├── ContractError              78  the files under /opt/ml are missing or broken
├── JobError
│   ├── JobNotFoundError       64  no job has that handle
│   ├── JobRunningError        75  the job must have ended for this, and has not
│   ├── JobFailedError         the script's own exit code
│   │   └── JobCapacityError   69  there were no instances to train on
│   ├── JobStoppedError       143  the job was stopped
│   │   └── JobLimitError     143  it was stopped at its max_run or max_wait
│   └── JobTimeoutError        75  wait(timeout) ran out; the job goes on
├── DeviceError (RuntimeError) 70  the xla device cannot do what was asked
│   ├── DeviceMemoryError          the device ran out of memory
│   ├── ForkedProcessError         `xla` touched in a forked child of a process that uses it
│   ├── PeerLostError              another rank ended while this one was in a collective with it
│   ├── RanksDifferError           two ranks mean different things by one collective
│   ├── UnevenDataError            a rank waits for one that has no more steps
│   └── UnsupportedError           a feature that is out of scope, by name
├── RankFailedError            the rank's own exit code; a rank that the script itself started
└── InternalError              70  a defect of trcomp
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

DOCS = "docs/errors.md"


class TrcompError(Exception):
    """Base of all of trcomp's exceptions.

    Args:
        message: What happened: what, got, allowed.
        hint: The next step for the reader, a sentence.
    """

    exit_code = 70

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def anchor(self) -> str:
        """Where the docs explain this error."""
        return f"{DOCS}#{type(self).__name__.lower()}"

    def __str__(self) -> str:
        hint = "" if self.hint is None else f"\n  Next: {self.hint}"
        return f"{self.message}{hint}\n  See: {self.anchor}"


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a job's description."""

    field: str
    got: object
    allowed: str
    suggestion: str | None = None

    def __str__(self) -> str:
        text = f"{self.field}: got {self.got!r}; {self.allowed}"
        return text if self.suggestion is None else f"{text} Did you mean {self.suggestion!r}?"


class SpecError(TrcompError, ValueError):
    """A job's description is wrong. Nothing was started, written or uploaded."""

    exit_code = 64

    def __init__(self, problems: Sequence[Problem], hint: str | None = None) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = "1 problem" if count == 1 else f"{count} problems"
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"The job cannot start: {head}.\n{lines}", hint)


class OutOfScopeError(TrcompError, AttributeError):
    """SageMaker's SDK v2 had it, and trcomp leaves it to SDK v3; the hint names what to use."""

    exit_code = 64


class BackendUnavailableError(TrcompError):
    """What should run the job cannot."""

    exit_code = 69


class QuotaError(BackendUnavailableError):
    """The AWS account may have no more instances of the job's type. Nothing was started."""


class MissingExtraError(BackendUnavailableError, ImportError):
    """A package of an optional extra is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed.",
            f"pip install 'trcomp[{extra}]'",
        )


class ContractError(TrcompError):
    """The files under /opt/ml (or its stand-in) are missing or broken."""

    exit_code = 78


class JobError(TrcompError):
    """Something about one job, named by its handle."""

    def __init__(self, message: str, handle: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.handle = handle


class JobNotFoundError(JobError):
    """No job has that handle."""

    exit_code = 64


class JobRunningError(JobError):
    """The job must have ended for what was asked, and has not."""

    exit_code = 75


class JobFailedError(JobError):
    """The job's script failed.

    Attributes:
        host: Name of the host whose worker failed first, such as ``algo-1``.
        rank: Global rank of that worker, or None if the host itself failed.
        exit_code: The script's own exit code, or 128 + signal.
        traceback: The worker's own traceback, empty if it left none.
        last_lines: The failing worker's last log lines, oldest first.
    """

    def __init__(
        self,
        message: str,
        handle: str,
        *,
        exit_code: int,
        host: str | None = None,
        rank: int | None = None,
        traceback: str = "",
        last_lines: Sequence[str] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, handle, hint)
        self.exit_code = exit_code
        self.host = host
        self.rank = rank
        self.traceback = traceback
        self.last_lines = tuple(last_lines)


class JobCapacityError(JobFailedError):
    """There were no instances of the job's type to train on. Another try may find some."""

    exit_code = 69


class JobStoppedError(JobError):
    """The job was stopped before it ended."""

    exit_code = 143


class JobLimitError(JobStoppedError):
    """The job was stopped at its max_run or max_wait."""


class JobTimeoutError(JobError, TimeoutError):
    """``wait(timeout)`` ran out. The job goes on."""

    exit_code = 75


class DeviceError(TrcompError, RuntimeError):
    """The ``xla`` device cannot do what was asked."""


class ForkedProcessError(DeviceError):
    """``xla`` was touched in a forked child of a process whose runtime had started."""


class PeerLostError(DeviceError):
    """Another rank failed, or ended while this one was in a collective with it; see that one."""


class RanksDifferError(DeviceError):
    """Two ranks mean different things by one collective: they recorded different steps."""


class UnevenDataError(DeviceError):
    """A rank has a step for which another has no data. That one's loader ended first."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The device ran out of memory; the message says what the graph holds and needs."""


class UnsupportedError(DeviceError):
    """A feature that trcomp does not have, by name and with the reason."""


class RankFailedError(TrcompError):
    """A rank that the script itself started was killed, or raised what cannot be sent here.

    Attributes:
        rank: Its number in the job.
        exit_code: Its exit code, or 128 + signal.
    """

    def __init__(self, message: str, *, rank: int, exit_code: int) -> None:
        super().__init__(message)
        self.rank = rank
        self.exit_code = exit_code


class InternalError(TrcompError):
    """A defect of trcomp."""


def nearest(word: str, allowed: Sequence[str]) -> str | None:
    """The allowed spelling nearest to a word, or None if none is near."""
    matches = get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return matches[0] if matches else None


def in_one_line(error: BaseException) -> str:
    """A library's error for a log: its kind and first line, without a URL's user and password."""
    line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {_CREDENTIALS.sub('//***@', line)}"


_CREDENTIALS = re.compile(r"//[^/@\s]*@")
