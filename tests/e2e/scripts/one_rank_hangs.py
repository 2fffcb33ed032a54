"""One rank stops in the way that it is told to; the other waits for it in a collective."""

import os
import signal
import sys
import threading
import time

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

STEPS = 6


def wait_for_nobody():
    threading.Event().wait()


def main(how):
    device = torch_xla.device()
    model = torch.nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    odd = xr.global_ordinal() == 1
    for step in range(STEPS - (how == "ends early" and odd)):
        if odd and step == 3 and how == "waits":
            wait_for_nobody()
        if odd and step == 3 and how == "is stopped":
            time.sleep(1)  # It tells its progress twice a second.
            os.kill(os.getpid(), signal.SIGSTOP)
        model(torch.ones(4, 8, device=device)).sum().backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync(wait=True)


main(sys.argv[sys.argv.index("--how") + 1])
