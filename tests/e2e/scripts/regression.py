"""A seeded regression over all ranks that prints its losses in full, to compare ways to run it."""

import json

import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp


def train(index):
    torch.manual_seed(0)
    device, rank, world = xm.xla_device(), xm.get_ordinal(), xm.xrt_world_size()
    inputs, targets = torch.randn(4, 8, 16), torch.randn(4, 8, 1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    mine = [(x[rank::world], y[rank::world]) for x, y in zip(inputs, targets, strict=True)]
    losses = []
    for x, y in pl.MpDeviceLoader(mine * 3, device):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        xm.optimizer_step(optimizer)
        mean = xm.all_reduce(xm.REDUCE_SUM, loss.detach(), scale=1 / world)
        xm.add_step_closure(lambda value: losses.append(value.item()), (mean,))
    place = {"rank": rank, "world": world, "local": xm.get_local_ordinal(), "index": index}
    print("RESULT", json.dumps({**place, "losses": losses}), flush=True)
    if xm.is_master_ordinal(local=False):
        print("master", flush=True)


if __name__ == "__main__":
    xmp.spawn(train)
