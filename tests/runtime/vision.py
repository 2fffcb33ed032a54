"""Small convolutional networks of the usual architectures, a few channels wide."""

from __future__ import annotations

import torch
from torch import nn

Layers = nn.Sequential


def conv(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution that keeps the extent (but for its stride), and batch normalization."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """A sum of a branch and its input, which a projection brings to the branch's shape.

    Branches begin as zero, which is the usual start. With any other, batch normalization over few
    images is chaotic: PyTorch's own float32 and float64 runs part within ten steps.
    """

    def __init__(
        self, branch: Layers, projection: nn.Module | None = None, *, activate: bool = True
    ) -> None:
        super().__init__()
        self.branch, self.projection, self.activate = branch, projection, activate
        nn.init.zeros_(branch[-1].weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        kept = images if self.projection is None else self.projection(images)
        made = self.branch(images) + kept
        return torch.relu(made) if self.activate else made


def _bottleneck(inputs: int, width: int, outputs: int, stride: int, groups: int) -> Residual:
    branch = Layers(
        *conv(inputs, width, 1),
        nn.ReLU(inplace=True),
        *conv(width, width, 3, stride, groups),
        nn.ReLU(inplace=True),
        *conv(width, outputs, 1),
    )
    same = stride == 1 and inputs == outputs
    return Residual(branch, None if same else Layers(*conv(inputs, outputs, 1, stride)))


def resnext(depths: tuple[int, ...], num_classes: int = 10) -> Layers:
    """ResNeXt: bottlenecks with grouped convolutions, 4 groups here."""
    stem = [*conv(3, 16, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    blocks: list[nn.Module] = []
    inputs = 16
    for stage, depth in enumerate(depths):
        width = 8 << stage
        for place in range(depth):
            stride = 2 if stage and not place else 1
            blocks.append(_bottleneck(inputs, width, 2 * width, stride, groups=4))
            inputs = 2 * width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes)]
    return Layers(*stem, *blocks, *head)


def _inverted(
    inputs: int, outputs: int, expand: int, kernel: int, stride: int, act: type
) -> Layers:
    width = inputs * expand
    branch = Layers(
        *conv(inputs, width, 1),
        act(inplace=True),
        *conv(width, width, kernel, stride, width),
        act(inplace=True),
        *conv(width, outputs, 1),
    )
    if stride == 1 and inputs == outputs:
        return Layers(Residual(branch, activate=False))
    return branch


def mobilenet_v2(num_classes: int = 10, dropout: float = 0.0) -> Layers:
    """MobileNetV2: inverted residuals with depthwise convolutions and ReLU6."""
    blocks = [
        _inverted(inputs, outputs, expand, 3, stride, nn.ReLU6)
        for inputs, outputs, expand, stride in [
            (8, 8, 1, 1),
            (8, 12, 6, 2),
            (12, 12, 6, 1),
            (12, 24, 6, 2),
        ]
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(48, num_classes)]
    return Layers(
        *conv(3, 8, 3, 2), nn.ReLU6(inplace=True), *blocks, *conv(24, 48, 1), nn.ReLU6(True), *head
    )


def mnasnet1_0(num_classes: int = 10, dropout: float = 0.0) -> Layers:
    """MNASNet: a separable stem, inverted residuals with kernels of 3 and 5."""
    stem = [*conv(3, 16, 3, 2), nn.ReLU(True), *conv(16, 16, 3, 1, 16), nn.ReLU(True)]
    blocks = [
        _inverted(inputs, outputs, expand, kernel, stride, nn.ReLU)
        for inputs, outputs, expand, kernel, stride in [
            (8, 12, 3, 3, 2),
            (12, 12, 3, 5, 1),
            (12, 24, 6, 5, 2),
        ]
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(48, num_classes)]
    return Layers(*stem, *conv(16, 8, 1), *blocks, *conv(24, 48, 1), nn.ReLU(True), *head)


def alexnet(num_classes: int = 10, dropout: float = 0.0) -> Layers:
    """AlexNet: wide kernels, overlapping max pooling, three linear layers with dropout."""
    return Layers(
        nn.Conv2d(3, 16, 11, 4, 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(16, 24, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(24, 32, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 24, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(24 * 36, 64),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(64, 64),
        nn.ReLU(inplace=True),
        nn.Linear(64, num_classes),
    )


def vgg16(num_classes: int = 10, dropout: float = 0.0) -> Layers:
    """VGG-16: thirteen convolutions of 3 x 3 in five stages, three linear layers."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, depth in ((8, 2), (12, 2), (16, 3), (24, 3), (24, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            nn.init.kaiming_normal_(layers[-2].weight, nonlinearity="relu")  # type: ignore[arg-type]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return Layers(
        *layers,
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        nn.Linear(24 * 49, 64),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(64, 64),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(64, num_classes),
    )
