# SPDX-License-Identifier: Apache-2.0
"""A rank of the scenario `local_steps`. It learns to read digits, and says how well at the end.

    local_steps.py DIRECTORY HOW [NAME=NUMBER ...]

HOW is synchronous, LocalSGD or DiLoCo, with its arguments. A round is a step of AdamW, and the
order's size is this rank's batch. When it is told to quit, rank 0 writes DIRECTORY/learned.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import talweg.torch as tw
import torch
from control import Control, Order
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

# One of the widths is for tests of the bench.
_WIDTHS = {"mlp": (512, 5), "tiny": (16, 1)}


def _build(name: str) -> nn.Sequential:
    width, layers = _WIDTHS[name]
    sizes = [64, *[width] * layers]
    torch.manual_seed(0)
    hidden = [each for pair in zip(sizes, sizes[1:]) for each in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


class Learner:
    def __init__(self, how: str, arguments: dict[str, Any]) -> None:
        digits = load_digits()
        self._images = torch.tensor(digits.images, dtype=torch.float32).reshape(-1, 64) / 16.0
        self._classes = torch.tensor(digits.target, dtype=torch.int64)
        order = torch.from_numpy(np.random.default_rng(0).permutation(len(self._classes)))
        self._held_out, self._own = order[:360], order[360:][tw.rank() :: tw.size()]
        self._generator = np.random.default_rng(1 + tw.rank())
        self._how, self._arguments = how, arguments
        self._model = nn.Sequential()
        self._optimizer: Any = None
        self._batch = 0

    def prepare(self, order: Order) -> None:
        self._batch = order.sizes[0]
        self._model = _build(order.dtype)
        inner = torch.optim.AdamW(self._model.parameters(), lr=1e-3)
        if self._how == "synchronous":
            self._optimizer = tw.DistributedOptimizer(inner, self._model.named_parameters())
        else:
            self._optimizer = getattr(tw, self._how)(self._model, inner, **self._arguments)

    def step(self) -> None:
        batch = self._own[self._generator.choice(len(self._own), self._batch, replace=False)]
        self._optimizer.zero_grad()
        loss = functional.cross_entropy(self._model(self._images[batch]), self._classes[batch])
        loss.backward()
        self._optimizer.step()

    def learned(self) -> dict[str, float]:
        if self._how != "synchronous":
            self._optimizer.flush()
        with torch.no_grad():
            logits = self._model(self._images[self._held_out])
        classes = self._classes[self._held_out]
        return {
            "loss": functional.cross_entropy(logits, classes).item(),
            "accuracy": (logits.argmax(1) == classes).float().mean().item(),
            "parameters": sum(each.numel() for each in self._model.parameters()),
        }


def main() -> int:
    directory, how, *words = sys.argv[1:]
    arguments = {key: json.loads(number) for key, number in (word.split("=") for word in words)}
    torch.set_num_threads(1)
    tw.init()
    learner = Learner(how, arguments)
    Control(tw.rank()).serve(learner.prepare, learner.step)
    learned = learner.learned()
    if tw.rank() == 0:
        (Path(directory) / "learned.json").write_text(json.dumps(learned))
    tw.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
