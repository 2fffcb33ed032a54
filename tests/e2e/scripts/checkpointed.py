"""Trains with dropout and a shuffled loader, saves every two steps, and can be made to fail."""

import argparse
import hashlib
import os
import signal
import threading

import torch

import trcomp.runtime as rt
from trcomp.checkpoint import Checkpointer

EPOCHS, BATCHES = 2, 5


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--die-at", type=int, default=0, help="rank 1, or 0 alone, is killed there")
    parser.add_argument("--stop-at", type=int, default=0, help="that rank is told to end there")
    parser.add_argument("--wait-at", type=int, default=0, help="all ranks wait there for SIGTERM")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = rt.device()
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 16),
        torch.nn.Dropout(0.5),
        torch.nn.LayerNorm(16),
        torch.nn.Linear(16, 2),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    data = torch.utils.data.TensorDataset(
        torch.randn(4 * BATCHES, 6), torch.arange(4 * BATCHES) % 2
    )
    loader = rt.DeviceLoader(torch.utils.data.DataLoader(data, batch_size=4, shuffle=True))
    torch.manual_seed(1 + rt.rank())
    things = {"model": model, "optimizer": optimizer, "schedule": schedule}
    checkpointer = Checkpointer(every=2, sharded="SHARDED" in os.environ, **things)
    resumed = checkpointer.resume()
    print(f"resumed {resumed}", flush=True)
    for epoch in checkpointer.epochs(EPOCHS):
        for inputs, labels in checkpointer.batches(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            rt.optimizer_step(optimizer)
            step = checkpointer.steps + 1
            print(f"step {step} {loss.item().hex()}", flush=True)
            if rt.rank() == rt.world_size() - 1 and resumed is None:
                if step == args.die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if step == args.stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
            if step == args.wait_at and resumed is None:
                while not checkpointer.stopping:
                    threading.Event().wait(0.01)
            checkpointer.step()  # A job that was told to end ends here.
        schedule.step()
        print(f"epoch {epoch} lr {schedule.get_last_lr()}", flush=True)
    print(f"weights {digest(model)}", flush=True)


def digest(model):
    values = b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values())
    return hashlib.sha256(values).hexdigest()


main()
