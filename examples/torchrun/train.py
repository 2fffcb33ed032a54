"""Trains a small convolutional network as scripts written for torchrun and GPUs do.

torchrun --nproc_per_node 2 examples/torchrun/train.py
trcomp run examples/torchrun/train.py --devices 2
"""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

NUM_CLASSES = 4


def images(size, seed):
    """Bright squares in noise; the class is the quarter that the square lies in."""
    generator = torch.Generator().manual_seed(seed)
    noise = 0.3 * torch.randn(size, 1, 16, 16, generator=generator)
    labels = torch.arange(size) % NUM_CLASSES
    for image, label in zip(noise, labels, strict=True):
        top, left = 8 * (label // 2) + 2, 8 * (label % 2) + 2
        image[:, top : top + 4, left : left + 4] += 1
    return TensorDataset(noise, labels)


def main(args):
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(128, NUM_CLASSES),
    ).to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = images(args.num_train, seed=1)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler, pin_memory=on_gpu, drop_last=True)
    losses = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            inputs, labels = inputs.to(device, non_blocking=True), labels.to(device)
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    mean = torch.stack(losses)
    dist.all_reduce(mean)
    mean = (mean / dist.get_world_size()).tolist()
    if dist.get_rank() == 0:
        print(f"loss {mean[0]:.3f} -> {mean[-1]:.3f}")
        args.output_dir.mkdir(parents=True, exist_ok=True)
        torch.save(model.module.state_dict(), args.output_dir / "model.pt")
        (args.output_dir / "history.json").write_text(json.dumps({"losses": mean}))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, default=Path("out"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--num_train", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=8, help="images per step and process")
    main(parser.parse_args())
