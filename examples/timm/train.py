"""Trains one of timm's image models the way timm's train script does; nothing in it knows of XLA.

python examples/timm/train.py
trcomp run examples/timm/train.py --devices 2 -- --model resnet10t --amp_dtype bfloat16
"""

import argparse
import json
from pathlib import Path

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import (
    ModelEmaV3,
    NativeScaler,
    dispatch_clip_grad,
    init_distributed_device,
    random_seed,
    reduce_tensor,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

NUM_CLASSES = 4


def images(size, pixels):
    """Bright squares in noise; the class is the quarter that the square lies in."""
    generator = torch.Generator().manual_seed(1)
    noise = 0.3 * torch.randn(size, 3, pixels, pixels, generator=generator)
    labels = torch.arange(size) % NUM_CLASSES
    half = pixels // 2
    for image, label in zip(noise, labels, strict=True):
        top, left = half * (label // 2), half * (label % 2)
        image[:, top : top + half, left : left + half] += 1
    return TensorDataset(noise, labels)


def main(args):
    device = init_distributed_device(args)
    random_seed(0)
    model = timm.create_model(args.model, num_classes=NUM_CLASSES, drop_path_rate=args.drop_path)
    model.to(device)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    average = ModelEmaV3(model, decay=0.9)
    if args.distributed:
        model = DistributedDataParallel(
            model, device_ids=[device] if device.type != "cpu" else None
        )
    dtype = getattr(torch, args.amp_dtype)
    scaler = NativeScaler(device=device.type) if dtype is torch.float16 else None
    data = images(args.num_train, args.pixels)
    sampler = DistributedSampler(data) if args.distributed else None
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    schedule = CosineLRScheduler(optimizer, t_initial=args.epochs * len(loader), t_in_epochs=False)
    mixup = Mixup(mixup_alpha=0.2, label_smoothing=0.1, num_classes=NUM_CLASSES)
    criterion = SoftTargetCrossEntropy()
    losses, step = [], 0
    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for inputs, labels in loader:
            inputs, labels = mixup(inputs.to(device), labels.to(device))
            with torch.autocast(device.type, dtype, enabled=dtype is not torch.float32):
                loss = criterion(model(inputs), labels)
            optimizer.zero_grad()
            if scaler is not None:
                scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
            else:
                loss.backward()
                dispatch_clip_grad(model.parameters(), 1.0)
                optimizer.step()
            step += 1
            average.update(model, step=step)
            schedule.step_update(step)
            losses.append(loss.detach())
    means = torch.stack(losses)
    means = (reduce_tensor(means, args.world_size) if args.distributed else means).tolist()
    if args.rank == 0:
        print(f"loss {means[0]:.3f} -> {means[-1]:.3f}")
        args.output_dir.mkdir(parents=True, exist_ok=True)
        torch.save(average.module.state_dict(), args.output_dir / "model.pt")
        (args.output_dir / "history.json").write_text(json.dumps({"losses": means}))
    if args.distributed:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, default=Path("out"))
    parser.add_argument("--model", default="test_resnet")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num_train", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=8, help="images per step and process")
    parser.add_argument("--pixels", type=int, default=32)
    parser.add_argument("--drop_path", type=float, default=0.0)
    parser.add_argument("--amp_dtype", default="float32", help="bfloat16, float16: mixed precision")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    main(parser.parse_args())
