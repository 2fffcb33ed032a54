"""Estimator: the user's words, as SageMaker's SDK v2 spells them, to one JobSpec to a Job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Unpack

from trcomp import backends, limits, rules
from trcomp.backends.base import Plan
from trcomp.config import TrainingCompilerConfig
from trcomp.errors import Problem, SpecError, nearest
from trcomp.job import Job
from trcomp.managed import ManagedWords
from trcomp.spec import JobSpec, copied

Inputs = Any
"""One channel or a dict of channels, each a path, ``file://``, ``s3://`` or a TrainingInput."""

_LOGS = {"All": True, "Training": True, "None": False, "Rules": False, True: True, False: False}


class Estimator:
    """One training script and how to run it; each `fit` is a job of its own.

    The words are copied: what is passed in is never changed, and changing it later changes nothing.

    Args:
        entry_point: The script, relative to source_dir. A path to a file inside source_dir is taken
            too; without source_dir it is any path.
        source_dir: The directory of the script and all it needs. None: the script's file alone.
        instance_type: ``local_process`` runs on this machine, as plain processes; a type such as
            ``ml.p4d.24xlarge`` in Amazon SageMaker.
        instance_count: Number of hosts.
        hyperparameters: Reach the script as ``--name value``, in this order; None is not sent.
        environment: Variables for the script. They win over those that trcomp computes.
        compiler_config: One worker per device runs the script through XLA
            (``TrainingCompilerConfig(enabled=False)``: without XLA). None: the script runs once per
            host and starts its ranks itself, with ``torch_xla``'s ``xmp.spawn``.
        distribution: None or ``{"pytorchxla": {"enabled": True}}``.
        output_path: Results go to ``<output_path>/<job>/output/``. None: into the job's directory.
        base_job_name: Names jobs ``<base_job_name>-<time>``. None: the script's name.
        checkpoint_s3_uri: Where checkpoints are kept from one job to the next.
        checkpoint_local_path: Where the script finds them; default /opt/ml/checkpoints.
        container_log_level: Level of Python's logging for trcomp's own messages in the job.
        role: ARN of the IAM role that a job in SageMaker acts as; a local job needs none.
        managed: What else a job in SageMaker can be told; `ManagedWords` describes each word.

    Raises:
        SpecError: Holds every problem of all these words at once.
    """

    def __init__(
        self,
        entry_point: str | Path,
        source_dir: str | Path | None = None,
        *,
        instance_type: str = "local_process",
        instance_count: int = 1,
        hyperparameters: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        compiler_config: TrainingCompilerConfig | None = None,
        distribution: Mapping[str, Mapping[str, bool]] | None = None,
        output_path: str | Path | None = None,
        base_job_name: str | None = None,
        checkpoint_s3_uri: str | Path | None = None,
        checkpoint_local_path: str | None = None,
        container_log_level: int = 20,
        role: str | None = None,
        **managed: Unpack[ManagedWords],
    ) -> None:
        self._base_job_name = base_job_name
        self._words: dict[str, Any] = dict(copied(managed)) | {
            "entry_point": entry_point,
            "source_dir": source_dir,
            "hyperparameters": copied(hyperparameters),
            "environment": copied(environment),
            "instance_type": instance_type,
            "instance_count": instance_count,
            "compiler_config": compiler_config,
            "distribution": copied(distribution),
            "output_path": output_path,
            "checkpoint_s3_uri": checkpoint_s3_uri,
            "checkpoint_local_path": checkpoint_local_path,
            "container_log_level": container_log_level,
            "role": role,
        }
        self.latest_training_job: Job | None = None
        """The job of the latest `fit`."""
        self.to_spec()

    def fit(
        self,
        inputs: Inputs = None,
        wait: bool = True,
        logs: str | bool = "All",
        job_name: str | None = None,
        experiment_config: Mapping[str, str] | None = None,
    ) -> None:
        """Run one job; `latest_training_job` is its handle.

        Args:
            inputs: None, a place (channel "training"), or a dict of channels. A place is a path,
                ``file://``, ``s3://`` or an object like SageMaker's TrainingInput. Local data is
                linked, not copied: a script reads it and must not write to it.
            wait: Show the job until it ends. False: return as soon as it is started; it goes on
                without this process.
            logs: "All" or "Training" show what the workers print, "None" only the job's stages.
            job_name: None: base_job_name (or the script's name) and the time.
            experiment_config: SageMaker's ``ExperimentName``, ``TrialName`` and so on.

        Raises:
            SpecError: Nothing was started.
            JobFailedError: The job failed; holds the script's own traceback.
            JobStoppedError: The job was stopped.
        """
        if logs not in _LOGS:
            near = nearest(str(logs), [name for name in _LOGS if isinstance(name, str)])
            allowed = "'All', 'Training', 'Rules' or 'None' is needed."
            raise SpecError([Problem("logs", logs, allowed, near)])
        plan = self.plan(inputs, job_name, experiment_config)
        job = Job(plan.handle)

        def submit() -> None:
            backends.named(plan.backend).submit(plan)
            self.latest_training_job = job

        if not wait:
            submit()
            return
        # Here, not above: rich is needed only to show a job.
        from rich.console import Console

        from trcomp import follow

        config = plan.spec.compiler_config
        compiles = config is None or config.enabled
        follow.run(job, submit, Console(), show_logs=_LOGS[logs], compiles=compiles)

    def plan(
        self,
        inputs: Inputs = None,
        job_name: str | None = None,
        experiment_config: Mapping[str, str] | None = None,
    ) -> Plan:
        """The request that `fit` would submit. Nothing is started, written or uploaded.

        Raises:
            SpecError: Holds every problem.
        """
        spec = self.to_spec(inputs, job_name, experiment_config)
        return backends.for_instance_type(spec.instance_type).plan(spec)

    def to_spec(
        self,
        inputs: Inputs = None,
        job_name: str | None = None,
        experiment_config: Mapping[str, str] | None = None,
    ) -> JobSpec:
        """The words as one JobSpec.

        Raises:
            SpecError: Holds every problem, those of the chosen backend included.
        """
        name = job_name or self._new_name()
        words = self._words | {"inputs": inputs, "job_name": name}
        if experiment_config is not None:
            words["experiment_config"] = dict(experiment_config)
        spec, problems = _spec_and_problems(words)
        base = self._base_job_name
        if base is not None and job_name is None:
            problems = [problem for problem in problems if problem.field != "job_name"]
            problems += rules.job_name_problems("base_job_name", base)
        if problems:
            raise SpecError(problems)
        return spec

    def hyperparameters(self) -> dict[str, Any]:
        """A copy of the hyperparameters."""
        return dict(copied(self._words["hyperparameters"]) or {})

    def set_hyperparameters(self, **values: Any) -> None:
        """Set some hyperparameters for the jobs to come.

        Raises:
            SpecError: Nothing was changed.
        """
        before = self._words
        self._words = before | {"hyperparameters": self.hyperparameters() | copied(values)}
        try:
            self.to_spec()
        except SpecError:
            self._words = before
            raise

    @property
    def model_data(self) -> str | None:
        """URI of the latest job's model.tar.gz; None if it saved no model (yet)."""
        job = self.latest_training_job
        return None if job is None else job.record().model

    def _new_name(self) -> str:
        """A job name that is new each millisecond, as SageMaker's SDK makes it."""
        base = self._base_job_name
        if base is None:
            stem = Path(str(self._words["entry_point"])).stem
            base = re.sub(r"[^a-zA-Z0-9]+", "-", stem).strip("-") or "job"
        stamp = datetime.now(UTC).strftime("%Y-%m-%d-%H-%M-%S-%f")[:-3]
        room = limits.longest("TrainingJobName") - len(stamp) - 1
        return f"{base[:room].rstrip('-')}-{stamp}"


def problems_of(words: Mapping[str, Any]) -> list[Problem]:
    """All that is wrong with words of `Estimator` and of its `fit` (inputs, job_name) together."""
    return _spec_and_problems({"job_name": "a", **words})[1]


def _spec_and_problems(words: dict[str, Any]) -> tuple[JobSpec, list[Problem]]:
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
