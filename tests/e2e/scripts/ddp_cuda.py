"""A training script for torchrun on GPUs; where there are none it takes gloo and the CPU."""

import contextlib
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.is_available()
    dist.init_process_group(backend="nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if cuda:
        torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    torch.manual_seed(rank)  # DDP gives every rank the weights of rank 0.
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    model = nn.Sequential(*layers).to(device)
    ids = [local_rank] if cuda else None
    model = DistributedDataParallel(
        model, device_ids=ids, output_device=local_rank if cuda else None
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    generator = torch.Generator().manual_seed(3)
    pictures = torch.randn(48, 3, 6, 6, generator=generator)
    dataset = TensorDataset(pictures, torch.randint(3, (48,), generator=generator))
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, pin_memory=cuda)
    criterion = nn.CrossEntropyLoss().to(device)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        total = torch.zeros(1, device=device)
        for index, (images, labels) in enumerate(loader):
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            steps = index % 2 == 1
            with contextlib.nullcontext() if steps else model.no_sync():
                loss = criterion(model(images), labels)
                scaler.scale(loss / 2).backward()
            if steps:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            total += loss.detach()
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
        losses.append(total.item() / (world * len(loader)))
        dist.barrier()
    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
    dist.barrier()
    where = {"cuda:0": f"cuda:{local_rank}"} if cuda else "cpu"
    state = torch.load("model.pt", map_location=where)
    weights = sum(value.double().sum() for value in state.values() if value.is_floating_point())
    gathered = [None] * world
    dist.all_gather_object(gathered, (rank, str(next(model.parameters()).device)))
    result = {"rank": rank, "losses": losses, "weights": weights.item(), "devices": gathered}
    print("RESULT " + json.dumps(result) + "\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
