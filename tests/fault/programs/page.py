# SPDX-License-Identifier: Apache-2.0
"""Runs a program exactly as a page of the documents has it.

    page.py STOP PAGE HEADING KIND

The program is the first block of Python under the heading. It gets the objects that the page leaves
to its reader. For the KIND "torch" these are a model, an optimizer, a dataset and a loss, for
"numpy" weights and a gradient, and for "readme" what its three lines need, and a loop after them.

It prints "begins" when the first step is made, "step N of RANKS ranks" for each step, and "weights
DIGEST" at the end, or "error TYPE: TEXT". The file STOP makes all ranks end soon, at the same step.
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import talweg

_PAUSE_S = 0.01
# A reader's training is longer than any test.
_FOR_EVER = 10**9


def program_of(page: str, heading: str) -> str:
    section = re.split(rf"(?m)^#+ {re.escape(heading)}$", page)[1]
    return section.split("```python\n")[1].split("```")[0]


class Reader:
    """The objects that a reader of the page has."""

    def __init__(self, stop: Path) -> None:
        self._stop = stop
        self._steps = 0
        self.names: dict[str, Any] = {}

    def goes_on(self) -> bool:
        """Prints a step. Returns whether training goes on; all ranks get the same answer."""
        self._steps += 1
        if self._steps == 1:
            print("begins", flush=True)
        time.sleep(_PAUSE_S)
        told = np.array([self._stop.exists()], np.int32)
        stops = talweg.push_pull(told, op=talweg.Op.MAX, name="stop")[0]
        print(f"step {self._steps} of {talweg.size()} ranks", flush=True)
        return not stops

    def has_torch(self) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(int(time.time_ns() % 10**9))  # Each rank has another seed.
        model = torch.nn.Linear(20, 2)

        def loss(model: Any, batch: Any) -> Any:
            if not self.goes_on() and self.names["epochs"] == _FOR_EVER:
                self.names["epochs"] = self.names["state"].epoch + 1  # This epoch is the last one.
            inputs, labels = batch
            return torch.nn.functional.cross_entropy(model(inputs), labels)

        draw = torch.Generator().manual_seed(1)
        inputs = torch.randn(3000, 20, generator=draw)
        self.names = {
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            "dataset": torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long()),
            "epochs": _FOR_EVER,
            "loss": loss,
        }

    def has_numpy(self) -> None:
        def own_gradient(state: Any) -> np.ndarray:
            if not self.goes_on() and self.names["steps"] == _FOR_EVER:
                self.names["steps"] = state.step + 10
            return np.sin(state.weights + state.step + talweg.rank())

        self.names = {
            "weights": np.random.default_rng().random(1000),
            "steps": _FOR_EVER,
            "own_gradient": own_gradient,
        }

    def trains_on(self) -> None:
        """The loop of the program in which the README changes three lines."""
        import torch

        model, optimizer, goes_on = self.names["model"], self.names["optimizer"], True
        while goes_on:
            goes_on = self.goes_on()
            optimizer.zero_grad()
            draw = torch.Generator().manual_seed(100 * self._steps + talweg.rank())
            model(torch.randn(8, 20, generator=draw)).square().mean().backward()
            optimizer.step()

    def digest(self) -> str:
        if "model" in self.names:
            arrays = [each.detach().numpy() for each in self.names["model"].parameters()]
        else:
            arrays = [self.names["weights"]]
        total = hashlib.sha256()
        for array in arrays:
            total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()[:16]


def main() -> int:
    stop, page, heading, kind = sys.argv[1:]
    reader = Reader(Path(stop))
    if kind == "numpy":
        reader.has_numpy()
    else:
        reader.has_torch()
    program = program_of(Path(page).read_text(), heading)
    names = reader.names
    try:
        exec(compile(program, page, "exec"), names)
        if kind == "readme":
            reader.trains_on()
    except talweg.TalwegError as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
        return 3
    print(f"weights {reader.digest()}", flush=True)
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
