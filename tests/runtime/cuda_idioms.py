"""What scripts written for GPUs do, as they do it: each function returns numbers to compare.

Run as a script it prints them all as JSON; where torch sees no CUDA they are the CPU's.
"""

from __future__ import annotations

import contextlib
import copy
import json
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def compiles() -> int:
    """Graphs compiled so far, without asking for the runtime where it is not."""
    runtime = sys.modules.get("trcomp.runtime")
    return int(runtime.metrics()["compiles"]) if runtime else 0


class Block(nn.Module):
    """A small transformer."""

    def __init__(self, vocabulary: int = 17, width: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(8, width)
        self.attention = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> tuple[Any, Any]:
        places = torch.arange(0, ids.size(1), dtype=torch.long, device=ids.device)
        x = self.tokens(ids) + self.places(places)
        q, k, v = self.attention(self.norm(x)).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        logits = self.head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def nanogpt(dtype: str = "bfloat16") -> dict[str, Any]:
    """nanoGPT's loop: autocast, scaler, accumulation, clipping, pinned batches fetched ahead."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    device_type = "cuda" if "cuda" in device else "cpu"
    torch.manual_seed(1337)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    cpu_ctx = torch.amp.autocast("cpu", torch.bfloat16)
    if dtype == "float32":
        cpu_ctx = contextlib.nullcontext()  # type: ignore[assignment]
    ctx: Any = (
        cpu_ctx
        if device_type == "cpu"
        else torch.amp.autocast(device_type=device_type, dtype=ptdtype[dtype])
    )
    data = torch.randint(17, (4000,), generator=torch.Generator().manual_seed(1))

    def get_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.stack([data[i : i + 8] for i in range(step * 9, step * 9 + 4)])
        y = torch.stack([data[i + 1 : i + 9] for i in range(step * 9, step * 9 + 4)])
        if device_type == "cuda":
            return (
                x.pin_memory().to(device, non_blocking=True),
                y.pin_memory().to(device, non_blocking=True),
            )
        return x.to(device), y.to(device)

    model: Any = Block()
    model.to(device)
    scaler = torch.cuda.amp.GradScaler(enabled=(dtype == "float16"))
    fused = {"fused": True} if device_type == "cuda" else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), **fused)
    losses, counts = [], []
    x, y = get_batch(0)
    for step in range(5):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (step + 1) / 5
        for micro in range(2):
            with ctx:
                _, loss = model(x, y)
                loss = loss / 2
            x, y = get_batch(2 * step + micro + 1)
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item() * 2)
        counts.append(compiles())
    return {"losses": losses, "compiles": counts}


def nanogpt_float32() -> dict[str, Any]:
    """The same in full precision."""
    return nanogpt("float32")


def nanogpt_float16() -> dict[str, Any]:
    """The same with a gradient scaler at work."""
    return nanogpt("float16")


class Net(nn.Module):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 4 * 4, 5)

    def forward(self, x: torch.Tensor) -> Any:
        x = F.max_pool2d(F.relu(self.bn(self.conv(x))), 2)
        return self.fc(torch.flatten(x, 1))


def images(count: int = 24) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    pictures = torch.randn(count, 3, 8, 8, generator=generator)
    return TensorDataset(pictures, torch.randint(5, (count,), generator=generator))


def imagenet() -> dict[str, Any]:
    """PyTorch's ImageNet example: pinned loaders, `.cuda(gpu)`, meters, a checkpoint, a resume."""
    gpu = 0 if torch.cuda.is_available() else None
    torch.manual_seed(0)
    model: Any = Net()
    if torch.cuda.is_available():
        torch.cuda.set_device(gpu)
        model = model.cuda(gpu)
        torch.backends.cudnn.benchmark = True
    device = torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    pin = torch.cuda.is_available()
    loader = DataLoader(images(), batch_size=8, pin_memory=pin)
    values, counts = [], []
    path = Path(tempfile.mkdtemp()) / "checkpoint.pth.tar"
    for epoch in range(3):
        model.train()
        for pictures, target in loader:
            pictures = pictures.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            output = model(pictures)
            loss = criterion(output, target)
            with torch.no_grad():
                _, pred = output.topk(3, 1, True, True)
                correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
                top = correct[:1].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / 8)
            values.append((loss.item(), top[0].item()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        counts.append(compiles())
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, path)
        if epoch == 1:
            where = "cpu" if gpu is None else f"cuda:{gpu}"
            checkpoint = torch.load(path, map_location=where)
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
    return {"values": values, "compiles": counts}


def evaluation() -> dict[str, Any]:
    """A loop that reads nothing until its end, over many batches."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = Net().to(device).eval()
    total = torch.zeros((), device=device)
    correct = 0
    counts = []
    with torch.no_grad():
        for pictures, target in DataLoader(images(96), batch_size=8):
            pictures, target = pictures.to(device), target.to(device)
            output = model(pictures)
            total += F.cross_entropy(output, target, reduction="sum")
            correct += output.argmax(dim=1, keepdim=True).eq(target.view_as(output[:, :1])).sum()
            counts.append(compiles())
    return {"loss": total.item() / 96, "correct": int(correct), "compiles": counts}


def gan() -> dict[str, Any]:
    """Two networks, two optimizers, three backward passes a round."""
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    make: Any = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)
    judge: Any = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
    criterion = nn.BCEWithLogitsLoss()
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-2, betas=(0.5, 0.999))
    of_make = torch.optim.Adam(make.parameters(), lr=1e-2, betas=(0.5, 0.999))
    noise = torch.Generator().manual_seed(4)
    values, counts = [], []
    for _ in range(6):
        judge.zero_grad()
        real = torch.randn(8, 8, generator=noise).to(device)
        label = torch.full((8,), 1.0, dtype=torch.float, device=device)
        loss_real = criterion(judge(real).view(-1), label)
        loss_real.backward()
        fake = make(torch.randn(8, 4, generator=noise).to(device))
        label.fill_(0.0)
        loss_fake = criterion(judge(fake.detach()).view(-1), label)
        loss_fake.backward()
        of_judge.step()
        make.zero_grad()
        label.fill_(1.0)
        loss_make = criterion(judge(fake).view(-1), label)
        loss_make.backward()
        of_make.step()
        values.append((loss_real.item(), loss_fake.item(), loss_make.item()))
        counts.append(compiles())
    return {"values": values, "compiles": counts}


def default_device() -> dict[str, Any]:
    """`torch.set_default_device`, `with torch.device`, and constructors that name no device."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    weights = torch.arange(12.0).view(3, 4)
    torch.set_default_device(device)
    try:
        layer: Any = nn.Linear(4, 3)
        with torch.no_grad():
            layer.weight.copy_(weights)
            layer.bias.zero_()
        x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        out = layer(x) + torch.linspace(0, 1, 3)
        kinds = [t.device.type for t in (x, out, torch.ones(2))]
        is_default = torch.get_default_device().type == device
    finally:
        torch.set_default_device(None)
    with torch.device(device):
        inside = torch.eye(3) @ out.T
    assert kinds == [device] * 3
    assert is_default
    assert inside.device == out.device
    assert torch.ones(1).device.type == "cpu"
    return {"values": inside.flatten().tolist()}


def averaged_copy() -> dict[str, Any]:
    """An exponential moving average over a deep copy, and a copy of the optimizer's state."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model: Any = Block()
    model.to(device)
    average = copy.deepcopy(model).eval().requires_grad_(False)
    assert average.head.weight is average.tokens.weight
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    ids = torch.arange(16).view(2, 8).to(device)
    counts = []
    for _ in range(3):
        optimizer.zero_grad()
        model(ids, ids)[1].backward()
        optimizer.step()
        with torch.no_grad():
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                mean.mul_(0.9).add_(p.detach(), alpha=0.1)
        counts.append(compiles())
    kept = copy.deepcopy(optimizer.state_dict())
    moments = [s["exp_avg"].sum().item() for s in kept["state"].values()]
    loss = average(ids, ids)[1].item()
    return {"loss": loss, "moments": moments, "compiles": counts}


def recurrent() -> dict[str, Any]:
    """The word language model: hidden states made on the device and carried over batches."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    layer: Any = nn.LSTM(4, 6, 1).to(device)
    layer.flatten_parameters()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    weight = next(layer.parameters())
    hidden = (weight.new_zeros(1, 2, 6), weight.new_zeros(1, 2, 6))
    data = torch.randn(12, 2, 4, generator=torch.Generator().manual_seed(2)).to(device)
    losses = []
    for i in range(0, 12, 3):
        hidden = tuple(h.detach() for h in hidden)  # type: ignore[assignment]
        optimizer.zero_grad()
        output, hidden = layer(data[i : i + 3], hidden)
        loss = output.square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.25)
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses}


def checkpointed() -> dict[str, Any]:
    """Activation checkpointing, with the device's random state kept, inside autocast."""
    from torch.utils.checkpoint import checkpoint

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    first: Any = nn.Linear(4, 8).to(device)
    second: Any = nn.Linear(8, 1).to(device)
    x = torch.ones(3, 4).to(device)
    total = 0.0
    for reentrant in (False, True):
        hidden = first(x)
        out = checkpoint(lambda h: second(torch.tanh(h)), hidden, use_reentrant=reentrant)
        out.sum().backward()
        total += first.weight.grad.sum().item()
    return {"gradient": total}


def own_function() -> dict[str, Any]:
    """A custom autograd function that follows autocast, in both of its decorators' spellings."""
    device = "cuda" if torch.cuda.is_available() else "cpu"

    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device, cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.amp.custom_bwd(device_type=device)
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return 2 * ctx.saved_tensors[0] * grad

    x = torch.tensor([1.5, 2.5], device=device, requires_grad=True)
    with torch.autocast(device_type=device, dtype=torch.bfloat16):
        enabled = torch.is_autocast_enabled(device)
        half = torch.get_autocast_dtype(device)
        out = Square.apply(x)
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert enabled
    assert half is torch.bfloat16
    assert not torch.is_autocast_enabled(device)
    assert out.dtype is torch.float32
    assert x.grad is not None
    return {"gradient": x.grad.tolist()}


def old_spellings() -> dict[str, Any]:
    """`torch.cuda.FloatTensor`, `.type`, `Variable`, `.cuda()` on losses."""
    from torch.autograd import Variable

    if torch.cuda.is_available():
        kinds: Any = torch.cuda
        x = torch.cuda.FloatTensor([1.0, 2.0])  # type: ignore[attr-defined]
        assert isinstance(x, torch.cuda.FloatTensor)  # type: ignore[attr-defined]
        assert not isinstance(torch.ones(1), torch.cuda.FloatTensor)  # type: ignore[attr-defined]
        assert x.type() == "torch.cuda.FloatTensor"
        assert torch.ones(1).type("torch.cuda.HalfTensor").is_cuda
        index = torch.tensor([1, 0]).type(kinds.LongTensor)
        assert x.get_device() == torch.cuda.current_device()
    else:
        x, index = torch.FloatTensor([1.0, 2.0]), torch.LongTensor([1, 0])
    value = Variable(x, requires_grad=True)
    value[index].mul(x.new([3.0, 4.0])).sum().backward()
    return {"gradient": value.grad.tolist()}


def skipped_steps() -> dict[str, Any]:
    """A gradient scaler whose optimizer has no fused form, and batches that overflow."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layer: Any = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.RMSprop(layer.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device, init_scale=4.0, growth_interval=2)
    values, counts = [], []
    for step in range(6):
        optimizer.zero_grad()
        batch = torch.ones(2, 4) * (float("inf") if step in (1, 3) else 1.0)
        scaler.scale(layer(batch.to(device)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        values.append((layer.weight.sum().item(), scaler.get_scale()))
        counts.append(compiles())
    return {"values": values, "compiles": counts}


IDIOMS = [
    nanogpt,
    nanogpt_float32,
    nanogpt_float16,
    imagenet,
    evaluation,
    gan,
    default_device,
    averaged_copy,
    recurrent,
    checkpointed,
    own_function,
    old_spellings,
    skipped_steps,
]


def main() -> None:
    """Print what each function gives, or why it failed; with `--checks`, also the checks."""
    warnings.simplefilter("ignore", FutureWarning)
    functions: list[Any] = list(IDIOMS)
    if "--checks" in sys.argv:
        from tests.runtime.cuda_checks import CHECKS

        functions += CHECKS
    wanted = [word for word in sys.argv[1:] if not word.startswith("--")]
    results: dict[str, Any] = {}
    for function in functions:
        if wanted and function.__name__ not in wanted:
            continue
        try:
            results[function.__name__] = function() or {}
        except Exception:
            results[function.__name__] = {"error": traceback.format_exc()}
    print("RESULTS " + json.dumps(results))


if __name__ == "__main__":
    main()
