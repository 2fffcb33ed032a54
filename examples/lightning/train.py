"""Trains a small classifier with Lightning; nothing in it knows of XLA.

python examples/lightning/train.py
trcomp run examples/lightning/train.py --devices 2 -- --precision bf16-mixed
"""

import argparse
import json
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

NUM_FEATURES, NUM_CLASSES = 20, 3


class Classifier(L.LightningModule):
    """Which of the first features is the largest."""

    def __init__(self, width=32, lr=1e-2, dropout=0.0):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(NUM_FEATURES, width),
            torch.nn.GELU(),
            torch.nn.Dropout(dropout),
            torch.nn.Linear(width, NUM_CLASSES),
        )
        self.losses = []

    def training_step(self, batch, batch_index):
        inputs, labels = batch
        loss = torch.nn.functional.cross_entropy(self.layers(inputs), labels)
        self.losses.append(loss.detach())
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_index):
        inputs, labels = batch
        logits = self.layers(inputs)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        right = (logits.argmax(1) == labels).float().mean()
        self.log_dict({"val_loss": loss, "val_accuracy": right}, sync_dist=True)

    def on_fit_end(self):
        if self.trainer.is_global_zero:
            metrics = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
            history = {"losses": torch.stack(self.losses).tolist(), **metrics}
            path = Path(self.trainer.default_root_dir) / "history.json"
            path.write_text(json.dumps(history))
            print(history)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return [optimizer], [schedule]


def loader(size, seed, batch_size):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, NUM_FEATURES, generator=generator)
    return DataLoader(TensorDataset(inputs, inputs[:, :NUM_CLASSES].argmax(1)), batch_size)


def main(args):
    L.seed_everything(0)
    model = Classifier(dropout=args.dropout)
    best = ModelCheckpoint(
        args.output_dir / "checkpoints", monitor="val_loss", save_last=True, filename="{epoch}"
    )
    trainer = L.Trainer(
        default_root_dir=args.output_dir,
        accelerator=args.accelerator,
        devices=args.devices,
        precision=args.precision,
        max_epochs=args.epochs,
        gradient_clip_val=1.0,
        accumulate_grad_batches=args.accumulate,
        callbacks=[best],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train = loader(args.num_train, 1, args.batch_size)
    held_out = loader(args.num_eval, 2, args.batch_size)
    trainer.fit(model, train, held_out, ckpt_path=args.resume)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, default=Path("out"))
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", default="auto", type=lambda n: n if n == "auto" else int(n))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--num_train", type=int, default=48)
    parser.add_argument("--num_eval", type=int, default=24)
    parser.add_argument("--batch_size", type=int, default=4, help="samples per step and process")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per step")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--resume", help="a file that ModelCheckpoint left")
    main(parser.parse_args())
