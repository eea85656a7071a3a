# SPDX-License-Identifier: Apache-2.0
"""A program of Horovod for TensorFlow that trains by hvd.elastic until it is told to stop.

    hvd_elastic_tensorflow.py DIRECTORY (keras | tf_keras | tape) [first]

It trains with Model.fit() of one of the two versions of Keras, or with a tape and variables. With
`first` it makes a step before run(), as Horovod's examples do, and Keras makes one in each reset.
Lines go to DIRECTORY/PID: "begins BATCH" when the function of run() is called, "step BATCH" after
each commit, "reset SIZE" when the ranks have changed, and "weights DIGEST" at the end.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import tensorflow as tf

_BATCH = 8
_STEPS = 12
_RATE = 0.0001
# A step takes so much longer, without using the CPUs.
_PAUSE_S = 0.005


class Program:
    def __init__(self, directory: Path) -> None:
        self._stop = directory / "stop"
        self._log = (directory / str(os.getpid())).open("w", buffering=1)

    def say(self, line: str) -> None:
        self._log.write(f"{line}\n")

    def stops(self) -> bool:
        """Whether some rank has been told to stop."""
        time.sleep(_PAUSE_S)
        own = tf.constant(int(self._stop.exists()))
        return bool(hvd.allreduce(own, op=hvd.Max, name="stop").numpy())

    def run(
        self,
        state: Any,
        train: Callable[[Any], None],
        reset: Callable[[], None] | None = None,
    ) -> None:
        def begin(state: Any) -> None:
            self.say(f"begins {state.total}")
            train(state)

        def on_reset() -> None:
            there = int(hvd.allreduce(tf.constant(1), op=hvd.Sum, name="reset"))
            assert there == hvd.size(), (there, hvd.size())
            self.say(f"reset {hvd.size()}")
            if reset is not None:
                reset()

        state.register_reset_callbacks([on_reset])
        hvd.elastic.run(begin)(state)

    def end(self, weights: list[Any]) -> None:
        # If weights are NaN, differences between ranks would not show.
        assert all(np.isfinite(each).all() for each in weights), "the training has diverged"
        digest = hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in weights))
        self.say(f"weights {digest.hexdigest()[:16]}")


def samples(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((_BATCH, 20)).astype(np.float32)
    # The noise keeps gradients from vanishing.
    noise = generator.standard_normal((_BATCH, 1)).astype(np.float32)
    return inputs, inputs.sum(1, keepdims=True) + noise


def fit(program: Program, keras: Any, begins_before: bool) -> None:
    keras.utils.set_random_seed(hvd.rank())  # run() makes the weights equal.
    model = keras.Sequential(
        [keras.layers.Input((20,)), keras.layers.Dense(50), keras.layers.Dense(1)]
    )
    optimizer = hvd_keras.DistributedOptimizer(
        keras.optimizers.SGD(0.001, momentum=0.5), gradient_predivide_factor=2.0
    )
    model.compile(optimizer=optimizer, loss="mse")

    def make_a_step() -> None:
        model.fit(*samples(hvd.rank()), batch_size=_BATCH, epochs=1, verbose=0)

    if begins_before:
        make_a_step()
    state = hvd_keras.elastic.KerasState(model, batch=0, epoch=0, total=0, stopped=False)

    class Count(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            state.total += 1
            state.stopped = program.stops()
            model.stop_training = state.stopped

    class Say(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            program.say(f"step {state.total}")

    def train(state: Any) -> None:
        while not state.stopped:
            inputs, labels = zip(*(samples(1000 * hvd.rank() + each) for each in range(_STEPS)))
            model.fit(
                np.concatenate(inputs),
                np.concatenate(labels),
                batch_size=_BATCH,
                shuffle=False,
                # fit() makes the steps that are left of the epoch.
                steps_per_epoch=_STEPS - state.batch,
                verbose=0,
                callbacks=[
                    Count(),
                    hvd_keras.elastic.UpdateBatchStateCallback(state),
                    hvd_keras.elastic.UpdateEpochStateCallback(state),
                    hvd_keras.elastic.CommitStateCallback(state),
                    Say(),
                ],
            )
        assert state.epoch >= 1 and 0 <= state.batch < _STEPS, (state.epoch, state.batch)

    program.run(state, train, make_a_step if begins_before else None)
    program.end(model.get_weights())


def tape(program: Program, begins_before: bool) -> None:
    generator = tf.random.Generator.from_seed(hvd.rank())
    # The gradients of the first variable are sparse.
    shapes = ((_BATCH, 50), (20, 50), (50, 1))
    variables = [tf.Variable(generator.normal(shape)) for shape in shapes]

    @tf.function
    def step(inputs: Any, labels: Any, is_first: bool = False) -> None:
        with tf.GradientTape() as tape:
            rows = tf.gather(variables[0], tf.range(_BATCH))
            outputs = (inputs @ variables[1] + rows) @ variables[2]
            loss = tf.reduce_mean(tf.square(outputs - labels))
        distributed = hvd.DistributedGradientTape(tape)
        sparse, *dense = distributed.gradient(loss, variables)
        # The broadcast's root is another process when ranks have other numbers.
        rate = _RATE if is_first else hvd.broadcast(tf.constant(_RATE), 0, name="rate")
        variables[0].scatter_sub(tf.IndexedSlices(rate * sparse.values, sparse.indices))
        for variable, gradient in zip(variables[1:], dense):
            variable.assign_sub(rate * gradient)

    if begins_before:
        step(*samples(hvd.rank()), is_first=True)
    state = hvd.elastic.TensorFlowState(variables=variables, total=0, stopped=False)

    def train(state: Any) -> None:
        while not state.stopped:
            step(*samples(1000 * hvd.rank() + state.total))
            state.total += 1
            state.stopped = program.stops()
            state.commit()
            program.say(f"step {state.total}")

    program.run(state, train)
    program.end([each.numpy() for each in variables])


def main() -> None:
    program = Program(Path(sys.argv[1]))
    hvd.init()
    begins_before = sys.argv[3:] == ["first"]
    if sys.argv[2] == "tape":
        tape(program, begins_before)
    else:
        fit(program, importlib.import_module(sys.argv[2]), begins_before)
    hvd.shutdown()


if __name__ == "__main__":
    main()
