# SPDX-License-Identifier: Apache-2.0
"""The tensors of known models, in the order in which the model declares its parameters.

A run reads benchmarks/models/*.tsv, which have a name and a shape in each line. This command,

    python benchmarks/harness/models.py benchmarks/models

writes them from the formulas below, which follow the architectures' papers. Names are those of
torchvision and transformers. models_test.py compares files, formulas and the published numbers of
parameters.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

Shape = tuple[int, ...]
Tensors = list[tuple[str, Shape]]

DIRECTORY = Path(__file__).absolute().parent.parent / "models"


def _resnet50() -> Iterator[tuple[str, Shape]]:
    """He et al. 2015: bottleneck blocks 3, 4, 6, 3; a batch norm after each of 53 convolutions."""

    def norm(name: str, channels: int) -> Iterator[tuple[str, Shape]]:
        yield f"{name}.weight", (channels,)
        yield f"{name}.bias", (channels,)

    yield "conv1.weight", (64, 3, 7, 7)
    yield from norm("bn1", 64)
    inputs = 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        for block in range(blocks):
            name, outputs = f"layer{stage}.{block}", 4 * width
            shapes = ((width, inputs, 1, 1), (width, width, 3, 3), (outputs, width, 1, 1))
            for index, shape in enumerate(shapes, start=1):
                yield f"{name}.conv{index}.weight", shape
                yield from norm(f"{name}.bn{index}", shape[0])
            if block == 0:
                yield f"{name}.downsample.0.weight", (outputs, inputs, 1, 1)
                yield from norm(f"{name}.downsample.1", outputs)
            inputs = outputs
    yield "fc.weight", (1000, 2048)
    yield "fc.bias", (1000,)


def _vgg16() -> Iterator[tuple[str, Shape]]:
    """Simonyan and Zisserman 2014, configuration D: 13 convolutions, 3 dense layers."""
    index, inputs = 0, 3
    for width, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(layers):
            yield f"features.{index}.weight", (width, inputs, 3, 3)
            yield f"features.{index}.bias", (width,)
            index, inputs = index + 2, width  # An activation follows each convolution.
        index += 1  # A pooling layer.
    for index, (inputs, outputs) in zip((0, 3, 6), ((512 * 49, 4096), (4096, 4096), (4096, 1000))):
        yield f"classifier.{index}.weight", (outputs, inputs)
        yield f"classifier.{index}.bias", (outputs,)


def _bert_large() -> Iterator[tuple[str, Shape]]:
    """Devlin et al. 2018: 24 layers, 1024 wide, 4096 between, 30522 words; encoder and pooler."""
    width, between = 1024, 4096

    def dense(name: str, outputs: int, inputs: int) -> Iterator[tuple[str, Shape]]:
        yield f"{name}.weight", (outputs, inputs)
        yield f"{name}.bias", (outputs,)

    def norm(name: str) -> Iterator[tuple[str, Shape]]:
        yield f"{name}.LayerNorm.weight", (width,)
        yield f"{name}.LayerNorm.bias", (width,)

    for name, rows in (("word", 30522), ("position", 512), ("token_type", 2)):
        yield f"embeddings.{name}_embeddings.weight", (rows, width)
    yield from norm("embeddings")
    for layer in range(24):
        name = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            yield from dense(f"{name}.attention.self.{part}", width, width)
        yield from dense(f"{name}.attention.output.dense", width, width)
        yield from norm(f"{name}.attention.output")
        yield from dense(f"{name}.intermediate.dense", between, width)
        yield from dense(f"{name}.output.dense", width, between)
        yield from norm(f"{name}.output")
    yield from dense("pooler.dense", width, width)


FORMULAS: dict[str, Callable[[], Iterator[tuple[str, Shape]]]] = {
    "resnet50": _resnet50,
    "vgg16": _vgg16,
    "bert_large": _bert_large,
}
TITLES = {"resnet50": "ResNet-50", "vgg16": "VGG-16", "bert_large": "BERT-large"}


def read(name: str, directory: Path = DIRECTORY) -> Tensors:
    """Returns the tensors of a model from its file."""
    tensors: Tensors = []
    for line in (directory / f"{name}.tsv").read_text().splitlines():
        if not line.startswith("#"):
            tensor, _, shape = line.partition("\t")
            tensors.append((tensor, tuple(int(extent) for extent in shape.split("x"))))
    return tensors


def read_profile(path: Path) -> list[tuple[str, float, float]]:
    """Returns the layers in forward order: name, seconds of the forward and the backward pass."""
    rows = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            name, forward_ms, backward_ms = line.split("\t")
            rows.append((name, float(forward_ms) * 1e-3, float(backward_ms) * 1e-3))
    return rows


def share_of(elements: int, divisor: int) -> int:
    """Returns the `divisor`-th part of a tensor's elements, at least one."""
    return max(1, elements // divisor)


def backward_bytes(tensors: Tensors, divisor: int = 1) -> tuple[int, ...]:
    """Returns the bytes of f32 gradients in the order of backward, which makes the last layer
    first.
    """
    return tuple(4 * share_of(math.prod(shape), divisor) for _, shape in reversed(tensors))


def text(name: str) -> str:
    tensors = list(FORMULAS[name]())
    count = sum(math.prod(shape) for _, shape in tensors)
    head = f"# {TITLES[name]}: {len(tensors)} tensors, {count} parameters; see harness/models.py\n"
    return head + "".join(f"{n}\t{'x'.join(map(str, shape))}\n" for n, shape in tensors)


if __name__ == "__main__":
    for _name in FORMULAS:
        (Path(sys.argv[1]) / f"{_name}.tsv").write_text(text(_name))
