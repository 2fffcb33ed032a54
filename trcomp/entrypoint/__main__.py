"""Process 1 of a host: contract, topology, requirements, workers, failure file, exit code.

contract.read --> discovered (Topology) --> plan_workers --> supervise --> blamed --> exit code
                     requirements, executables from S3 --^   `--> new executables to S3
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from trcomp import contract as contracts
from trcomp import flags, progress, reserve
from trcomp.contract import Contract, Paths
from trcomp.entrypoint import code, failure, requirements
from trcomp.entrypoint.discovery import discovered, num_cpus, wait_for_names
from trcomp.entrypoint.host_link import HostLink
from trcomp.entrypoint.processes import Signals, adopt_orphans
from trcomp.entrypoint.supervisor import Outcome, Worker, supervise
from trcomp.entrypoint.watchdog import Watchdog, Watcher
from trcomp.entrypoint.workers import Site, plan_workers
from trcomp.env import gpus, interfaces, xla_flags
from trcomp.env.executables import shared_folder
from trcomp.errors import BackendUnavailableError, InternalError, TrcompError
from trcomp.lines import Console

_STDOUT = 1
_SILENT_SECONDS = 11.0
"""How long a host may say nothing to the others."""
_SILENT_SECONDS_XLA = 20.0
"""The ranks' own coordinator misses a silent host first, and knows its ranks."""
_UNWRITABLE = reserve.FULL | {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST}
"""A full disk; one that must not be written; something else of that name."""


def main() -> int:
    """Run this host's part of the job, from the environment and the files that it was given.

    Returns:
        The exit code: the script's own, 128 + a signal, or that of trcomp's error.
    """
    environ = dict(os.environ)
    paths = Paths(contracts.base_dir(environ))
    run = _Run(environ, paths, Console(_STDOUT))
    adopt_orphans()
    with Signals() as signals:
        try:
            with _told_of_disks():
                return run.to_end(signals)
        except TrcompError as error:
            run.fail(f"{type(error).__name__}: {error}", str(error))
            return error.exit_code
        except Exception as error:
            text = traceback.format_exc()
            run.fail(f"{type(error).__name__}: {error}\n{text}", f"A defect of trcomp:\n{text}")
            return InternalError.exit_code
        finally:
            reserve.give_back(paths.failure.parent)


@contextlib.contextmanager
def _told_of_disks() -> Iterator[None]:
    """A place that cannot be written is the machine's fault, not trcomp's."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        raise BackendUnavailableError(
            f"A place that the job needs cannot be written: {error}.",
            "Make room on that disk, or mount a directory there that this user may write to.",
        ) from error


class _Run:
    """One run of a host's part of a job."""

    def __init__(self, environ: Mapping[str, str], paths: Paths, console: Console) -> None:
        self._environ = environ
        self._paths = paths
        self._console = console

    def to_end(self, signals: Signals) -> int:
        """Install, train, and give the exit code."""
        contract = contracts.read(self._paths.root, self._environ)
        with tempfile.TemporaryDirectory(prefix="trcomp-") as scratch:
            site = self._site(contract, Path(scratch))
            fetcher = code.fetcher(contract, self._paths, site.environ, site.scratch)
            if fetcher and (
                failed := self._ended(site, self._run(site, [fetcher], signals), code.WHAT)
            ):
                return failed
            code.unpack(contract, self._paths, site.scratch)
            workers = plan_workers(site)
            _make_directories(site)
            _write_environment(site, workers)
            stopped = partial(bool, signals.received)
            wait_for_names(site.topology, site.host_index, signals.wait, stopped)
            pip = requirements.installer(site.paths.code, site.environ, site.log("pip"))
            if pip is None:
                self.say(f"No {requirements.NAME}: nothing to install.")
            elif failed := self._ended(site, self._run(site, [pip], signals), requirements.WHAT):
                return failed
            self._move_executables("download", site, workers, signals)
            if signals.received:
                return self._stopped(signals.received[0])
            self.say(_summary(site, workers))
            ended = self._train(site, workers, signals)
            if ended == 0:
                self._move_executables("upload", site, workers, signals)
            return ended

    def _train(self, site: Site, workers: Sequence[Worker], signals: Signals) -> int:
        """Run the script, and anew if it fails and may be; gives the exit code."""
        restarts = flags.MAX_RESTARTS.get(site.environ)
        seconds = flags.WATCHDOG_SECONDS.get(site.environ)
        while True:
            with contextlib.suppress(OSError):
                reserve.keep(site.attempt_dir)
            watchers: list[Watcher] = []
            if seconds > 0:
                watchers.append(Watchdog(site.attempt_dir, seconds, site.paths.code))
            started = partial(_mark_started, site)
            failing: list[Callable[[], object]] = [partial(progress.note_failure, site.attempt_dir)]
            with _link(site) or contextlib.nullcontext() as link:
                if link:
                    watchers.append(link)
                    failing.append(link.fail)
                outcome = self._run(site, workers, signals, started, failing, watchers)
                failed = failure.blamed(outcome, site.contract.current_host)
                if link and (failed or outcome.signal):
                    link.fail()
            if failed is None or outcome.signal is not None or site.attempt >= restarts:
                return self._ended(site, outcome, "The script")
            self.say(failed.summary)
            site = site.again()
            workers = plan_workers(site)
            self.say(f"Restart {site.attempt} of {restarts}: the workers start anew.")

    def say(self, text: str) -> None:
        """Print lines of the entrypoint's own."""
        self._console.write(self, b"[trcomp] ", f"{text}\n".encode(errors="replace"))

    def fail(self, text: str, message: str) -> None:
        """Say why the job ends here, and write output/failure."""
        self.say(message)
        failure.write(self._paths.failure, f"{text}\n")

    def _site(self, contract: Contract, scratch: Path) -> Site:
        gpu_ids = gpus.found(self._environ)
        topology = discovered(contract, self._environ, gpu_ids)
        trains = contract.settings.compiler_enabled
        wanted = xla_flags.for_topology(topology, self._environ) if trains else ()
        return Site(
            contract=contract,
            paths=self._paths,
            topology=topology,
            environ=self._environ,
            scratch=scratch,
            gpu_ids=gpu_ids if topology.device_kind == "gpu" else (),
            efa=gpus.efa_devices() > 0,
            num_cpus=num_cpus(topology),
            unknown_flags=xla_flags.unknown(wanted),
        )

    def _move_executables(
        self, direction: str, site: Site, workers: Sequence[Worker], signals: Signals
    ) -> None:
        if site.shared_cache is None:
            return
        device = gpus.model() if site.topology.device_kind == "gpu" else "cpu"
        place = site.shared_cache / shared_folder(workers[0].environ, device)
        site.executables.mkdir(mode=0o700, exist_ok=True)
        # -P: the script's own files must not stand in for the modules that the AWS SDK imports.
        command = (sys.executable, "-P", "-m", "trcomp.entrypoint.shared_cache", direction)
        argv = (*command, str(place), str(site.executables))
        mover = Worker(None, argv, site.environ, site.paths.code, prefix=b"[cache] ")
        self._run(site, [mover], signals)

    def _run(
        self,
        site: Site,
        workers: Sequence[Worker],
        signals: Signals,
        on_started: Callable[[], object] = lambda: None,
        on_failure: Sequence[Callable[[], object]] = (),
        watchers: Sequence[Watcher] = (),
    ) -> Outcome:
        return supervise(
            workers,
            console=self._console,
            signals=signals,
            grace_seconds=flags.GRACE_SECONDS.get(site.environ),
            on_started=on_started,
            on_failure=lambda: [told() for told in on_failure],
            watchers=watchers,
        )

    def _ended(self, site: Site, outcome: Outcome, what: str) -> int:
        failed = failure.blamed(outcome, site.contract.current_host, what)
        if failed is not None:
            self.say(failed.summary)
            failure.write(site.paths.failure, failed.text, failed.file_time)
        if outcome.signal is not None:
            return self._stopped(outcome.signal)
        return 0 if failed is None else failed.exit_code

    def _stopped(self, number: int) -> int:
        self.say(f"Stopped by {signal.Signals(number).name}; all processes have ended.")
        return failure.exit_code(-number)


def _make_directories(site: Site) -> None:
    for directory in (site.report_dir, site.log_dir, site.paths.model, site.paths.intermediate):
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        reserve.keep(site.paths.failure.parent)


def _write_environment(site: Site, workers: Sequence[Worker]) -> None:
    """Leave for the job's page what was worked out for the first worker, with the reasons."""
    host = site.contract.current_host
    variables = [asdict(variable) for variable in workers[0].variables]
    text = json.dumps({"host": host, "rank": workers[0].rank, "variables": variables})
    with contextlib.suppress(OSError):
        (site.report_dir / f"environment-{host}.json").write_text(text, encoding="utf-8")


def _link(site: Site) -> HostLink | None:
    """This host's to the others, if it has ranks and there are others."""
    port = flags.HOSTS_PORT.get(site.environ)
    if not port or site.host_index is None or len(site.topology.hosts) == 1:
        return None
    token = interfaces.job_token(site.contract.job_name, site.topology.to_json())
    compiled = site.contract.settings.compiler_enabled
    silent_seconds = _SILENT_SECONDS_XLA if compiled else _SILENT_SECONDS
    return HostLink(site.topology, site.host_index, port, f"{token}-{site.attempt}", silent_seconds)


def _mark_started(site: Site) -> None:
    """Tell the backend, which cannot see the workers, that they run."""
    if site.log_dir is not None:
        (site.log_dir / "started").touch()


def _summary(site: Site, workers: Sequence[Worker]) -> str:
    """One line on what starts. No environment and no hyperparameters: they may hold secrets."""
    contract, topology = site.contract, site.topology
    what = f"{contract.job_name}: host {contract.current_host} runs {contract.settings.program}"
    ranks = ", ".join(str(worker.rank) for worker in workers if worker.rank is not None)
    if not ranks:
        return f"{what} once; it may start ranks on the {topology.device_kind.upper()}."
    return (
        f"{what} as rank {ranks} of {topology.world_size}, on the {topology.device_kind.upper()}."
    )


if __name__ == "__main__":
    sys.exit(main())
