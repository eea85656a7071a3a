# SPDX-License-Identifier: Apache-2.0
"""A rank of the scenario `loss_curve`. It learns to read digits while other ranks come and go.

    loss_curve_rank.py DIRECTORY SEED STEPS

It keeps the log of recovery_rank.py. It learns for STEPS steps, then makes steps without learning
until DIRECTORY/stop exists. DIRECTORY/../losses.PID has a line "STEP LOSS" for each step in which
this process has learned, with the mean loss over the step's samples of all ranks. The last line is
"accuracy SHARE", for samples that were not trained on.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import talweg
from recovery_rank import Log, LoggedState
from recovery_record import BEGINS, STEP
from sklearn.datasets import load_digits

_HIDDEN, _CLASSES = 64, 10
_BATCH = 16
_RATE, _MOMENTUM = 0.0004, 0.9  # The rate is low, so it still learns when the kills come.
_TEST_SHARE = 5  # One of so many samples is kept for the test.


def _layers(seed: int, inputs: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = ((inputs, _HIDDEN), (_HIDDEN, _CLASSES))
    return [
        (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32) for shape in shapes
    ]


def _forward(layers: list[np.ndarray], samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the hidden layer's output for each sample, and the classes' log-probabilities."""
    hidden = np.maximum(samples @ layers[0], 0)
    scores = hidden @ layers[1]
    scores = scores - scores.max(axis=1, keepdims=True)
    return hidden, scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def _sums(
    layers: list[np.ndarray], samples: np.ndarray, labels: np.ndarray
) -> tuple[float, list[np.ndarray]]:
    """Returns loss and gradients, summed over the samples."""
    hidden, logs = _forward(layers, samples)
    places = np.arange(len(labels))
    error = np.exp(logs)
    error[places, labels] -= 1
    back = (error @ layers[1].T) * (hidden > 0)
    return -float(logs[places, labels].sum()), [samples.T @ back, hidden.T @ error]


def main() -> int:
    directory, seed, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    digits = load_digits()
    samples, labels = (digits.data / 16).astype(np.float32), digits.target
    is_test = np.arange(len(labels)) % _TEST_SHARE == 0
    train, answers = samples[~is_test], labels[~is_test]
    talweg.init()
    log = Log(directory)
    layers = _layers(seed, samples.shape[1])
    state = LoggedState(
        layers=layers,
        velocities=[np.zeros_like(layer) for layer in layers],
        sampler=talweg.ElasticSampler(len(answers), batch_size=_BATCH, seed=seed),
        step=0,
        stopped=False,
    )
    LoggedState.log = log
    losses = (directory.parent / f"losses.{os.getpid()}").open("a", buffering=1)

    def step(state: talweg.State, indices: list[int]) -> float:
        loss, gradients = _sums(state.layers, train[indices], answers[indices])
        # Sums over the ranks are divided by the number of samples that the ranks took.
        counts = np.array([loss, len(indices)], np.float32)
        parts = [counts, *(gradient.astype(np.float32).ravel() for gradient in gradients)]
        total = talweg.push_pull(np.concatenate(parts), op=talweg.Op.SUM, name="gradients")
        taken = max(float(total[1]), 1.0)
        position = 2
        for layer, velocity in zip(state.layers, state.velocities, strict=True):
            gradient = total[position : position + layer.size].reshape(layer.shape) / taken
            position += layer.size
            velocity *= _MOMENTUM
            velocity += gradient
            layer -= _RATE * velocity
        return float(total[0]) / taken

    def train_on(state: talweg.State) -> None:
        log.write(BEGINS, state.step, time.monotonic_ns())
        while state.step < steps:
            for indices in state.sampler:
                begin_ns = time.monotonic_ns()
                loss = step(state, indices)
                state.step += 1
                state.end_step()
                log.write(STEP, state.step, begin_ns)
                losses.write(f"{state.step} {loss}\n")
                if state.step == steps:
                    break
            else:
                state.sampler.set_epoch(state.sampler.epoch + 1)
        # Ranks that were killed last come back before all end.
        while not state.stopped:
            begin_ns = time.monotonic_ns()
            own = np.array([(directory / "stop").exists()], np.int32)
            state.stopped = bool(talweg.push_pull(own, op=talweg.Op.MAX, name="stop")[0])
            state.step += 1
            state.end_step()
            log.write(STEP, state.step, begin_ns)

    state.run(train_on)
    _, logs = _forward(state.layers, samples[is_test])
    losses.write(f"accuracy {(logs.argmax(axis=1) == labels[is_test]).mean()}\n")
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
