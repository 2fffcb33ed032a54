"""The plan of a job in SageMaker: its request, its code, and what each host will have around it."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Iterator
from typing import Any

from trcomp.backends import bundle, source
from trcomp.backends.base import Plan, masked
from trcomp.backends.sagemaker_request import Site, account, code_uri, problems_of, request
from trcomp.backends.settings import environment_problems
from trcomp.contract import to_argv
from trcomp.env import explain
from trcomp.errors import Problem, SpecError
from trcomp.images import instances
from trcomp.spec import JobSpec

NAME = "sagemaker"
_SOME_DIGEST = "0" * 64
_NO_REGION = "unknown: set AWS_DEFAULT_REGION, or a region in AWS's configuration"


class SageMakerPlan(Plan):
    """What `submit` uploads and sends."""

    region: str | None
    code_uri: str
    digest: str
    request: dict[str, Any]

    @property
    def account(self) -> str:
        """The account of the job."""
        return account(self.spec) or ""

    @property
    def results(self) -> str:
        """Where results will be."""
        return f"{self.request['OutputDataConfig']['S3OutputPath']}/{self.job_name}/output"

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values, secrets masked."""
        values: dict[str, Any] = self.model_dump(mode="json", exclude={"spec", "request"})
        return values | {"request": self._shown_request(), "hosts": list(self._hosts())}

    def to_text(self) -> str:
        """The plan for a reader, secrets masked."""
        spec = self.spec
        facts = _facts(spec.instance_type)
        gpus = f", {facts.num_gpus} x {facts.gpu} each" if facts.num_gpus else ""
        lines = [
            f"job        {self.handle}",
            f"region     {self.region or _NO_REGION}",
            f"hosts      {spec.instance_count} x {spec.instance_type}{gpus}",
            f"results    {self.results}",
            *self.file_lines(),
            f"sent to    {self.code_uri}",
            "request    CreateTrainingJob",
            *(f"  {line}" for line in json.dumps(self._shown_request(), indent=2).splitlines()),
        ]
        script = shlex.join(to_argv(masked(spec.hyperparameters)))
        for host in self._hosts():
            lines += [f"host       {host['name']}", f"  script    {spec.program} {script}"]
            lines += [f"  env       {k}={v}" for k, v in host["environment"].items()]
            ranks = [str(rank["rank"]) for rank in host["ranks"] or ()]
            if ranks:
                lines.append(f"  ranks     {', '.join(ranks)}; --json shows their variables")
        return "\n".join(lines)

    def _shown_request(self) -> dict[str, Any]:
        shown = dict(self.request)
        for name in ("Environment", "HyperParameters"):
            if name in shown:
                shown[name] = masked(shown[name])
        return shown

    def _hosts(self) -> Iterator[dict[str, Any]]:
        """Each host's variables, and those of its ranks if it is known how many there will be."""
        spec = self.spec
        own = {"TRAINING_JOB_NAME": self.job_name}
        own |= {"AWS_REGION": self.region} if self.region else {}
        facts = _facts(spec.instance_type)
        wanted = spec.environment.get("GPU_NUM_DEVICES", "")
        devices = int(wanted) if wanted.isdigit() else facts.num_gpus
        ranks: dict[str, list[dict[str, Any]]] = {}
        if spec.compiler_config is not None and devices is not None:
            for row in explain.table(
                instance_count=spec.instance_count,
                num_devices=devices or 1,
                device_kind="cpu" if facts.num_gpus == 0 else "gpu",
                efa=bool(facts.efa_devices),
                num_cpus=facts.num_cpus,
                user=spec.environment,
            ):
                variables = {v.name: v.value for v in row.variables if v.value is not None}
                entry = {"rank": row.rank, "local_rank": row.local_rank, "environment": variables}
                ranks.setdefault(row.host, []).append(entry)
        for number in range(1, spec.instance_count + 1):
            name = f"algo-{number}"
            environment = masked(spec.environment) | own
            yield {"name": name, "environment": environment, "ranks": ranks.get(name)}


def problems(spec: JobSpec) -> list[Problem]:
    """What SageMaker, or the way there, would refuse about a job."""
    found = [*source.problems(spec), *environment_problems(spec)]
    if not found:
        found = bundle.problems(source.plan_files(spec))
    return [*found, *problems_of(spec, _site(spec, _SOME_DIGEST))]


def plan(spec: JobSpec) -> SageMakerPlan:
    """The request and the files of a job. Nothing is called or uploaded.

    Raises:
        SpecError: Holds everything that `problems` finds.
    """
    found = problems(spec)
    if found:
        raise SpecError(found)
    files = source.plan_files(spec)
    digest = bundle.digest(files)
    site = _site(spec, digest)
    return SageMakerPlan(
        backend=NAME,
        job_name=spec.job_name,
        files=files,
        spec=spec,
        region=site.region,
        code_uri=site.code_uri,
        digest=digest,
        request=request(spec, site),
    )


def region() -> str | None:
    """The region that boto3 would use: of the environment, or of the profile."""
    # Here, not above: only a job in SageMaker needs it.
    from botocore.session import get_session

    found: str | None = get_session().get_config_variable("region")
    return found


def _site(spec: JobSpec, digest: str) -> Site:
    found = region()
    return Site(found, code_uri(spec, found, digest))


def _facts(instance_type: str) -> instances.InstanceFacts:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return instances.facts(instance_type)
