# SPDX-License-Identifier: Apache-2.0
"""Records how long the layers of VGG-16 compute, for the replay of benchmarks/peers/replay.py.

    python benchmarks/models/record_profile.py BATCH >benchmarks/models/vgg16_profile.tsv

It takes the least CPU time of one thread in a few passes, so other load on the machine does not
show.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

PASSES = 3


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def layers() -> list[tuple[str, nn.Module]]:
    """Returns each layer that has parameters, together with the layers after it that have none."""
    made: list[tuple[str, nn.Module]] = []
    index, inputs = 0, 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for position in range(count):
            parts: list[nn.Module] = [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
            if position == count - 1:
                parts.append(nn.MaxPool2d(2))
            made.append((f"features.{index}", nn.Sequential(*parts)))
            index, inputs = index + 2, width
        index += 1
    for index, (inputs, outputs) in zip((0, 3, 6), ((512 * 49, 4096), (4096, 4096), (4096, 1000))):
        parts = [nn.Flatten(), nn.Linear(inputs, outputs), nn.ReLU()]
        made.append((f"classifier.{index}", nn.Sequential(*parts)))
    return made


def least_cpu_s(action: Callable[[], object]) -> float:
    times_s = []
    for _ in range(PASSES):
        begin_s = time.process_time()
        action()
        times_s.append(time.process_time() - begin_s)
    return min(times_s)


def main() -> int:
    batch = int(sys.argv[1])
    torch.set_num_threads(1)
    x = torch.randn(batch, 3, 224, 224)
    rows = []
    for name, layer in layers():
        x = x.detach().requires_grad_(name != "features.0")
        forward_s = least_cpu_s(lambda layer=layer, x=x: layer(x))  # type: ignore[misc]
        y = layer(x)
        gradient = torch.ones_like(y)
        backward_s = least_cpu_s(
            lambda y=y, gradient=gradient: y.backward(gradient, retain_graph=True)  # type: ignore[misc]
        )
        rows.append(f"{name}\t{forward_s * 1e3:.3f}\t{backward_s * 1e3:.3f}")
        x = y
    print(f"# VGG-16, batch {batch}, f32, one thread of {cpu_model()}, torch {torch.__version__}")
    print("# layer, milliseconds of CPU forward, backward; see record_profile.py")
    print("\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
