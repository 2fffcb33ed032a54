"""Trains a small Vision Transformer to tell the direction of stripes in generated images."""

import argparse
import os

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from transformers import ViTConfig, ViTForImageClassification

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--batch-size", type=int, default=16, help="images per step and rank")
parser.add_argument("--image-size", type=int, default=32, help="pixels, a multiple of 4")
parser.add_argument("--lr", type=float, default=1e-3)
args = parser.parse_args()
NUM_CLASSES = 8


class Stripes(Dataset):
    """Noisy stripes; their direction is the label."""

    def __len__(self):
        return args.steps * args.batch_size * xr.world_size()

    def __getitem__(self, index):
        label = index % NUM_CLASSES
        angle = torch.tensor(label * torch.pi / NUM_CLASSES)
        line = torch.arange(args.image_size) / args.image_size
        wave = torch.sin(20 * (line[:, None] * angle.cos() + line * angle.sin()))
        return wave + 0.5 * torch.randn(3, args.image_size, args.image_size), label


def report(step, loss):
    xm.master_print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    torch.manual_seed(0)  # the same first weights on every rank
    device = torch_xla.device()
    config = ViTConfig(image_size=args.image_size, patch_size=args.image_size // 4)
    config.update({"hidden_size": 128, "intermediate_size": 512, "num_labels": NUM_CLASSES})
    config.update({"num_hidden_layers": 4, "num_attention_heads": 4})
    model = ViTForImageClassification(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    dataset = Stripes()
    sampler = DistributedSampler(dataset, xr.world_size(), xr.global_ordinal())
    loader = pl.MpDeviceLoader(DataLoader(dataset, args.batch_size, sampler=sampler), device)
    for step, (images, labels) in enumerate(loader, start=1):
        optimizer.zero_grad()
        loss = model(images, labels=labels).loss
        loss.backward()
        xm.optimizer_step(optimizer)
        if step % 10 == 0:
            xm.add_step_closure(report, (step, loss))
    xm.save(model.state_dict(), os.path.join(os.environ["SM_MODEL_DIR"], "model.pt"))
