"""The plan of a job in SageMaker: its request, its code, and what each host will have around it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

from trcomp import limits
from trcomp.backends import bundle, sagemaker_cost, source
from trcomp.backends.base import Plan, masked, masked_arguments, shown_script
from trcomp.backends.own_image import account
from trcomp.backends.own_image import note as own_note
from trcomp.backends.region import region
from trcomp.backends.sagemaker_image import frozen_image, own
from trcomp.backends.sagemaker_request import (
    Site,
    code_uri,
    problems_of,
    request,
)
from trcomp.backends.settings import environment_problems, ranked_groups
from trcomp.contract import ARGUMENTS_SETTING
from trcomp.env import explain
from trcomp.env.topology import wanted_devices
from trcomp.errors import Problem, SpecError, nearest
from trcomp.images import frozen, instances
from trcomp.spec import JobSpec

NAME = "sagemaker"
_SOME_DIGEST = "0" * 64
_LATER = "DIGEST"
"""Stands for the digest of code that is not on this machine yet."""
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
    def own_image(self) -> str | None:
        """How trcomp's own image comes to be there, None for a job in another image."""
        place = own(self.spec, self.region)
        return None if place is None else own_note(self.spec, place)

    @property
    def results(self) -> str:
        """Where results will be."""
        return f"{self.request['OutputDataConfig']['S3OutputPath']}/{self.job_name}/output"

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values, secrets masked."""
        values: dict[str, Any] = self.model_dump(mode="json", exclude={"spec", "request"})
        values |= {"request": self._shown_request(), "hosts": list(self._hosts())}
        values["own_image"] = self.own_image
        return values | sagemaker_cost.to_dict(self.request, self.region)

    def to_text(self) -> str:
        """The plan for a reader, secrets masked."""
        spec = self.spec
        old = frozen_image(spec, self.region)
        lines = [
            f"job        {self.handle}",
            f"region     {self.region or _NO_REGION}",
            *self._host_lines(),
            *sagemaker_cost.lines(self.request, self.region),
            f"results    {self.results}",
            *self.file_lines(),
            *([] if spec.source_uri else [f"sent to    {self.code_uri}"]),
            *([] if old is None else [f"image      {old}: {frozen.NOTE}"]),
            *([] if self.own_image is None else [f"image      {self.own_image}"]),
            "request    CreateTrainingJob",
            *(f"  {line}" for line in json.dumps(self._shown_request(), indent=2).splitlines()),
        ]
        for host in self._hosts():
            lines += [f"host       {host['name']}", f"  script    {shown_script(spec)}"]
            lines += [f"  env       {k}={v}" for k, v in host["environment"].items()]
            ranks = [str(rank["rank"]) for rank in host["ranks"] or ()]
            if ranks:
                lines.append(f"  ranks     {', '.join(ranks)}; --json shows their variables")
        return "\n".join(lines)

    def _host_lines(self) -> Iterator[str]:
        spec = self.spec
        groups = [
            (g["InstanceCount"], g["InstanceType"], g["InstanceGroupName"]) for g in spec.groups
        ]
        preferences = spec.managed.get("instance_preferences", [])
        first = [(spec.instance_count, spec.instance_type, "")]
        others = [
            (item.get("InstanceCount", spec.instance_count), item["InstanceType"], "or")
            for item in preferences[1:]
        ]
        for count, kind, note in groups or [*first, *others]:
            facts = _facts(kind)
            gpus = f", {facts.num_gpus} x {facts.gpu} each" if facts.num_gpus else ""
            yield f"hosts      {f'{note} ' if note else ''}{count} x {kind}{gpus}{_newer(kind)}"

    def _shown_request(self) -> dict[str, Any]:
        shown = dict(self.request)
        for name in ("Environment", "HyperParameters"):
            if name in shown:
                shown[name] = masked(shown[name])
        if self.spec.arguments:
            arguments = json.dumps(masked_arguments(self.spec.arguments))
            shown["HyperParameters"][ARGUMENTS_SETTING] = arguments
        return shown

    def _hosts(self) -> Iterator[dict[str, Any]]:
        """Each host's variables, and those of its ranks if it is known how many there will be."""
        spec = self.spec
        own = {"TRAINING_JOB_NAME": self.job_name}
        own |= {"AWS_REGION": self.region} if self.region else {}
        groups = ranked_groups(spec)
        facts = _facts(groups[0].instance_type if groups else spec.instance_type)
        devices = wanted_devices(spec.environment) or facts.num_gpus
        ranks: dict[str, list[dict[str, Any]]] = {}
        # A frozen image starts its ranks itself, in a way of its own.
        own_ranks = frozen_image(spec, self.region) is None and spec.compiler_config is not None
        if own_ranks and devices is not None:
            for row in explain.table(
                instance_count=spec.instance_count,
                hosts=[host for group in groups for host in group.hosts],
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
            environment = masked(self.request.get("Environment", {})) | own
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
    digest = bundle.digest(files) if spec.git_config is None else _LATER
    site = _site(spec, digest)
    return SageMakerPlan(
        backend=NAME,
        job_name=spec.job_name,
        files=files,
        left_behind=source.left_behind(spec),
        spec=spec,
        region=site.region,
        code_uri=site.code_uri,
        digest=digest,
        request=request(spec, site),
    )


def _site(spec: JobSpec, digest: str) -> Site:
    found = region()
    return Site(found, code_uri(spec, found, digest))


def _newer(instance_type: str) -> str:
    """A word on a type that may be newer than botocore, or misspelt: SageMaker itself will tell."""
    known = limits.instance_types()
    if instance_type in known:
        return ""
    near = nearest(instance_type, known)
    return f", unknown to botocore{f': is it {near}?' if near else ''}"


def _facts(instance_type: str) -> instances.InstanceFacts:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return instances.facts(instance_type)
