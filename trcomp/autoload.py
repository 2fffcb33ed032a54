"""`import torch` calls `autoload` in every process; it acts only in trcomp's workers."""

from __future__ import annotations

from trcomp import flags


def autoload() -> None:
    """Bring up the runtime and the torch_xla module tree in a worker process."""
    if not flags.WORKER.get():
        return
    import trcomp.compat

    trcomp.compat.install()
    import trcomp.runtime.report

    trcomp.runtime.report.install()
