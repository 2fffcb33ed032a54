"""`import torch` calls `autoload` in every process; it acts where trcomp is asked for."""

from __future__ import annotations

from trcomp import flags


def autoload() -> None:
    """Bring up the runtime and the torch_xla module tree; let `cuda` be the device.

    In a worker, or in any process whose environment asks for the latter.
    """
    maps_cuda = flags.CUDA_TO_XLA.get() and flags.ENABLED.get()
    if not flags.WORKER.get() and not maps_cuda:
        return
    # Names are taken from the modules: where trcomp.runtime was imported first, and imports torch,
    # its package is not complete yet.
    from trcomp.compat import install
    from trcomp.runtime import heartbeat, measuring, plain_steps, profile, report

    install()
    report.install()
    heartbeat.install()
    measuring.install()
    profile.install()
    if not flags.ENABLED.get():
        plain_steps.register()
    if maps_cuda:
        from trcomp.compat import cuda

        cuda.install()
