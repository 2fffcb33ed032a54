"""The runner of one process job: its hosts are processes on this machine.

python -m trcomp.backends.process_runner < plan.json
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from trcomp.backends import runner
from trcomp.backends.local_plan import HostPlan, LocalPlan
from trcomp.contract import Paths
from trcomp.entrypoint.processes import die_with_parent


class ProcessHosts:
    """Hosts that are an entrypoint and its descendants."""

    kill = signal.SIGKILL

    def open(self, plan: LocalPlan) -> None:
        """Nothing is shared."""

    def start(self, plan: LocalPlan, host: HostPlan) -> subprocess.Popen[bytes]:
        """Start the entrypoint of a host."""
        with (plan.directory / "logs" / f"{host.name}.log").open("wb") as log:
            return subprocess.Popen(
                host.argv,
                cwd=Paths(host.root).code,
                env=os.environ | host.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # No host outlives its runner. This process has one thread, so the hook is safe.
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),
            )

    def close(self, plan: LocalPlan) -> None:
        """Nothing is left once the processes have ended."""


if __name__ == "__main__":
    sys.exit(runner.run(LocalPlan, ProcessHosts()))
