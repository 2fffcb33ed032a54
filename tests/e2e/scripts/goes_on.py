"""Trains from the last checkpoint, if there is one; one rank dies once, between two steps."""

import os
import signal

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

PLACE = os.path.join(os.environ["SM_MODEL_DIR"], "..", "checkpoints", "last.pt")


def main():
    torch.manual_seed(0)
    device = torch_xla.device()
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = 0
    if os.path.exists(PLACE):
        saved = torch.load(PLACE)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    for step in range(first, 8):
        data = torch.full((2, 4), 0.1 * (1 + step)).to(device)
        loss = model(data).square().mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.6f}", flush=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        xm.save(state, f"{PLACE}.part")
        if xr.global_ordinal() == 0:
            os.replace(f"{PLACE}.part", PLACE)
        xm.rendezvous("saved")
        if step == 4 and first == 0 and xr.global_ordinal() == 1 and "die" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)


main()
