"""LocalPlan: the request of a job on this machine, its directories, processes and files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar

from trcomp.backends.base import Frozen, Plan, masked, masked_arguments, shown_script
from trcomp.contract import Contract
from trcomp.env.executables import kept_at


class InputLink(Frozen):
    """A channel's data on this machine."""

    channel: str
    source: Path
    uri: str | None = None
    """Where in S3 it is fetched from, before the job starts."""


class HostPlan(Frozen):
    """What one host of a job is started with."""

    name: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    """What the job adds to the environment of whoever submits it."""
    root: Path
    """The stand-in for /opt/ml."""
    contract: Contract


class LocalPlan(Plan):
    """The request of a job on this machine."""

    RUNNER: ClassVar[str] = "trcomp.backends.process_runner"
    """The module that runs it."""

    directory: Path
    hosts: tuple[HostPlan, ...]
    inputs: tuple[InputLink, ...] = ()
    output_dir: Path
    checkpoint_dir: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values, secrets masked, hyperparameters as they travel."""
        values: dict[str, Any] = self.model_dump(mode="json", exclude={"spec"})
        for host, entry in zip(self.hosts, values["hosts"], strict=True):
            entry["environment"] = masked(host.environment)
            parameters = masked(host.contract.hyperparameters)
            entry["contract"]["hyperparameters"] = {k: json.dumps(v) for k, v in parameters.items()}
            arguments = masked_arguments(host.contract.settings.arguments)
            entry["contract"]["settings"]["arguments"] = arguments
        return values

    def to_text(self) -> str:
        """The plan for a reader, secrets masked."""
        lines = [f"job        {self.handle}", f"directory  {self.directory}"]
        lines += [f"results    {self.output_dir}"]
        if self.checkpoint_dir is not None:
            lines.append(f"checkpoints  {self.checkpoint_dir}")
        settings = self.hosts[0].contract.settings
        if settings.compiler_enabled is not False:
            environ = os.environ | self.hosts[0].environment
            lines.append(f"cache      {settings.compiler_cache or kept_at(environ)}")
        lines += self.file_lines()
        lines += [f"input      {link.channel} <- {link.uri or link.source}" for link in self.inputs]
        for host in self.hosts:
            script = shown_script(self.spec)
            lines += [f"host       {host.name}", f"  contract  {host.root}"]
            lines.append(f"  runs      {' '.join(host.argv)}")
            lines.append(f"  script    {script}")
            lines += [f"  env       {k}={v}" for k, v in masked(host.environment).items()]
        return "\n".join(lines)
