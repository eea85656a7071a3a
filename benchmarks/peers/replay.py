# SPDX-License-Identifier: Apache-2.0
"""One rank that replays a model's training steps. It sleeps when the model would compute.

    replay.py TENSORS.tsv PROFILE.tsv [N]

With N every tensor has an N-th of its size.

Orders (control.h) name the manner as dtype and the forward pass's microseconds as bytes:

    priority   gradients leave during backward, first layers first; forward waits layer by layer
    arrival    the same without priorities: first come, first served
    apart      all gradients leave after backward, and forward waits for all of them
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import talweg
from control import Control, Order

# It imports the harness's reader of models, which needs no other module.
sys.path.insert(0, str(Path(__file__).absolute().parent.parent))
from harness import models


@dataclass
class Layer:
    """The tensors of a layer, and how long it computes."""

    name: str
    forward_s: float
    backward_s: float
    gradients: list[tuple[str, np.ndarray]] = field(default_factory=list)
    under_way: list[talweg.Handle] = field(default_factory=list)


def read_layers(tensors: Path, profile: Path, divisor: int) -> list[Layer]:
    layers = [Layer(*row) for row in models.read_profile(profile)]
    for name, shape in models.read(tensors.stem, tensors.parent):
        layer = next(layer for layer in layers if name.startswith(layer.name + "."))
        count = models.share_of(math.prod(shape), divisor)
        layer.gradients.append((name, np.ones(count, dtype=np.float32)))
    return layers


class Replay:
    """Training steps of one manner."""

    def __init__(self, layers: list[Layer]) -> None:
        self._layers = layers
        self._manner = "priority"
        self._scale = 0.0

    def prepare(self, order: Order) -> None:
        self.drain()
        self._manner = order.dtype
        forward_s = sum(layer.forward_s for layer in self._layers)
        self._scale = order.sizes[0] * 1e-6 / forward_s

    def step(self) -> None:
        for layer in self._layers:
            self._wait(layer)
            time.sleep(layer.forward_s * self._scale)
        for index in reversed(range(len(self._layers))):
            layer = self._layers[index]
            time.sleep(layer.backward_s * self._scale)
            if self._manner != "apart":
                self._push(layer, -index if self._manner == "priority" else 0)
        if self._manner == "apart":
            for layer in reversed(self._layers):
                self._push(layer, 0)
            self.drain()

    def drain(self) -> None:
        for layer in self._layers:
            self._wait(layer)

    def _push(self, layer: Layer, priority: int) -> None:
        for name, gradient in reversed(layer.gradients):
            handle = talweg.push_pull_async_inplace(gradient, name, priority=priority)
            layer.under_way.append(handle)

    def _wait(self, layer: Layer) -> None:
        for handle in layer.under_way:
            talweg.synchronize(handle)
        layer.under_way.clear()


def main() -> int:
    talweg.init()
    divisor = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    replay = Replay(read_layers(Path(sys.argv[1]), Path(sys.argv[2]), divisor))
    Control(talweg.rank()).serve(replay.prepare, replay.step)
    replay.drain()
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
