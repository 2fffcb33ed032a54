"""Trains a small BERT, ViT or GPT-2 with transformers' Trainer; nothing in it knows of XLA.

python examples/hf_trainer/train.py --output_dir out --model gpt2
trcomp run examples/hf_trainer/train.py --devices 2 -- --output_dir out --model bert --bf16 true
"""

from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)

VOCABULARY, NUM_CLASSES = 64, 4


@dataclass
class Words:
    """What is trained, on what."""

    model: str = "bert"  # or vit, gpt2
    num_train: int = 256
    num_eval: int = 61
    length: int = 16  # tokens of the longest sequence
    pad_to: str = "length"  # or longest: of each batch, so that its shape varies
    dropout: float = 0.0
    layers: int = 2


class Sentences(Dataset):
    """Sequences of various lengths; the class is that of the first token, modulo NUM_CLASSES."""

    def __init__(self, size, length, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, VOCABULARY, (size, length), generator=generator)
        self.lengths = torch.randint(length // 2, length + 1, (size,), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index, : self.lengths[index]]
        return {"input_ids": tokens, "labels": tokens[0] % NUM_CLASSES}


class Counting(Sentences):
    """Sequences that count up from a random token, of various lengths; the next token is learnt."""

    def __getitem__(self, index):
        start, length = self.tokens[index, 0], self.lengths[index]
        tokens = 1 + (start + torch.arange(length)) % (VOCABULARY - 1)
        return {"input_ids": tokens, "labels": tokens}


class Stripes(Dataset):
    """Noisy stripes; the class is their direction."""

    def __init__(self, size, length, seed):
        generator = torch.Generator().manual_seed(seed)
        self.noise = 0.5 * torch.randn((size, 3, length, length), generator=generator)

    def __len__(self):
        return len(self.noise)

    def __getitem__(self, index):
        label = index % NUM_CLASSES
        angle = torch.tensor(label * torch.pi / NUM_CLASSES)
        line = torch.arange(self.noise.shape[-1])
        wave = torch.sin(line[:, None] * angle.cos() + line * angle.sin())
        return {"pixel_values": wave + self.noise[index], "labels": label}


def collate(samples, length=None):
    """Pad sequences to `length`, or to the longest among them."""

    def pad(name, filler):
        rows = [sample[name] for sample in samples]
        padded = pad_sequence(rows, batch_first=True, padding_value=filler)
        missing = (length or padded.shape[1]) - padded.shape[1]
        return torch.nn.functional.pad(padded, (0, missing), value=filler)

    ids = pad("input_ids", 0)
    scalar = samples[0]["labels"].dim() == 0
    labels = torch.stack([s["labels"] for s in samples]) if scalar else pad("labels", -100)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def build(words):
    """A model from its configuration, the kind of its data and how samples become batches."""
    sizes = {"num_hidden_layers": words.layers, "num_attention_heads": 2, "hidden_size": 32}
    sizes |= {"intermediate_size": 64, "num_labels": NUM_CLASSES}
    drop = {"hidden_dropout_prob": words.dropout, "attention_probs_dropout_prob": words.dropout}
    if words.model == "vit":
        config = ViTConfig(image_size=words.length, patch_size=4, **sizes, **drop)
        return ViTForImageClassification(config), Stripes, None
    fixed = words.length if words.pad_to == "length" else None

    def padded(samples):
        return collate(samples, fixed)

    if words.model == "bert":
        places = {"vocab_size": VOCABULARY, "max_position_embeddings": words.length}
        return (
            BertForSequenceClassification(BertConfig(**places, **sizes, **drop)),
            Sentences,
            padded,
        )
    drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), words.dropout)
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    sizes = {"vocab_size": VOCABULARY, "n_positions": words.length}
    sizes |= {"n_embd": 32, "n_layer": words.layers, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, **drop, **ends)), Counting, padded


def hits(prediction):
    """How many samples were evaluated, and the share of them (or of their tokens) that is right."""
    guess, labels = prediction.predictions.argmax(-1), prediction.label_ids
    if labels.ndim == 2:
        guess, labels = guess[:, :-1], labels[:, 1:]
    known = labels != -100
    return {"samples": len(labels), "accuracy": float((guess == labels)[known].mean())}


if __name__ == "__main__":
    words, args = HfArgumentParser((Words, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(args.seed)
    model, data, collator = build(words)
    trainer = Trainer(
        model,
        args,
        data_collator=collator,
        train_dataset=data(words.num_train, words.length, seed=1),
        eval_dataset=data(words.num_eval, words.length, seed=2),
        compute_metrics=hits,
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()
    trainer.save_state()
