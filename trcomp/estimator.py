"""Estimator: the user's words, as SageMaker's SDK v2 spells them, to one JobSpec to a Job."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, Unpack

from trcomp import backends, limits, out_of_scope, rules
from trcomp import retries as again
from trcomp.backends import git, sessions, siblings
from trcomp.backends.base import Plan
from trcomp.backends.sagemaker_image import chosen_image, image_note
from trcomp.config import TrainingCompilerConfig
from trcomp.container import ContainerWords
from trcomp.description import spec_and_problems
from trcomp.errors import Problem, SpecError, nearest
from trcomp.job import Job
from trcomp.managed import ManagedWords
from trcomp.spec import JobSpec, copied

Inputs = Any
"""One channel or a dict of channels, each a path, ``file://``, ``s3://`` or a TrainingInput."""

_LOGS = {"All": True, "Training": True, "None": False, "Rules": False, True: True, False: False}


class OtherWords(ManagedWords, ContainerWords, total=False):
    """The words that one backend alone has a use for."""


class Estimator:
    """One training script and how to run it; each `fit` is a job of its own.

    The words are copied: what is passed in is never changed, and changing it later changes nothing.

    Args:
        entry_point: The script, relative to source_dir. A path to a file inside source_dir is taken
            too; without source_dir it is any path.
        source_dir: The directory of the script and all it needs. None: the script's file alone.
            For a job in SageMaker also ``s3://``, of a directory or of a tar.gz archive.
        git_config: ``{"repo": URL, "branch": NAME, "commit": HASH}``: the repository that the
            script, source_dir and dependencies are in, cloned when a job is submitted. git's own
            configuration says how it is reached; no password is taken.
        dependencies: More files and directories for the job's code, each beside the script.
        instance_type: ``local_process`` (the default) runs on this machine, as plain processes;
            ``local`` and ``local_gpu`` in containers on it; a type such as ``ml.p4d.24xlarge`` in
            Amazon SageMaker.
        instance_count: Number of hosts; default 1.
        hyperparameters: Reach the script as ``--name value``, in this order; None is not sent.
        arguments: More arguments for the script, behind those and exactly as they are:
            ``["--fp16", "data"]``.
        environment: Variables for the script. They win over those that trcomp computes.
        max_restarts: How often all workers start anew within the job if its script fails, to go on
            from their checkpoints; None: TRCOMP_MAX_RESTARTS of environment, or 0.
        compiler_config: One worker per device runs the script through XLA
            (``TrainingCompilerConfig(enabled=False)``: without XLA). None: the script runs once per
            host and starts its ranks itself, with ``torch_xla``'s ``xmp.spawn``.
        distribution: ``{"pytorchxla": {"enabled": True}}`` and ``{"trcomp": {…}}``, with the words
            of TrainingCompilerConfig, ask for one worker per device through XLA,
            ``{"torch_distributed": {"enabled": True}}`` for the same without XLA.
            ``"instance_groups": [names]`` beside it says on which hosts.
        model_uri: A trained model that the job starts from: a channel more, model_channel_name.
        output_path: Results go to ``<output_path>/<job>/output/``. None: into the job's directory.
        base_job_name: Names jobs ``<base_job_name>-<time>``. None: the script's name.
        checkpoint_s3_uri: Where checkpoints are kept from one job to the next.
        checkpoint_local_path: Where the script finds them; default /opt/ml/checkpoints.
        container_log_level: Level of Python's logging for trcomp's own messages in the job.
        role: ARN of the IAM role that a job in SageMaker acts as; a local job needs none.
        sagemaker_session: AWS is reached through this session, of boto3 or of SageMaker's SDK;
            None: as boto3 is configured.
        source_code, compute, networking, stopping_condition: Objects of SageMaker's SDK v3, in
            place of the words that they say.
        managed: What else a job in SageMaker can be told, and one in containers on this machine;
            `ManagedWords` and `ContainerWords` describe each word.

    Raises:
        SpecError: Holds every problem of all these words at once.
    """

    def __init__(
        self,
        entry_point: str | Path | None = None,
        source_dir: str | Path | None = None,
        *,
        git_config: Mapping[str, str] | None = None,
        dependencies: Sequence[str | Path] | None = None,
        instance_type: str | None = None,
        instance_count: int | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        arguments: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        max_restarts: int | None = None,
        compiler_config: TrainingCompilerConfig | None = None,
        distribution: Mapping[str, Any] | None = None,
        model_uri: str | None = None,
        model_channel_name: str = "model",
        output_path: str | Path | None = None,
        base_job_name: str | None = None,
        checkpoint_s3_uri: str | Path | None = None,
        checkpoint_local_path: str | None = None,
        container_log_level: int = 20,
        role: str | None = None,
        sagemaker_session: Any = None,
        source_code: Any = None,
        compute: Any = None,
        networking: Any = None,
        stopping_condition: Any = None,
        **managed: Unpack[OtherWords],
    ) -> None:
        self._base_job_name = base_job_name
        self._words: dict[str, Any] = dict(copied(managed)) | {
            "entry_point": entry_point,
            "source_dir": source_dir,
            "git_config": copied(git_config),
            "dependencies": copied(dependencies),
            "hyperparameters": copied(hyperparameters),
            "arguments": copied(arguments),
            "environment": copied(environment),
            "max_restarts": max_restarts,
            "instance_type": instance_type,
            "instance_count": instance_count,
            "compiler_config": compiler_config,
            "distribution": copied(distribution),
            "output_path": output_path,
            "checkpoint_s3_uri": checkpoint_s3_uri,
            "checkpoint_local_path": checkpoint_local_path,
            "container_log_level": container_log_level,
            "role": role,
            "model_uri": model_uri,
            "model_channel_name": model_channel_name,
            "source_code": source_code,
            "compute": compute,
            "networking": networking,
            "stopping_condition": stopping_condition,
        }
        self._inputs: Inputs = None
        """The channels of a `fit` without any: those of the job that was attached to."""
        self._session = sessions.boto_session(sagemaker_session)
        bucket = sessions.default_bucket(sagemaker_session)
        if bucket is not None and output_path is None and not self._local:
            self._words["output_path"] = bucket
        self.latest_training_job: Job | None = None
        """The job of the latest `fit`."""
        with sessions.through(self._session):
            spec = self.to_spec()
            for note in (image_note(spec), siblings.note(spec)):
                if note:
                    warnings.warn(note, stacklevel=3 if type(self) is not Estimator else 2)

    def fit(
        self,
        inputs: Inputs = None,
        wait: bool = True,
        logs: str | bool = "All",
        job_name: str | None = None,
        experiment_config: Mapping[str, str] | None = None,
        *,
        retries: int = 0,
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
            retries: How often the job is started anew, as ``NAME-2`` and so on, if its script
                fails; each try finds the checkpoints of the one before at checkpoint_s3_uri.

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
        found = again.problems(retries, plan.spec, wait)
        if found:
            raise SpecError(found)

        def submit(plan: Plan) -> None:
            backend = sessions.bound(backends.named(plan.backend), self._session)
            with git.cloned(plan.spec) as spec:
                backend.submit(plan if spec is plan.spec else backend.plan(spec))
            self.latest_training_job = Job(plan.handle, self._session)

        if not wait:
            submit(plan)
            return
        # Here, not above: rich is needed only to show a job.
        from rich.console import Console

        from trcomp import follow

        config = plan.spec.compiler_config
        compiles = config is None or config.enabled
        console = Console()

        def show(plan: Plan) -> None:
            job = Job(plan.handle, self._session)
            shown = {"show_logs": _LOGS[logs], "compiles": compiles}
            follow.run(job, lambda: submit(plan), console, **shown)

        again.run(plan, retries, show)

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
        backend = backends.for_instance_type(spec.instance_type)
        return sessions.bound(backend, self._session).plan(spec)

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
        given = self._inputs if inputs is None else inputs
        words = self._words | {"inputs": given, "job_name": name}
        if experiment_config is not None:
            words["experiment_config"] = dict(experiment_config)
        with sessions.through(self._session):
            spec, problems = spec_and_problems(words)
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

    def training_image_uri(self) -> str | None:
        """The image of a job in SageMaker: image_uri, a frozen one by versions, or trcomp's own."""
        with sessions.through(self._session):
            return chosen_image(self.to_spec())

    @classmethod
    def attach(
        cls,
        training_job_name: str,
        sagemaker_session: Any = None,
        model_channel_name: str = "model",
    ) -> Self:
        """An estimator with the words of a job in SageMaker, whoever started it, and its handle.

        Its code is what that job ran, out of S3; `fit` runs it again.

        Args:
            training_job_name: The job's name, or its handle ``sagemaker://NAME``.
            sagemaker_session: As for the constructor.
            model_channel_name: The channel with the model that the job started from.

        Raises:
            JobNotFoundError: No job of the account and region has that name.
            SpecError: trcomp cannot run such a job, one of another algorithm for example.
        """
        from trcomp.backends import sagemaker
        from trcomp.backends.sagemaker_words import to_words

        session = sessions.boto_session(sagemaker_session)
        name = training_job_name.removeprefix("sagemaker://")
        with sessions.through(session):
            words = to_words(sagemaker.description(name))
        channels = words.pop("inputs")
        if model_channel_name in channels:
            words["model_uri"] = channels.pop(model_channel_name).words["uri"]
            words["model_channel_name"] = model_channel_name
        estimator = cls(**words, sagemaker_session=sagemaker_session)
        estimator._inputs = channels
        estimator.latest_training_job = Job(f"sagemaker://{name}", session)
        return estimator

    def to_model_trainer(self, inputs: Inputs = None, sagemaker_session: Any = None) -> Any:
        """The ModelTrainer of SageMaker's SDK v3 for this job, which needs ``trcomp[sagemaker]``.

        The code is uploaded, and nothing started: `train` does that, or a pipeline's TrainingStep.

        Args:
            inputs: As for `fit`.
            sagemaker_session: SDK v3's session or PipelineSession; None: the SDK's own.

        Raises:
            SpecError: The job has words that ModelTrainer has no setting for.
            MissingExtraError: The SDK is not installed.
            BackendUnavailableError: AWS cannot be reached, or refuses.
        """
        # Here, not above: it needs all of a job in SageMaker.
        from trcomp import interop

        return interop.to_model_trainer(self, inputs, sagemaker_session)

    @property
    def session(self) -> Any:
        """The boto3 session that AWS is reached through, None for boto3's own configuration."""
        return self._session

    @property
    def base_job_name(self) -> str:
        """What jobs are named after: base_job_name, or the script's name."""
        if self._base_job_name is not None:
            return self._base_job_name
        script = self._words["entry_point"] or getattr(
            self._words["source_code"], "entry_script", ""
        )
        stem = Path(str(script)).stem
        return re.sub(r"[^a-zA-Z0-9]+", "-", stem).strip("-") or "job"

    def logs(self) -> None:
        """Show the latest job until it ends, with what its workers print.

        Raises:
            SpecError: There is no job yet.
            JobFailedError: The job failed.
            JobStoppedError: The job was stopped.
        """
        # Here, not above: rich is needed only to show a job.
        from rich.console import Console

        from trcomp import follow

        follow.run(self._latest(), lambda: None, Console(), show_logs=True, compiles=False)

    def stop(self) -> None:
        """Ask the latest job to stop; `latest_training_job.wait()` waits for its end.

        Raises:
            SpecError: There is no job yet.
        """
        self._latest().stop()

    @property
    def model_data(self) -> str | None:
        """URI of the latest job's model.tar.gz; None if it saved no model (yet)."""
        job = self.latest_training_job
        return None if job is None else job.record().model

    @property
    def _local(self) -> bool:
        return self.to_spec().instance_type in rules.LOCAL_TYPES

    def _latest(self) -> Job:
        if self.latest_training_job is None:
            problem = Problem("latest_training_job", None, "there is no job yet: call fit first.")
            raise SpecError([problem])
        return self.latest_training_job

    def __getattr__(self, name: str) -> Any:
        if name in out_of_scope.METHODS:
            raise out_of_scope.refusal(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _new_name(self) -> str:
        """A job name that is new each millisecond, as SageMaker's SDK makes it."""
        base = self.base_job_name
        stamp = datetime.now(UTC).strftime("%Y-%m-%d-%H-%M-%S-%f")[:-3]
        room = limits.longest("TrainingJobName") - len(stamp) - 1
        return f"{base[:room].rstrip('-')}-{stamp}"
