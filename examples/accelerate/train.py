"""Trains a small classifier with accelerate; nothing in it knows of XLA.

python examples/accelerate/train.py
trcomp run examples/accelerate/train.py --devices 2 -- --mixed_precision bf16 --accumulate 2
"""

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", type=Path, default=Path("out"))
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--num_train", type=int, default=50)
parser.add_argument("--num_eval", type=int, default=29)
parser.add_argument("--batch_size", type=int, default=4, help="samples per step and process")
parser.add_argument("--accumulate", type=int, default=1, help="batches per step")
parser.add_argument("--mixed_precision", default="no", choices=("no", "bf16", "fp16"))
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--resume", type=Path, help="a directory that an epoch left in output_dir")
parser.add_argument("--cpu", default="false", help="true: not on an accelerator")
args = parser.parse_args()
NUM_FEATURES, NUM_CLASSES = 20, 3


def samples(size, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, NUM_FEATURES, generator=generator)
    return TensorDataset(inputs, inputs[:, :NUM_CLASSES].argmax(1))


def evaluate(accelerator, model, loader):
    """How many samples there were, and the share that the model got right."""
    model.eval()
    guesses, labels = [], []
    for inputs, targets in loader:
        with torch.no_grad():
            guess = model(inputs).argmax(1)
        guess, targets = accelerator.gather_for_metrics((guess, targets))
        guesses.append(guess.cpu())
        labels.append(targets.cpu())
    right = torch.cat(guesses) == torch.cat(labels)
    return {"samples": len(right), "accuracy": right.float().mean().item()}


def train_epoch(accelerator, model, optimizer, schedule, loader):
    """The loss of each batch, averaged over processes; read once, when the epoch is over."""
    model.train()
    losses = []
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return accelerator.reduce(torch.stack(losses), "mean").tolist()


def main():
    accelerator = Accelerator(
        cpu=args.cpu == "true",
        mixed_precision=args.mixed_precision,
        gradient_accumulation_steps=args.accumulate,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    set_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(NUM_FEATURES, 32),
        torch.nn.GELU(),
        torch.nn.Dropout(args.dropout),
        torch.nn.Linear(32, NUM_CLASSES),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    train = DataLoader(samples(args.num_train, seed=1), args.batch_size, shuffle=True)
    held_out = DataLoader(samples(args.num_eval, seed=2), args.batch_size)
    model, optimizer, schedule, train, held_out = accelerator.prepare(
        model, optimizer, schedule, train, held_out
    )
    first = 0
    if args.resume:
        accelerator.load_state(str(args.resume))
        first = int(args.resume.name.removeprefix("epoch-")) + 1
    history = []
    for epoch in range(first, args.epochs):
        train.set_epoch(epoch)  # the order of its samples, also in a run that is resumed
        losses = train_epoch(accelerator, model, optimizer, schedule, train)
        history.append({"losses": losses, **evaluate(accelerator, model, held_out)})
        accelerator.print(f"epoch {epoch}: loss {losses[-1]:.4f}, {history[-1]}")
        accelerator.save_state(str(args.output_dir / f"epoch-{epoch}"))
    accelerator.save_model(model, str(args.output_dir))
    if accelerator.is_main_process:
        (args.output_dir / "history.json").write_text(json.dumps(history))
    accelerator.end_training()


if __name__ == "__main__":
    main()
