"""The runner of one job in containers: each host is a process that stands for its container.

python -m trcomp.backends.docker_runner < plan.json
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing

from trcomp.backends import docker_host, docker_objects, runner
from trcomp.backends.docker_plan import DockerPlan
from trcomp.backends.local_plan import HostPlan
from trcomp.entrypoint.processes import die_with_parent
from trcomp.images.engine import connect, told


class ContainerHosts:
    """Hosts that are containers, on a network of the job's own."""

    kill = runner.KILL

    def open(self, plan: DockerPlan) -> None:
        """Make the job's network.

        Raises:
            BackendUnavailableError: The engine refuses.
        """
        if plan.network == "host":
            return
        own = docker_objects.labels(plan.job_name, plan.directory)
        with closing(connect()) as client, told("make the job's network"):
            client.networks.create(plan.network, internal=plan.internal, labels=own)

    def start(self, plan: DockerPlan, host: HostPlan) -> subprocess.Popen[bytes]:
        """Start the process that stands for a host; what it prints itself is in runner.log."""
        process = subprocess.Popen(
            docker_host.command(host.name),
            env=os.environ,
            stdin=subprocess.PIPE,
            start_new_session=True,
            # No host outlives its runner. This process has one thread, so the hook is safe.
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
        assert process.stdin is not None
        # Through a pipe, as to this process: the plan may hold secrets.
        with process.stdin as pipe:
            pipe.write(plan.model_dump_json().encode())
        return process

    def close(self, plan: DockerPlan) -> None:
        """Remove the network, and containers that were left alone."""
        with closing(connect()) as client:
            docker_objects.remove(client, plan.job_name, plan.directory)


if __name__ == "__main__":
    sys.exit(runner.run(DockerPlan, ContainerHosts()))
