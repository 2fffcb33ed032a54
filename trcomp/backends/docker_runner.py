"""The runner of one job in containers: each host is a process that stands for its container.

python -m trcomp.backends.docker_runner < plan.json
"""

from __future__ import annotations

import sys
from contextlib import closing

from trcomp.backends import docker_host, docker_objects, runner
from trcomp.backends.docker_plan import ContainerPlan, DockerPlan
from trcomp.backends.local_plan import HostPlan
from trcomp.errors import BackendUnavailableError
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

    def start(self, plan: DockerPlan, host: HostPlan) -> docker_host.ForkedHost:
        """Start the process that stands for a host; what it prints itself is in runner.log."""
        assert isinstance(host, ContainerPlan)
        return docker_host.start(plan, host)

    def close(self, plan: DockerPlan) -> None:
        """Remove the network, and containers that were left alone."""
        try:
            with closing(connect()) as client:
                docker_objects.remove(client, plan.job_name, plan.directory)
        except BackendUnavailableError as error:
            # How the job ended is to be kept all the same; `remove` tries again.
            print(error, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(runner.run(DockerPlan, ContainerHosts()))
