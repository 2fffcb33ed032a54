"""The process that stands for one host in a container: starts it, saves its lines, ends as it ends.

SIGTERM goes on to the container, SIGQUIT kills it, and so does the end of the grace after the
former. The exit code is the container's own, 137 where the kernel killed for memory, or 69 if the
engine refused; the host's failure file then says what happened.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from contextlib import closing, suppress
from typing import Any

from trcomp import flags
from trcomp.backends import docker_objects
from trcomp.backends.docker_create import create
from trcomp.backends.docker_logs import save_lines
from trcomp.backends.docker_plan import ContainerPlan, DockerPlan
from trcomp.contract import Paths
from trcomp.entrypoint import failure
from trcomp.entrypoint.processes import die_with_parent
from trcomp.errors import BackendUnavailableError, InternalError, TrcompError
from trcomp.images.engine import connect, told

_ENDED = signal.SIGUSR1
"""What the thread that follows the container sends to this process in the end."""
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, _ENDED}
_MARGIN_SECONDS = 15
"""What a host gets beyond its workers' grace; the runner, if it lives, comes first."""
_AWAY_SECONDS = 60
"""How long an engine may be away, as it is while it is upgraded."""
_AGAIN_SECONDS = 0.5
_KILLED = 137
_GPU_HINT = (
    "GPUs need NVIDIA's driver and container toolkit; `docker run --gpus all IMAGE nvidia-smi` "
    "lists them then."
)


class ForkedHost:
    """A process that the runner forked, as a Popen is of one that it started.

    Attributes:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> int:
        """Its exit code, or minus the signal that killed it, once it has ended."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def send_signal(self, number: int) -> None:
        """Send it a signal; it has not been waited for, so the pid is its own."""
        os.kill(self.pid, number)


class Attendant:
    """One container from its creation to its removal."""

    def __init__(self, plan: DockerPlan, host: ContainerPlan) -> None:
        self.plan = plan
        self.host = host
        self.paths = Paths(host.root)
        self.trouble: Exception | None = None
        self.kill_at: float | None = None

    def run(self, client: Any) -> int:
        """Run the container; gives the exit code that stands for how it ended.

        Raises:
            BackendUnavailableError: The engine refuses, or went away.
        """
        hint = _GPU_HINT if self.host.gpus else None
        with told(f"start the container of {self.host.name}", hint):
            container = create(client, self.plan, self.host)
            container.start()
        follower = threading.Thread(target=self._follow, args=(container,), daemon=True)
        follower.start()
        while (number := self._signal()) != _ENDED:
            self._pass_on(container, number)
        if self.trouble is not None:
            raise self.trouble
        with told(f"remove the container of {self.host.name}"):
            container.reload()
            state = container.attrs["State"]
            container.remove(force=True, v=True)
        return self._exit_code(state)

    def _signal(self) -> int:
        """The next signal; SIGQUIT when the grace after an earlier one is over."""
        if self.kill_at is None:
            return signal.sigwait(_SIGNALS)
        found = signal.sigtimedwait(_SIGNALS, max(0.0, self.kill_at - time.monotonic()))
        return signal.SIGQUIT if found is None else found.si_signo

    def _pass_on(self, container: Any, number: int) -> None:
        from docker.errors import DockerException
        from requests.exceptions import RequestException

        if number == signal.SIGQUIT:
            # Once more if that fails: an engine that is away comes back.
            self.kill_at = time.monotonic() + _MARGIN_SECONDS
        elif self.kill_at is None:
            grace = flags.GRACE_SECONDS.get(os.environ | self.host.environment)
            self.kill_at = time.monotonic() + grace + _MARGIN_SECONDS
        name = "SIGKILL" if number == signal.SIGQUIT else signal.Signals(number).name
        with suppress(DockerException, RequestException):  # It has ended, or the engine is away.
            container.kill(signal=name)

    def _follow(self, container: Any) -> None:
        """Save the container's lines until it has ended, then say so."""
        log = self.plan.directory / "logs" / f"{self.host.name}.log"
        try:
            while not self._ended(container):
                try:
                    save_lines(container, log, follow=True)
                except OSError:
                    # The engine is away, or the disk is full: neither is the job's end.
                    time.sleep(_AGAIN_SECONDS)
            # The stream may have ended before its last lines came.
            with suppress(OSError):
                save_lines(container, log)
        except Exception as error:
            self.trouble = error
        os.kill(os.getpid(), _ENDED)

    def _ended(self, container: Any) -> bool:
        """Whether the container has ended, asked for as long as an engine may be away."""
        from docker.errors import NotFound

        deadline = time.monotonic() + _AWAY_SECONDS
        while True:
            try:
                with told(f"look at the container of {self.host.name}"):
                    container.reload()
                return container.attrs["State"]["Status"] in {"exited", "dead", "stopped"}
            except BackendUnavailableError as error:
                if isinstance(error.__cause__, NotFound):
                    message = f"The container of {self.host.name} was removed while it ran."
                    raise BackendUnavailableError(message) from error
                if time.monotonic() > deadline:
                    raise
                time.sleep(_AGAIN_SECONDS)

    def _exit_code(self, state: dict[str, Any]) -> int:
        code = int(state["ExitCode"])
        if not state.get("OOMKilled"):
            return code
        self._blame_memory(code)
        return code or _KILLED

    def _blame_memory(self, code: int) -> None:
        """Say in the failure file that memory ran out, before what it says already."""
        limit = self.plan.spec.container.get("memory")
        limited = f"its limit is memory={limit!r}" if limit else "this machine has no more"
        head = f"Out of memory: the kernel killed a process of {self.host.name}; {limited}."
        file = self.paths.failure
        text, at = f"\nhost {self.host.name}, exit code {code or _KILLED}\n", time.time()
        with suppress(OSError):
            found = file.read_text(encoding="utf-8", errors="replace")
            first, _, rest = found.partition("\n")
            who, _, details = rest.partition("\n")
            text, at = f"\n{who}\n\n{first}\n{details}", file.stat().st_mtime
            file.unlink()
        failure.write(file, head + text, at)


def start(plan: DockerPlan, host: ContainerPlan) -> ForkedHost:
    """Fork the process that stands for a host: a new interpreter would take a second to load."""
    runner = os.getpid()
    # Blocked before the fork: a signal must not meet the runner's own handlers in the child.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return ForkedHost(pid)
    code = InternalError.exit_code
    try:
        # No host outlives its runner.
        die_with_parent(signal.SIGTERM)
        os.setsid()
        if os.getppid() == runner:
            code = _attend(plan, host)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _attend(plan: DockerPlan, host: ContainerPlan) -> int:
    try:
        with docker_objects.attended(plan.directory), closing(connect()) as client:
            return Attendant(plan, host).run(client)
    except TrcompError as error:
        head, _, rest = str(error).partition("\n")
        who = f"host {host.name}, exit code {error.exit_code}"
        text = f"{type(error).__name__}: {head}\n{who}\n\n{rest}\n"
        failure.write(Paths(host.root).failure, text)
        return error.exit_code
