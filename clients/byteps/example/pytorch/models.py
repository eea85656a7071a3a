# SPDX-License-Identifier: Apache-2.0
"""The models of the benchmarks: torchvision's if it is installed, else these of the same shape.

They have no trained weights, because a benchmark needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class _Block(nn.Module):
    """A residual block of two 3x3 convolutions; with `expansion` 4, a bottleneck of three."""

    def __init__(self, channels_in: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        channels_out = width * expansion
        layers: list[nn.Module] = []
        if expansion == 1:
            layers += [*_convolution(channels_in, width, 3, stride), nn.ReLU(inplace=True)]
            layers += _convolution(width, channels_out, 3, 1)
        else:
            layers += [*_convolution(channels_in, width, 1, 1), nn.ReLU(inplace=True)]
            layers += [*_convolution(width, width, 3, stride), nn.ReLU(inplace=True)]
            layers += _convolution(width, channels_out, 1, 1)
        self.layers = nn.Sequential(*layers)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(*_convolution(channels_in, channels_out, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.layers(x) + self.shortcut(x))


def _convolution(channels_in: int, channels_out: int, size: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels_in, channels_out, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(channels_out),
    ]


def _resnet(depths: list[int], expansion: int, num_classes: int) -> nn.Module:
    layers = [*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(_Block(channels, width, stride, expansion))
            channels = width * expansion
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    return nn.Sequential(*layers)


def _vgg(depths: list[int], num_classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for stage, depth in enumerate(depths):
        width = min(64 << stage, 512)
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    for width_in, width_out in ((512 * 49, 4096), (4096, 4096)):
        layers += [nn.Linear(width_in, width_out), nn.ReLU(inplace=True), nn.Dropout()]
    layers.append(nn.Linear(4096, num_classes))
    return nn.Sequential(*layers)


_OWN: dict[str, Callable[[int], nn.Module]] = {
    "resnet18": lambda classes: _resnet([2, 2, 2, 2], 1, classes),
    "resnet34": lambda classes: _resnet([3, 4, 6, 3], 1, classes),
    "resnet50": lambda classes: _resnet([3, 4, 6, 3], 4, classes),
    "resnet101": lambda classes: _resnet([3, 4, 23, 3], 4, classes),
    "resnet152": lambda classes: _resnet([3, 8, 36, 3], 4, classes),
    "vgg11": lambda classes: _vgg([1, 1, 2, 2, 2], classes),
    "vgg13": lambda classes: _vgg([2, 2, 2, 2, 2], classes),
    "vgg16": lambda classes: _vgg([2, 2, 3, 3, 3], classes),
    "vgg19": lambda classes: _vgg([2, 2, 4, 4, 4], classes),
}


def make(name: str, num_classes: int) -> nn.Module:
    """Returns the model of that name. SystemExit lists the names if there is none."""
    try:
        from torchvision import models as torchvision_models
    except ImportError:
        torchvision_models = None
    found: Any = getattr(torchvision_models, name, None)
    if callable(found):
        model: nn.Module = found(num_classes=num_classes)
        return model
    if name not in _OWN:
        raise SystemExit(
            f"--model is '{name}'; without torchvision it must be one of {', '.join(_OWN)}"
        )
    return _OWN[name](num_classes)
