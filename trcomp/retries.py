"""A job whose script failed, started anew from its last checkpoint under a name of its own."""

from __future__ import annotations

from collections.abc import Callable

from trcomp import backends, limits
from trcomp.backends.base import Plan
from trcomp.errors import JobCapacityError, JobFailedError, Problem
from trcomp.spec import JobSpec


def run(plan: Plan, retries: int, show: Callable[[Plan], None]) -> None:
    """Run a job, and again as long as its script fails and tries are left.

    Args:
        plan: The first try.
        retries: How many more there may be.
        show: Submits a plan, shows the job until its end, and raises what that means.

    Raises:
        JobFailedError: The last try failed, or an earlier one for no reason of the script's.
    """
    name = plan.job_name
    for number in range(2, retries + 3):
        try:
            show(plan)
            return
        except JobFailedError as error:
            # Another try would find no instances either.
            if isinstance(error, JobCapacityError) or number > retries + 1:
                raise
        changes = {"job_name": numbered(name, number)}
        plan = backends.named(plan.backend).plan(plan.spec.model_copy(update=changes))


def numbered(name: str, number: int) -> str:
    """The name of a later try: ``vit-2``."""
    end = f"-{number}"
    return name[: limits.longest("TrainingJobName") - len(end)].rstrip("-") + end


def problems(retries: object, spec: JobSpec, wait: bool) -> list[Problem]:
    """Why a job cannot be tried so often."""
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        return [Problem("retries", retries, "0 or more is needed.")]
    found = []
    if retries and not wait:
        allowed = "the next try is started by who waits for this one: leave out wait=False."
        found.append(Problem("retries", retries, allowed))
    if retries and spec.checkpoint_s3_uri is None:
        allowed = "the next try goes on from a checkpoint: give checkpoint_s3_uri, and save some."
        found.append(Problem("retries", retries, allowed))
    return found
