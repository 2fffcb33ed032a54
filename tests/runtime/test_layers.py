"""Layers and losses, forward and backward, against the CPU in float64 and by dtype."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import trcomp.runtime as rt

pytestmark = pytest.mark.runtime
DEVICE = "xla"

Make = Callable[..., torch.Tensor]


def compare(function: Make, *inputs: torch.Tensor, tolerance: float = 1e-9) -> None:
    """Outputs and the gradients of every floating input are the CPU's."""
    results = []
    for device in ("cpu", DEVICE):
        given = [
            t.detach().clone().to(device).requires_grad_(t.is_floating_point()) for t in inputs
        ]
        made = function(*given)
        made.backward(
            torch.linspace(0.5, 1.5, made.numel(), dtype=made.dtype).view(made.shape).to(device)
        )
        results.append([made.detach(), *(t.grad for t in given if t.requires_grad)])
    for expected, got in zip(*results, strict=True):
        if expected is None:
            assert got is None
            continue
        assert got.device.type == DEVICE
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        torch.testing.assert_close(
            got.cpu(), expected, rtol=tolerance, atol=tolerance, equal_nan=True
        )


def randn(*size: int) -> torch.Tensor:
    return torch.randn(size, dtype=torch.float64)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(lead: tuple[int, ...], bias: bool) -> None:
    operands = [randn(*lead, 5), randn(6, 5), *([randn(6)] if bias else [])]
    compare(lambda x, w, b=None: F.linear(x, w, b), *operands)


def test_linear_is_one_node_each_way() -> None:
    layer = torch.nn.Linear(5, 6).to(DEVICE)
    x = torch.randn(2, 3, 5).to(DEVICE).requires_grad_()
    rt.sync()
    before = rt.metrics()["recorded_nodes"]
    made = layer(x)
    assert rt.metrics()["recorded_nodes"] == before + 1
    grad = torch.ones_like(made)
    before = rt.metrics()["recorded_nodes"]
    torch.autograd.grad(made, [x, layer.weight, layer.bias], grad)
    assert rt.metrics()["recorded_nodes"] == before + 1


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        (torch.matmul, [(3, 4), (4, 5)]),
        (torch.matmul, [(2, 3, 4), (4, 5)]),
        (torch.matmul, [(2, 1, 3, 4), (5, 4, 2)]),
        (torch.matmul, [(4,), (4,)]),
        (torch.matmul, [(3, 4), (4,)]),
        (torch.addmm, [(5,), (3, 4), (4, 5)]),
        (lambda a, b, c: torch.addmm(a, b, c, beta=0.3, alpha=2), [(3, 5), (3, 4), (4, 5)]),
        (lambda a, b, c: torch.baddbmm(a, b, c, beta=2), [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
        (torch.outer, [(3,), (4,)]),
        (lambda a, b: torch.einsum("bij,bkj->bik", a, b), [(2, 3, 4), (2, 5, 4)]),
    ],
)
def test_products(function: Make, sizes: list[tuple[int, ...]]) -> None:
    compare(function, *(randn(*size) for size in sizes))


def test_addmm_with_beta_zero_drops_what_it_would_add() -> None:
    nan = torch.full((2, 2), torch.nan)
    left, right = torch.ones(2, 3), torch.ones(3, 2)
    for beta in (0, 0.0):
        made = torch.addmm(nan.to(DEVICE), left.to(DEVICE), right.to(DEVICE), beta=beta)
        assert made.tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize(
    ("mask", "is_causal"), [(None, False), (None, True), ("bool", False), ("float", False)]
)
def test_attention(mask: str | None, is_causal: bool) -> None:
    q, k, v = randn(2, 3, 5, 4), randn(2, 3, 7, 4), randn(2, 3, 7, 6)
    if mask == "float":
        compare(
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
            q,
            k,
            v,
            randn(1, 3, 5, 7),
        )
        return
    allowed = torch.rand(2, 1, 5, 7) > 0.4 if mask else None
    if allowed is not None:
        allowed[0, 0, 1] = False  # a row that sees nothing
        compare(
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.3),
            q,
            k,
            v,
            allowed,
        )
        return
    compare(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal), q, k, v)


def test_attention_with_fewer_key_heads() -> None:
    q, k, v = randn(2, 4, 5, 4), randn(2, 2, 5, 4), randn(2, 2, 5, 4)
    compare(lambda *a: F.scaled_dot_product_attention(*a, is_causal=True, enable_gqa=True), q, k, v)


def test_attention_is_one_node_each_way() -> None:
    q, k, v = (torch.randn(2, 3, 5, 4).to(DEVICE).requires_grad_() for _ in range(3))
    rt.sync()
    before = rt.metrics()["recorded_nodes"]
    made = F.scaled_dot_product_attention(q, k, v)
    torch.autograd.grad(made, [q, k, v], made.detach())
    assert rt.metrics()["recorded_nodes"] == before + 2


def test_attention_dropout_uses_one_mask_forward_and_backward() -> None:
    q, k = (torch.randn(1, 1, 16, 8).to(DEVICE) for _ in range(2))
    v = torch.eye(16).view(1, 1, 16, 16).to(DEVICE).requires_grad_()
    made = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    (grad,) = torch.autograd.grad(made, v, torch.eye(16).view(1, 1, 16, 16).to(DEVICE))
    # With v = 1 the output is the dropped weights, and v's gradient their transpose.
    torch.testing.assert_close(grad.cpu(), made.detach().cpu().transpose(-1, -2))
    dropped = (made == 0).float().mean().item()
    assert 0.3 < dropped < 0.7


def test_attention_can_be_differentiated_twice() -> None:
    def second(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the CPU's own fused kernel cannot
            made = F.scaled_dot_product_attention(q, k, v)
        (grad,) = torch.autograd.grad(made.square().sum(), q, create_graph=True)
        return grad

    compare(second, randn(1, 2, 3, 4), randn(1, 2, 3, 4), randn(1, 2, 3, 4))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_layer_norm(affine: bool, shift: float) -> None:
    x = randn(3, 4, 6) + shift
    extra = [randn(6), randn(6)] if affine else []
    compare(lambda x, w=None, b=None: F.layer_norm(x, (6,), w, b), x, *extra, tolerance=1e-7)


def test_statistics_of_data_far_from_zero_keep_their_digits_in_float32() -> None:
    x = torch.randn(8, 64) + 1000
    made = F.layer_norm(x.to(DEVICE), (64,)).cpu()
    exact = F.layer_norm(x.double(), (64,)).float()
    torch.testing.assert_close(made, exact, rtol=2e-4, atol=2e-4)


def test_group_norm() -> None:
    compare(lambda x, w, b: F.group_norm(x, 2, w, b), randn(3, 4, 5, 2), randn(4), randn(4))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(6, 4), (5, 4, 3), (2, 4, 3, 3)])
def test_batch_norm(training: bool, shape: tuple[int, ...]) -> None:
    stats = {
        d: (torch.zeros(4).double().to(d), torch.ones(4).double().to(d)) for d in ("cpu", DEVICE)
    }

    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        mean, var = stats[x.device.type]
        return F.batch_norm(x, mean, var, w, b, training=training, momentum=0.2)

    compare(run, randn(*shape) * 3 + 1, randn(4), randn(4))
    for expected, got in zip(stats["cpu"], stats[DEVICE], strict=True):
        torch.testing.assert_close(got.cpu(), expected)


def test_batch_norm_of_what_needs_no_gradient() -> None:
    """As behind a frozen layer."""
    gradients = []
    for device in ("cpu", DEVICE):
        norm = torch.nn.BatchNorm1d(3).to(device)
        inputs = torch.arange(12.0).view(4, 3).to(device)
        (norm(inputs) * inputs).sum().backward()
        gradients.append([p.grad.cpu() for p in norm.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_batch_norm_counts_batches_and_moves_averages_in_place() -> None:
    layer = torch.nn.BatchNorm1d(3).to(DEVICE)
    mean = layer.running_mean
    for _ in range(3):
        layer(torch.randn(8, 3).to(DEVICE) + 5)
        rt.sync()
    assert layer.running_mean is mean
    assert layer.num_batches_tracked.item() == 3
    assert (mean.cpu() > 0.5).all()


def _convolutions() -> list[tuple[int, dict[str, int], bool]]:
    plain = [
        {"kernel": 3, "padding": 1},
        {"kernel": 3, "stride": 2, "padding": 1},
        {"kernel": 3, "dilation": 2, "groups": 2},
        {"kernel": 1},
        {"kernel": 1, "stride": 2},
        {"kernel": 3, "stride": 3},  # patches, as in a vision transformer
        {"kernel": 2, "stride": 2, "padding": 1},
        {"kernel": 3, "padding": 1, "groups": 4},  # one filter per channel
        {"kernel": 3, "stride": 2, "padding": 2, "dilation": 2, "groups": 4},
        {"kernel": 2, "padding": 2, "groups": 4},
        {"kernel": 6},  # the result is one position
    ]
    transposed = [
        {"kernel": 3, "stride": 2, "padding": 1, "output_padding": 1},
        {"kernel": 3, "stride": 2, "groups": 2, "dilation": 2},
    ]
    return [
        (ndim, case, turned)
        for ndim in (1, 2, 3)
        for turned, cases in ((False, plain), (True, transposed))
        for case in cases
    ]


@pytest.mark.parametrize(("ndim", "case", "transposed"), _convolutions())
def test_convolution(ndim: int, case: dict[str, int], transposed: bool) -> None:
    options = dict(case)
    kernel, groups = options.pop("kernel"), case.get("groups", 1)
    size = (4, 8 // groups) if transposed else (8, 4 // groups)
    function = getattr(F, f"conv{'_transpose' if transposed else ''}{ndim}d")
    compare(
        lambda x, w, b: function(x, w, b, **options),
        randn(2, 4, *[6] * ndim),
        randn(*size, *[kernel] * ndim),
        randn(8),
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(reduction: str, weighted: bool, smoothing: float) -> None:
    weight = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64) if weighted else None
    target = torch.tensor([0, 2, -100, 1])

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        w = None if weight is None else weight.to(x.device)
        return F.cross_entropy(x, y, w, reduction=reduction, label_smoothing=smoothing)

    compare(run, randn(4, 3), target)


def test_cross_entropy_over_positions() -> None:
    target = torch.randint(0, 3, (2, 4, 5))
    target[0, 0, 0] = 7
    compare(lambda x, y: F.cross_entropy(x, y, ignore_index=7), randn(2, 3, 4, 5), target)


def test_cross_entropy_with_every_target_ignored_is_what_the_cpu_says() -> None:
    compare(lambda x, y: F.cross_entropy(x, y), randn(2, 3), torch.tensor([-100, -100]))
    compare(
        lambda x, y: F.cross_entropy(x, y, reduction="sum"), randn(2, 3), torch.tensor([-100, -100])
    )


@pytest.mark.parametrize(
    "loss",
    [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits],
)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(loss: Make, reduction: str) -> None:
    compare(lambda x, y: loss(x, y, reduction=reduction), randn(3, 4), torch.rand(3, 4).double())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_binary_cross_entropy(reduction: str) -> None:
    made = torch.rand(3, 4).double()
    wanted = torch.randint(0, 2, (3, 4))
    compare(
        lambda x, y: F.binary_cross_entropy(x, y.to(x.dtype), reduction=reduction), made, wanted
    )


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(function: Make, dim: int) -> None:
    compare(lambda x: function(x, dim), randn(3, 4, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_layers_keep_their_dtype_and_float32_statistics(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 4)
    )
    x = torch.randn(8, 16)
    exact = model(x).detach()
    made = model.to(dtype).to(DEVICE)(x.to(dtype).to(DEVICE))
    assert made.dtype == dtype
    torch.testing.assert_close(made.float().cpu(), exact, rtol=0.05, atol=0.05)


OPTIMIZERS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.01, "amsgrad": True}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "maximize": True}),
    ("AdamW", {"lr": 0.01}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.01}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.5, "centered": True}),
]


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
@pytest.mark.parametrize("form", ["foreach", "fused", "loop"])
def test_optimizers_take_the_steps_of_the_cpu(
    name: str, options: dict[str, float], form: str
) -> None:
    if form == "fused" and name not in ("SGD", "Adam", "AdamW"):
        pytest.skip("torch has no fused form on this device")
    kind = getattr(torch.optim, name)
    states = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(randn(*s).to(device)) for s in ((3, 4), (4,), ())]
        forms = {"foreach": form == "foreach"} | ({"fused": True} if form == "fused" else {})
        optimizer = kind(weights, **options, **forms)
        for step in range(4):
            loss = sum((w * (i + 1 + step)).square().sum() for i, w in enumerate(weights))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rt.sync()
        states.append([w.detach().cpu() for w in weights])
    for expected, got in zip(*states, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_one_fused_step_is_few_nodes_however_many_parameters() -> None:
    weights = [torch.nn.Parameter(torch.ones(3).to(DEVICE)) for _ in range(50)]
    optimizer = torch.optim.AdamW(weights, fused=True)
    for w in weights:
        w.grad = torch.ones_like(w)
    optimizer.step()
    rt.sync()
    before = rt.metrics()["recorded_nodes"]
    optimizer.step()
    assert rt.metrics()["recorded_nodes"] - before <= 3


def test_gradients_clipped_by_norm_need_no_read() -> None:
    weights = [torch.nn.Parameter(torch.ones(n).to(DEVICE)) for n in (2, 3)]
    for w, factor in zip(weights, itertools.count(1), strict=False):
        w.grad = torch.full_like(w, factor)
    rt.sync()
    before = rt.metrics()["early_syncs"]
    norm = torch.nn.utils.clip_grad_norm_(weights, 1.0)
    torch.nn.utils.clip_grad_norm_(weights, 1.0, norm_type=float("inf"))
    torch.nn.utils.clip_grad_value_(weights, 0.3)
    assert rt.metrics()["early_syncs"] == before
    assert norm.item() == pytest.approx(14**0.5)
