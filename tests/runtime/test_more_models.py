"""More models train on `xla` as on the CPU; with dropout, statistics and seeds do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import trcomp.runtime as rt
from tests.runtime import vision
from tests.runtime.training import MakeBatch, MakeModel, MakeOptimizer, assert_same, train
from tests.runtime.unet import Scheduler, UNet

pytestmark = [pytest.mark.runtime, pytest.mark.long]
DEVICE = "xla"
STEPS = 10

Make = Callable[[float], tuple[MakeModel, MakeBatch]]
"""Gives a model and its batches, for a probability of dropout."""


class Classifier(nn.Module):
    """A network of images to classes, and its loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.network(pixel_values), labels, label_smoothing=0.1)


class Tagger(nn.Module):
    """A label for each token: embedding, recurrent layers both ways, a linear layer."""

    def __init__(self, kind: type[nn.RNNBase], dropout: float, lengths: list[int] | None) -> None:
        super().__init__()
        self.lengths = lengths
        self.embedding = nn.Embedding(50, 16, padding_idx=0)
        self.layers = kind(16, 12, 2, batch_first=True, bidirectional=True, dropout=dropout)
        self.out = nn.Linear(24, 5)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        words = self.embedding(tokens)
        if self.lengths is None:
            hidden, _ = self.layers(words)
        else:
            lengths = torch.tensor(self.lengths)
            packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
            hidden, _ = pad_packed_sequence(self.layers(packed)[0], batch_first=True)
        return F.cross_entropy(self.out(hidden).flatten(0, 1), labels.flatten())


class Recommender(nn.Module):
    """DLRM: bags of categories and dense features, their pairwise products, a click's chance."""

    def __init__(self) -> None:
        super().__init__()
        modes = ("sum", "mean", "max")
        self.tables = nn.ModuleList(nn.EmbeddingBag(40, 8, mode=mode) for mode in modes)
        self.bottom = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(8 + 6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(
        self,
        dense: torch.Tensor,
        categories: torch.Tensor,
        offsets: torch.Tensor,
        clicked: torch.Tensor,
    ) -> torch.Tensor:
        features = self.bottom(dense)
        bags = [table(row, offsets) for table, row in zip(self.tables, categories, strict=True)]
        stacked = torch.stack([features, *bags], 1)
        rows, columns = torch.tril_indices(4, 4, -1, device=dense.device)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[:, rows, columns]
        scores = self.top(torch.cat([features, products], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(scores, clicked)


class Denoiser(nn.Module):
    """A UNet's loss: how far the noise it predicts is from the noise that was added."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.unet, self.scheduler = UNet(dropout=dropout), Scheduler(10)

    def forward(
        self,
        images: torch.Tensor,
        noise: torch.Tensor,
        times: torch.Tensor,
        context: torch.Tensor,
    ) -> torch.Tensor:
        noisy = self.scheduler.add_noise(images, noise, times)
        return F.mse_loss(self.unet(noisy, times, context), noise)


def images(size: int, count: int = 4) -> MakeBatch:
    return lambda g: {
        "pixel_values": torch.randn(count, 3, size, size, generator=g),
        "labels": torch.randint(0, 10, (count,), generator=g),
    }


def tokens(count: int = 4, length: int = 12) -> MakeBatch:
    def batch(generator: torch.Generator) -> dict[str, torch.Tensor]:
        ids = torch.randint(3, 200, (count, length), generator=generator)
        return {"input_ids": ids, "labels": ids}

    return batch


def convnet(make: Callable[..., nn.Module], size: int) -> Make:
    return lambda dropout: (
        lambda: Classifier(make(dropout=dropout) if dropout else make()),
        images(size),
    )


def tagger(kind: type[nn.RNNBase], lengths: list[int] | None) -> Make:
    length = 9 if lengths is None else max(lengths)

    def batch(generator: torch.Generator) -> dict[str, torch.Tensor]:
        return {
            "tokens": torch.randint(0, 50, (4, length), generator=generator),
            "labels": torch.randint(0, 5, (4, length), generator=generator),
        }

    return lambda dropout: (lambda: Tagger(kind, dropout, lengths), batch)


def recommender(dropout: float) -> tuple[MakeModel, MakeBatch]:
    return Recommender, lambda g: {
        "dense": torch.randn(8, 6, generator=g),
        "categories": torch.randint(0, 40, (3, 20), generator=g),
        "offsets": torch.tensor([0, 2, 2, 5, 9, 12, 13, 18]),
        "clicked": torch.randint(0, 2, (8,), generator=g).float(),
    }


def unet(dropout: float) -> tuple[MakeModel, MakeBatch]:
    return lambda: Denoiser(dropout), lambda g: {
        "images": torch.randn(4, 3, 16, 16, generator=g),
        "noise": torch.randn(4, 3, 16, 16, generator=g),
        "times": torch.randint(0, 100, (4,), generator=g),
        "context": torch.randn(4, 5, 12, generator=g),
    }


def llama(dropout: float) -> tuple[MakeModel, MakeBatch]:
    config = transformers.LlamaConfig(
        vocab_size=200,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_dropout=dropout,
    )
    return lambda: transformers.LlamaForCausalLM(config), tokens()


def gpt2(dropout: float) -> tuple[MakeModel, MakeBatch]:
    config = transformers.GPT2Config(
        vocab_size=200,
        n_positions=32,
        n_embd=48,
        n_layer=2,
        n_head=4,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    return lambda: transformers.GPT2LMHeadModel(config), tokens()


def t5(dropout: float) -> tuple[MakeModel, MakeBatch]:
    config = transformers.T5Config(
        vocab_size=200,
        d_model=48,
        d_kv=12,
        d_ff=96,
        num_layers=2,
        num_heads=4,
        dropout_rate=dropout,
        decoder_start_token_id=0,
    )
    return lambda: transformers.T5ForConditionalGeneration(config), tokens()


def bert(dropout: float) -> tuple[MakeModel, MakeBatch]:
    config = transformers.BertConfig(
        vocab_size=200,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return lambda: transformers.BertForMaskedLM(config), tokens()


def vit(dropout: float) -> tuple[MakeModel, MakeBatch]:
    config = transformers.ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=10,
    )
    return lambda: transformers.ViTForImageClassification(config), images(32)


def convnext(dropout: float) -> tuple[MakeModel, MakeBatch]:
    config = transformers.ConvNextConfig(
        num_stages=2,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        drop_path_rate=dropout,
        num_labels=10,
        # At its usual 1e-6 a block is its input alone and would hide a fault.
        layer_scale_init_value=0.5,
    )
    return lambda: transformers.ConvNextForImageClassification(config), images(32)


def swin(dropout: float) -> tuple[MakeModel, MakeBatch]:
    config = transformers.SwinConfig(
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[2, 1],
        num_heads=[2, 4],
        window_size=4,
        drop_path_rate=dropout,
        hidden_dropout_prob=dropout,
        num_labels=10,
    )
    return lambda: transformers.SwinForImageClassification(config), images(32)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def adagrad(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, lr=0.01)


def adafactor(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(parameters, lr=1e-2)


MODELS: dict[str, tuple[Make, MakeOptimizer]] = {
    "resnext": (convnet(partial(vision.resnext, (1, 1, 1, 1)), 64), sgd),
    "resnext50_32x4d": (convnet(partial(vision.resnext, (3, 4, 6, 3)), 64), sgd),
    "mobilenet_v2": (convnet(vision.mobilenet_v2, 32), sgd),
    "mnasnet1_0": (convnet(vision.mnasnet1_0, 32), sgd),
    "alexnet": (convnet(vision.alexnet, 64), sgd),
    "vgg16": (convnet(vision.vgg16, 32), sgd),
    "convnext": (convnext, adamw),
    "swin": (swin, adamw),
    "llama": (llama, adamw),
    "t5": (t5, adafactor),
    "unet": (unet, adamw),
    "lstm-tagger": (tagger(nn.LSTM, None), adamw),
    "gru-tagger-packed": (tagger(nn.GRU, [9, 4, 7, 1]), sgd),
    "dlrm": (recommender, adagrad),
}

DROPPING: dict[str, Make] = {
    "alexnet": convnet(vision.alexnet, 64),
    "vgg16": convnet(vision.vgg16, 32),
    "mobilenet_v2": convnet(vision.mobilenet_v2, 32),
    "mnasnet1_0": convnet(vision.mnasnet1_0, 32),
    "bert": bert,
    "gpt2": gpt2,
    "vit": vit,
    "llama": llama,
    "t5": t5,
    "swin": swin,
    "convnext": convnext,
    "unet": unet,
    "lstm-tagger": tagger(nn.LSTM, None),
}
"""Models that have dropout."""


SLOW = {"resnext50_32x4d"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in MODELS]
)
def test_training_agrees_with_the_cpu(name: str) -> None:
    make, optimizer = MODELS[name]
    make_model, make_batch = make(0.0)
    runs = [train(d, make_model, make_batch, optimizer, steps=STEPS) for d in (DEVICE, "cpu")]
    assert_same(*runs)
    assert runs[0].fallbacks == {}
    assert runs[0].compiles_after_second_step == 0


def losses(device: str, make: Make, seed: int, draws: int) -> torch.Tensor:
    """The losses of one model on one batch, which differ by what is dropped alone."""
    make_model, make_batch = make(0.3)
    torch.manual_seed(0)
    model = make_model().to(device).train()
    batch = {k: v.to(device) for k, v in make_batch(torch.Generator().manual_seed(1)).items()}
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0
    torch.manual_seed(seed)
    made = []
    for _ in range(draws):
        result = model(**batch)
        made.append((result.loss if hasattr(result, "loss") else result).detach())
        rt.sync()
    return torch.stack(made).double().cpu()


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_has_the_cpus_statistics_and_its_seed_repeats_it(name: str) -> None:
    make, draws = DROPPING[name], 40
    before = rt.metrics()
    dropped = losses(DEVICE, make, 2, draws)
    assert rt.metrics()["fallbacks"] == before["fallbacks"]
    # Where whole paths are dropped there are not many patterns.
    assert len(set(dropped.tolist())) > draws // 4
    assert losses(DEVICE, make, 2, 3).equal(dropped[:3])
    assert not losses(DEVICE, make, 3, 3).equal(dropped[:3])
    reference = losses("cpu", make, 2, draws)
    error = ((dropped.var() + reference.var()) / draws).sqrt()
    assert abs(dropped.mean() - reference.mean()) < 5 * error
    assert 0.4 < dropped.std() / reference.std() < 2.5


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_models_that_drop_still_train(name: str) -> None:
    make_model, make_batch = DROPPING[name](0.1)
    run = train(DEVICE, make_model, make_batch, adamw, steps=30)
    assert run.losses[-4:].mean() < run.losses[:4].mean()
    assert run.compiles_after_second_step == 0


def denoise(device: str, steps: int) -> tuple[torch.Tensor, list[int]]:
    """Images out of noise, and how many executables there were after each step."""
    torch.manual_seed(0)
    network, scheduler = UNet().to(device).eval(), Scheduler(steps)
    images, context = torch.randn(2, 3, 16, 16).to(device), torch.randn(2, 5, 12).to(device)
    compiles = []
    progress = transformers.utils.logging.tqdm(scheduler.times.to(device), disable=False)
    with torch.no_grad():
        for time in progress:
            # Guidance: the noise predicted with a context leads away from that without.
            both = torch.cat([images, images])
            contexts = torch.cat([torch.zeros_like(context), context])
            plain, led = network(both, time.expand(4), contexts).chunk(2)
            images = scheduler.step(plain + 3.0 * (led - plain), time, images)
            rt.sync()
            compiles.append(rt.metrics()["compiles"])
    return images.cpu(), compiles


def test_denoising_compiles_once_and_reuses() -> None:
    before = rt.metrics()
    made, compiles = denoise(DEVICE, 12)
    after = rt.metrics()
    assert compiles[1:] == [compiles[1]] * 11
    assert after["fallbacks"] == before["fallbacks"]
    expected, _ = denoise("cpu", 12)
    torch.testing.assert_close(made, expected, rtol=1e-3, atol=1e-3)


def adversaries() -> tuple[nn.Module, nn.Module]:
    """A generator of 16 x 16 images out of noise, and a critic of them."""
    generator = nn.Sequential(
        nn.Unflatten(1, (12, 1, 1)),
        nn.ConvTranspose2d(12, 16, 4, 1, 0, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(8, 3, 4, 2, 1),
        nn.Tanh(),
    )
    critic = nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(8, 16, 4, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Flatten(),
        nn.Linear(16 * 16, 1),
    )
    return generator, critic


def play(device: str) -> tuple[torch.Tensor, list[int]]:
    """Both losses of each step, `(steps, 2)`, and how many executables there were after each."""
    torch.manual_seed(0)
    generator, critic = (network.to(device) for network in adversaries())
    optimizers = [
        torch.optim.Adam(network.parameters(), lr=2e-4, betas=(0.5, 0.999))
        for network in (generator, critic)
    ]
    noise, real = torch.randn(STEPS, 8, 12), torch.randn(STEPS, 8, 3, 16, 16)
    made, compiles = [], []
    for i in range(STEPS):
        optimizers[1].zero_grad()
        truth = critic(real[i].to(device))
        fakes = generator(noise[i].to(device))
        lies = critic(fakes.detach())
        critic_loss = F.binary_cross_entropy_with_logits(truth, torch.ones_like(truth))
        critic_loss = critic_loss + F.binary_cross_entropy_with_logits(lies, torch.zeros_like(lies))
        critic_loss.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        generator_loss = F.softplus(-critic(fakes)).mean()
        generator_loss.backward()
        optimizers[0].step()
        made.append(torch.stack([critic_loss.detach(), generator_loss.detach()]))
        rt.sync()
        compiles.append(rt.metrics()["compiles"])
    return torch.stack([losses.cpu() for losses in made]), compiles


def test_two_optimizers_of_adversaries() -> None:
    before = rt.metrics()["fallbacks"]
    made, compiles = play(DEVICE)
    assert rt.metrics()["fallbacks"] == before
    assert compiles[-1] == compiles[1]
    expected, _ = play("cpu")
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)
