"""The workers of one host: pure, from the contract and the topology to processes to start."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trcomp import flags, s3
from trcomp.contract import Contract, Paths, sm_variables
from trcomp.entrypoint.supervisor import Worker
from trcomp.env.topology import Rank, Topology
from trcomp.env.variables import Variable, applied, for_host, for_rank, restart_variables
from trcomp.errors import Problem, SpecError
from trcomp.lines import rank_prefix
from trcomp.profile_steps import ProfileSteps


@dataclass(frozen=True)
class Site:
    """What the workers of this host have in common.

    Attributes:
        contract: The job as this host sees it.
        paths: The contract's places.
        topology: The job's hosts and devices.
        environ: The environment that the job was given.
        scratch: A directory for this run alone.
        gpu_ids: The GPUs of this host, as values for CUDA_VISIBLE_DEVICES.
        efa: Whether this host has an Elastic Fabric Adapter.
        num_cpus: Cores that this host may use.
        unknown_flags: Names of XLA's flags that its jaxlib has not.
        attempt: How often the workers have been started before.
    """

    contract: Contract
    paths: Paths
    topology: Topology
    environ: Mapping[str, str]
    scratch: Path
    gpu_ids: tuple[str, ...] = ()
    efa: bool = False
    num_cpus: int = 1
    unknown_flags: tuple[str, ...] = ()
    attempt: int = 0

    def again(self) -> Site:
        """The same for workers that are started anew.

        They meet elsewhere: of other hosts' workers some may not have ended yet, and what those
        left behind is none of theirs.
        """
        topology = replace(
            self.topology,
            coordinator_port=self.topology.coordinator_port + 1,
            mesh_port=self.topology.mesh_port + 1,
            master_port=self.topology.master_port + 1,
        )
        site = replace(self, topology=topology, attempt=self.attempt + 1)
        site.attempt_dir.mkdir()
        return site

    @property
    def attempt_dir(self) -> Path:
        """Where the workers of this attempt say how far they come, and why they fail."""
        return self.scratch / f"attempt-{self.attempt}" if self.attempt else self.scratch

    @property
    def checkpoint_dir(self) -> Path:
        """Where checkpoints lie; without a place of their own they last as long as this host."""
        checkpoints = self.contract.checkpoints
        return self.paths.local(checkpoints.local_path) if checkpoints else self.paths.checkpoints

    @property
    def host_index(self) -> int | None:
        """This host among the topology's hosts; None if `distribution` leaves it out."""
        hosts, own = self.contract.rank_hosts, self.contract.current_host
        return hosts.index(own) if own in hosts else None

    @property
    def log_dir(self) -> Path:
        """Where each worker's own lines are kept, if nowhere else then for this run."""
        text = flags.LOG_DIR.get(self.environ)
        return Path(text) if text else self.scratch / "logs"

    def log(self, name: str) -> Path:
        """Where one process's own lines are kept."""
        return self.log_dir / f"{name}.log"

    @property
    def shared_cache(self) -> s3.Place | None:
        """Where in S3 executables are kept from job to job, if they are."""
        if self.contract.settings.compiler_enabled is False:
            return None
        text = self.contract.settings.compiler_cache or flags.CACHE.get(self.environ)
        return s3.place(text) if s3.is_url(text) else None

    @property
    def executables(self) -> Path:
        """Where they lie while the job runs."""
        return self.scratch / "executables"

    @property
    def report_dir(self) -> Path:
        """Where workers write their metrics."""
        return self.paths.output_data / "trcomp"


def plan_workers(site: Site) -> tuple[Worker, ...]:
    """The processes to start: one per device, or one for all without a compiler_config.

    A host of a group that `distribution` leaves out runs the script once, and is no rank.

    Raises:
        SpecError: The entry point is missing or no Python script, or an argument or variable is
            one that the system cannot hand to a process.
    """
    script = entry_point(site)
    _check_cache(site)
    workers = _workers(site, script)
    _check_passable(workers[0], site.contract.argv)  # The others differ in their ranks.
    return workers


def _workers(site: Site, script: Path) -> tuple[Worker, ...]:
    enabled = site.contract.settings.compiler_enabled
    if site.host_index is None:
        return (_worker(site, script, None, (), enabled=False),)
    if enabled is None:
        variables = for_host(site.topology, site.host_index, efa=site.efa, user=job_environ(site))
        return (_worker(site, script, None, variables, enabled=True),)
    # Without XLA, torch counts the host's GPUs itself and takes the one numbered LOCAL_RANK.
    dialects = ("jax", "pjrt") if enabled else ("pjrt",)
    return tuple(
        _worker(
            site,
            script,
            rank,
            for_rank(
                site.topology,
                rank,
                dialects=dialects,
                efa=site.efa,
                user=job_environ(site),
                num_cpus=site.num_cpus,
                unknown_flags=site.unknown_flags,
            ),
            enabled=enabled,
        )
        for rank in site.topology.local_ranks(site.host_index)
    )


def entry_point(site: Site) -> Path:
    """The script that the job runs.

    Raises:
        SpecError: It is missing or no Python script.
    """
    program = site.contract.settings.program
    code = site.paths.code.resolve()
    if not program:
        problem = Problem("entry_point", program, "a Python script in the source directory.")
    elif not program.endswith(".py"):
        problem = Problem("entry_point", program, "a Python script (.py); other kinds are not run.")
    elif not (code / program).is_file():
        there = ", ".join(sorted(path.name for path in code.glob("*.py"))) or "no script at all"
        problem = Problem("entry_point", program, f"a file in {code}, where there is: {there}.")
    else:
        return code / program
    raise SpecError([problem])


def job_environ(site: Site) -> dict[str, str]:
    """The environment of everything that runs for the job on this host."""
    contract, code = site.contract, str(site.paths.code.resolve())
    sm = sm_variables(contract, site.paths, num_gpus=len(site.gpu_ids), num_cpus=site.num_cpus)
    path = site.environ.get("PYTHONPATH")
    environ = {**site.environ, **sm, "PYTHONPATH": f"{code}:{path}" if path else code}
    if site.gpu_ids:
        # Spelt out even where it was not set: MIG slices have no numbers that CUDA would count.
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(site.gpu_ids)
    return environ


def _check_passable(worker: Worker, arguments: Sequence[str]) -> None:
    texts = {f"argument {text[:40]!r}": text for text in (*worker.argv, *arguments)}
    texts |= {f"variable {name}": f"{name}={value}" for name, value in worker.environ.items()}
    problems = [
        Problem(where, f"{len(text)} characters", allowed)
        for where, text in texts.items()
        if (allowed := _obstacle(text)) is not None
    ]
    if problems:
        raise SpecError(
            problems, "Put large or binary values into a file, in code or in a channel."
        )


def _check_cache(site: Site) -> None:
    text = site.contract.settings.compiler_cache or flags.CACHE.get(site.environ)
    if s3.is_url(text) and (faults := s3.faults(text)):
        raise SpecError([Problem(flags.CACHE.name, text, fault) for fault in faults])


def _obstacle(text: str) -> str | None:
    """What keeps a text from being an argument or variable of a process."""
    try:
        length = len(os.fsencode(text))
    except UnicodeEncodeError:
        return "text that can be encoded; it holds a lone surrogate."
    if "\0" in text:
        return "text without a NUL character."
    # linux/binfmts.h, MAX_ARG_STRLEN, with the terminating byte.
    return None if length < 32 * 4096 else "at most 131,071 bytes, which Linux allows."


def _metric_definitions(site: Site) -> str:
    definitions = site.contract.settings.metric_definitions
    return json.dumps(dict(definitions)) if definitions else ""


def _profile_steps(site: Site) -> str:
    steps = site.contract.settings.profile_steps
    return "" if steps is None else str(ProfileSteps(*steps))


def _worker(
    site: Site, script: Path, rank: Rank | None, variables: Sequence[Variable], *, enabled: bool
) -> Worker:
    name = "host" if rank is None else f"rank-{rank.rank}"
    error = site.attempt_dir / f"{name}.json"
    settings: dict[flags.Flag[Any], str] = {
        flags.WORKER: "1",
        flags.ENABLED: str(int(enabled)),
        flags.CUDA_TO_XLA: str(int(enabled and site.contract.settings.cuda_to_xla)),
        flags.DEBUG: str(int(site.contract.settings.compiler_debug)),
        flags.PROFILE_STEPS: _profile_steps(site),
        flags.METRIC_DEFINITIONS: _metric_definitions(site),
        flags.LOG_DIR: str(site.log_dir),
        flags.JOB_NAME: site.contract.job_name,
        flags.REPORT_DIR: str(site.report_dir),
        flags.ERROR_FILE: str(error),
        flags.PROGRESS_DIR: str(site.attempt_dir),
        flags.CHECKPOINT_DIR: str(site.checkpoint_dir),
    }
    if site.host_index is not None:
        settings |= {flags.TOPOLOGY: site.topology.to_json()}
        settings |= {flags.HOST_INDEX: str(site.host_index)}
    if site.shared_cache is not None:
        settings[flags.CACHE] = str(site.executables)
    elif site.contract.settings.compiler_cache is not None:
        settings[flags.CACHE] = site.contract.settings.compiler_cache
    if site.topology.world_size > 1:
        settings[flags.COORDINATOR] = site.topology.coordinator
    environ = applied(job_environ(site), variables)
    environ |= {flag.name: value for flag, value in settings.items()}
    environ |= restart_variables(site.attempt, flags.MAX_RESTARTS.get(site.environ))
    return Worker(
        rank=None if rank is None else rank.rank,
        # Its arguments are no part of it: every user of the machine could read them.
        argv=(sys.executable, "-m", "trcomp.entrypoint.worker", str(script)),
        environ=environ,
        cwd=site.paths.code,
        prefix=b"" if rank is None else rank_prefix(rank.rank),
        log=site.log(name),
        error_file=error,
        variables=tuple(variables),
    )
