"""One rank is killed between two steps, as the kernel does when memory runs out."""

import os
import signal

import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp


def run(index):
    device = xm.xla_device()
    model = torch.nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.ones(4, 8)] * 100
    for step, batch in enumerate(pl.MpDeviceLoader(batches, device)):
        model(batch).sum().backward()
        xm.optimizer_step(optimizer)
        if step == 10 and xm.get_ordinal() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    xmp.spawn(run)
