"""What every launcher tells its containers of a job, and the variables that a job may not set."""

from __future__ import annotations

from trcomp import flags
from trcomp.contract import Settings
from trcomp.errors import Problem, SpecError
from trcomp.spec import JobSpec

OWN_VARIABLES = ("SAGEMAKER_BASE_DIR", "TRAINING_JOB_NAME")
"""What each container is given beside the flags of its job."""


def settings(spec: JobSpec, cache: str | None, submit_directory: str | None = None) -> Settings:
    """A job's settings.

    Args:
        spec: The job.
        cache: Where executables are kept, as a container sees it.
        submit_directory: The archive with the code, if code does not lie there already.
    """
    compiler = spec.compiler_config
    return Settings(
        program=spec.program,
        submit_directory=submit_directory,
        compiler_enabled=None if compiler is None else compiler.enabled,
        compiler_debug=compiler is not None and compiler.debug,
        cuda_to_xla=compiler is None or compiler.cuda_to_xla,
        compiler_cache=cache,
        pytorchxla_enabled=spec.pytorchxla,
        log_level=spec.container_log_level,
    )


def environment_problems(spec: JobSpec) -> list[Problem]:
    """What of a job's environment trcomp sets itself, or could not read."""
    own = {*OWN_VARIABLES, *(flag.name for flag in flags.JOB_ONLY)}
    found = [
        Problem("environment", name, "trcomp sets this variable itself.")
        for name in spec.environment
        if name in own
    ]
    for flag in flags.ALL:
        try:
            flag.get(spec.environment)
        except SpecError as error:
            found += error.problems
    return found
