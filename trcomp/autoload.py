"""`import torch` calls `autoload` in every process; it acts only in trcomp's workers."""

from __future__ import annotations

from trcomp import flags


def autoload() -> None:
    """Bring up the runtime and the torch_xla module tree in a worker process."""
    if not flags.WORKER.get():
        return
    # Names are taken from the modules: where trcomp.runtime was imported first, and imports torch,
    # its package is not complete yet.
    from trcomp.compat import install
    from trcomp.runtime import report

    install()
    report.install()
