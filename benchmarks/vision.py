"""Convolutional networks at their usual widths that transformers lacks, after torchvision's.

AlexNet's and VGG's two wide layers have 1,024 features rather than 4,096: with the others those
layers would be nine tenths of what the optimizer moves, and eight contestants would not fit in
memory.
"""

from __future__ import annotations

import torch
from torch import nn

_FEATURES = 1024


def _normed(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution that keeps the extent but for its stride, and batch normalization."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs)]


class _Residual(nn.Module):
    """A branch's result plus its input, which a projection brings to the branch's shape."""

    def __init__(
        self, branch: nn.Module, projection: nn.Module | None = None, *, activate: bool = False
    ) -> None:
        super().__init__()
        self.branch, self.projection, self.activate = branch, projection, activate

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        kept = images if self.projection is None else self.projection(images)
        made: torch.Tensor = self.branch(images) + kept
        return torch.relu(made) if self.activate else made


def _head(inputs: int, num_classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes)]


def resnext50_32x4d(num_classes: int) -> nn.Module:
    """ResNeXt-50: bottlenecks whose middle convolution has 32 groups."""
    layers = [*_normed(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, depth in enumerate((3, 4, 6, 3)):
        width, outputs = 128 << stage, 256 << stage
        for place in range(depth):
            stride = 2 if stage and not place else 1
            branch = nn.Sequential(
                *_normed(inputs, width, 1),
                nn.ReLU(inplace=True),
                *_normed(width, width, 3, stride, 32),
                nn.ReLU(inplace=True),
                *_normed(width, outputs, 1),
            )
            projection = None if place else nn.Sequential(*_normed(inputs, outputs, 1, stride))
            layers.append(_Residual(branch, projection, activate=True))
            inputs = outputs
    return nn.Sequential(*layers, *_head(inputs, num_classes))


def _inverted(
    inputs: int, outputs: int, expand: int, kernel: int, stride: int, activation: type[nn.Module]
) -> nn.Module:
    """A depthwise convolution between two of 1 x 1, the first of which widens."""
    width = inputs * expand
    widened = [] if expand == 1 else [*_normed(inputs, width, 1), activation(inplace=True)]  # type: ignore[call-arg]
    branch = nn.Sequential(
        *widened,
        *_normed(width, width, kernel, stride, width),
        activation(inplace=True),  # type: ignore[call-arg]
        *_normed(width, outputs, 1),
    )
    return _Residual(branch) if stride == 1 and inputs == outputs else branch


def _stages(
    inputs: int, stages: tuple[tuple[int, int, int, int, int], ...], activation: type[nn.Module]
) -> list[nn.Module]:
    """Inverted residuals; of each stage (expansion, channels, depth, stride, kernel)."""
    layers = []
    for expand, outputs, depth, stride, kernel in stages:
        for place in range(depth):
            step = 1 if place else stride
            layers.append(_inverted(inputs, outputs, expand, kernel, step, activation))
            inputs = outputs
    return layers


def mobilenet_v2(num_classes: int) -> nn.Module:
    """MobileNetV2."""
    stages = (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 32, 3, 2, 3),
        (6, 64, 4, 2, 3),
        (6, 96, 3, 1, 3),
        (6, 160, 3, 2, 3),
        (6, 320, 1, 1, 3),
    )
    stem = [*_normed(3, 32, 3, 2), nn.ReLU6(inplace=True)]
    last = [*_normed(320, 1280, 1), nn.ReLU6(inplace=True)]
    return nn.Sequential(*stem, *_stages(32, stages, nn.ReLU6), *last, *_head(1280, num_classes))


def mnasnet1_0(num_classes: int) -> nn.Module:
    """MNASNet at depth multiplier 1."""
    stages = (
        (3, 24, 3, 2, 3),
        (3, 40, 3, 2, 5),
        (6, 80, 3, 2, 5),
        (6, 96, 2, 1, 3),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )
    stem = [
        *_normed(3, 32, 3, 2),
        nn.ReLU(inplace=True),
        *_normed(32, 32, 3, 1, 32),
        nn.ReLU(inplace=True),
        *_normed(32, 16, 1),
    ]
    last = [*_normed(320, 1280, 1), nn.ReLU(inplace=True)]
    return nn.Sequential(*stem, *_stages(16, stages, nn.ReLU), *last, *_head(1280, num_classes))


def _classifier(inputs: int, num_classes: int) -> list[nn.Module]:
    return [
        nn.Flatten(),
        nn.Linear(inputs, _FEATURES),
        nn.ReLU(inplace=True),
        nn.Linear(_FEATURES, _FEATURES),
        nn.ReLU(inplace=True),
        nn.Linear(_FEATURES, num_classes),
    ]


def alexnet(num_classes: int) -> nn.Module:
    """AlexNet, without dropout."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, kernel, stride, padding, pooled in (
        (64, 11, 4, 2, True),
        (192, 5, 1, 2, True),
        (384, 3, 1, 1, False),
        (256, 3, 1, 1, False),
        (256, 3, 1, 1, True),
    ):
        layers += [nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(3, 2)] if pooled else []
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(6), *_classifier(inputs * 36, num_classes))


def vgg16(num_classes: int) -> nn.Module:
    """VGG-16, without dropout."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), *_classifier(inputs * 49, num_classes))
