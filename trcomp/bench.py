"""`trcomp bench`: one script in three forms, as three jobs, and which form is worth using."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trcomp import flags
from trcomp.errors import InternalError, JobError, JobFailedError
from trcomp.estimator import Estimator
from trcomp.job import Job
from trcomp.job_options import requested_job

FORMS = {
    "eager": "PyTorch's own device, without XLA",
    "lazy": "as `trcomp run` runs it",
    "compile": 'lazy, with each model under torch.compile(backend="trcomp")',
}
_NOTICEABLE = 0.05
"""Forms whose steps differ by less are taken as equally fast: the simpler one is then used."""
_HOW = {
    "eager": "`trcomp run --no-compiler`, or TrainingCompilerConfig(enabled=False)",
    "lazy": "`trcomp run`, with the script as it is",
    "compile": 'torch.compile(model, backend="trcomp") in the script, or `trcomp run --env '
    f"{flags.COMPILE_MODELS.name}=1`",
}


@dataclass(frozen=True)
class Measured:
    """What one form of the script did. Times are None where there were too few steps to tell."""

    form: str
    steps: int = 0
    step_seconds: float | None = None
    first_step_seconds: float | None = None
    compiles: int = 0
    fallbacks: int = 0
    peak_rss_bytes: int | None = None
    problem: str | None = None
    """Why the form did not run, or is none of its own."""

    def row(self) -> tuple[str, ...]:
        """A line of the table."""
        if self.problem is not None:
            return self.form, self.problem
        times = (self.step_seconds, self.first_step_seconds)
        step, first = ("-" if value is None else f"{value:.4g} s" for value in times)
        return self.form, step, first, str(self.steps), str(self.compiles)


def measure(words: dict[str, Any], steps: int, told: Callable[[str], None]) -> tuple[Measured, ...]:
    """Run a script in each form, one after the other.

    Args:
        words: The script, its arguments and options, as `requested_job` takes them.
        steps: After how many each form ends.
        told: Called with a line of text as each form starts.

    Raises:
        SpecError: Nothing was started.
        JobFailedError: No form ran; holds the script's own traceback.
        JobStoppedError: Somebody stopped a job.
    """
    requests = {form: _request(form, words, steps) for form in FORMS}
    measured, failures = [], []
    for form, (estimator, request) in requests.items():
        told(f"{form:<8} {FORMS[form]} …")
        try:
            measured.append(_measured(form, _report(estimator, request)))
        except JobFailedError as error:
            failures.append(error)
            name = Job(error.handle).name
            problem = f"failed: {_last_line(error)} (`trcomp logs {name}`)"
            measured.append(Measured(form, problem=problem))
    if len(failures) == len(FORMS):
        raise failures[0]
    return tuple(measured)


def fastest(measured: Sequence[Measured]) -> Measured | None:
    """The simplest of the forms whose steps are hardly slower than the fastest; None of none."""
    timed = [one for one in measured if one.problem is None and one.step_seconds is not None]
    if not timed:
        return None
    least = min(_seconds(one) for one in timed)
    return next(one for one in timed if _seconds(one) <= least * (1 + _NOTICEABLE))


def advice(measured: Sequence[Measured]) -> str:
    """Which form to use and how, and from which step on it pays."""
    best = fastest(measured)
    if best is None:
        return "No form made two steps: give it more with --steps, or with the script's arguments."
    text = f"Use {best.form}: {_HOW[best.form]}."
    eager = next((one for one in measured if one.form == "eager"), None)
    if eager is None or eager is best or eager.step_seconds is None:
        return text
    text += f" Its steps take {_seconds(best) / eager.step_seconds:.2f}x eager's time"
    later = (best.first_step_seconds or 0) - (eager.first_step_seconds or 0)
    if later <= 0:
        return f"{text}."
    steps = int(later / (eager.step_seconds - _seconds(best))) + 1
    return f"{text}, which makes up for its first step after about {steps} steps."


def table(measured: Sequence[Measured]) -> list[str]:
    """The lines of a table of all forms."""
    rows = [("", "step", "first step", "steps", "compiles"), *(one.row() for one in measured)]
    return ["  ".join(f"{text:<12}" for text in row).rstrip() for row in rows]


def _request(form: str, words: dict[str, Any], steps: int) -> tuple[Estimator, dict[str, Any]]:
    own: dict[flags.Flag[Any], str] = {
        flags.STEPS: str(steps),
        flags.COMPILE_MODELS: str(int(form == "compile")),
        # What another run has compiled would hide what the first step costs.
        flags.CACHE: "off",
    }
    env = [*words["env"], *(f"{flag.name}={value}" for flag, value in own.items())]
    places = {"instance_type": "local_process", "instance_count": 1, "output_path": None}
    return requested_job(**words | places | {"env": env, "compiler": form != "eager"})


def _report(estimator: Estimator, request: dict[str, Any]) -> dict[str, Any]:
    """What the workers of a job measured, which is removed then. Ctrl-C stops it."""
    estimator.fit(**request, wait=False)
    job = estimator.latest_training_job
    if job is None:
        raise InternalError("A job was submitted and has no handle.")
    try:
        job.wait()
    except KeyboardInterrupt:
        job.stop()
        with suppress(JobError):
            job.wait()
        raise
    totals: dict[str, Any] = job.report()["totals"]
    job.remove()
    return totals


def _measured(form: str, totals: dict[str, Any]) -> Measured:
    problem = None
    if form == "compile" and not totals.get("compiled_models"):
        problem = "like lazy: the script moves no model to the device that it does not compile"
    return Measured(
        form=form,
        steps=totals.get("steps", 0),
        step_seconds=totals.get("steady_step_seconds"),
        first_step_seconds=totals.get("first_step_seconds"),
        compiles=totals.get("compiles", 0),
        fallbacks=sum(totals["fallbacks"].values()),
        peak_rss_bytes=totals.get("peak_rss_bytes"),
        problem=problem,
    )


def _seconds(one: Measured) -> float:
    return one.step_seconds or 0.0


def _last_line(error: JobFailedError) -> str:
    lines = (error.traceback or "").strip().splitlines()
    return lines[-1] if lines else str(error).splitlines()[0]
