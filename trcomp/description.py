"""A job's words as one spec, with all that is wrong with them, the backend's view included."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trcomp import backends
from trcomp.errors import Problem, SpecError
from trcomp.spec import JobSpec


def problems_of(words: Mapping[str, Any]) -> list[Problem]:
    """All that is wrong with words of `Estimator` and of its `fit` (inputs, job_name) together."""
    return spec_and_problems({"job_name": "a", **words})[1]


def spec_and_problems(words: dict[str, Any]) -> tuple[JobSpec, list[Problem]]:
    """The spec of some words and all their problems; with problems the spec is of no use."""
    try:
        spec, problems = JobSpec.of(**words), []
    except SpecError as error:
        # What the backend finds in the sound words belongs into the same report.
        problems = list(error.problems)
        broken = {_word(problem) for problem in problems}
        sound = {word: value for word, value in words.items() if word not in broken}
        spec = JobSpec.of(**{"job_name": "a", "entry_point": "a.py"} | sound)
    else:
        broken = set()
    found = backends.problems(spec)
    return spec, problems + [problem for problem in found if _word(problem) not in broken]


def _word(problem: Problem) -> str:
    return re.split(r"[.\[]", problem.field)[0]
