"""Train PyTorch through the XLA compiler with one flag."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from trcomp._version import __version__

if TYPE_CHECKING:
    from trcomp.backends.base import JobStatus, Plan
    from trcomp.config import TrainingCompilerConfig
    from trcomp.errors import (
        BackendUnavailableError,
        ContractError,
        DeviceError,
        ForkedProcessError,
        InternalError,
        JobCapacityError,
        JobError,
        JobFailedError,
        JobLimitError,
        JobNotFoundError,
        JobRunningError,
        JobStoppedError,
        JobTimeoutError,
        MissingExtraError,
        OutOfScopeError,
        Problem,
        QuotaError,
        SpecError,
        TrcompError,
        UnsupportedError,
    )
    from trcomp.estimator import Estimator
    from trcomp.interop import sagemaker_kwargs
    from trcomp.job import Job
    from trcomp.runtime import step
    from trcomp.spec import JobSpec

__all__ = [
    "BackendUnavailableError",
    "ContractError",
    "DeviceError",
    "Estimator",
    "ForkedProcessError",
    "InternalError",
    "Job",
    "JobCapacityError",
    "JobError",
    "JobFailedError",
    "JobLimitError",
    "JobNotFoundError",
    "JobRunningError",
    "JobSpec",
    "JobStatus",
    "JobStoppedError",
    "JobTimeoutError",
    "MissingExtraError",
    "OutOfScopeError",
    "Plan",
    "Problem",
    "QuotaError",
    "SpecError",
    "TrainingCompilerConfig",
    "TrcompError",
    "UnsupportedError",
    "__version__",
    "sagemaker_kwargs",
    "step",
]

# Loaded when first asked for: a worker that imports trcomp.runtime must not pay for pydantic, nor a
# client that imports Estimator for anything before it makes one.
_HOMES = {
    "Estimator": "trcomp.estimator",
    "Job": "trcomp.job",
    "JobSpec": "trcomp.spec",
    "JobStatus": "trcomp.backends.base",
    "Plan": "trcomp.backends.base",
    "TrainingCompilerConfig": "trcomp.config",
    "sagemaker_kwargs": "trcomp.interop",
    "step": "trcomp.runtime",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'trcomp' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOMES.get(name, "trcomp.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
