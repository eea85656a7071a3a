# SPDX-License-Identifier: Apache-2.0
"""Checks Keras's calls and callbacks in graphs of tf-keras, as programs of TensorFlow 1 make them.

Run it with TF_USE_LEGACY_KERAS=1.
"""

from __future__ import annotations

from typing import Any

import byteps.keras
import byteps.tensorflow.keras
import horovod.keras
import horovod.tensorflow.keras
import numpy as np
import tensorflow as tf

EPOCHS = 3
RATE = 0.5

tf.compat.v1.disable_v2_behavior()
keras = tf.compat.v1.keras
HOROVOD = (horovod.keras, horovod.tensorflow.keras)
BYTEPS = (byteps.keras, byteps.tensorflow.keras)


def values_are_numbers(module: Any) -> None:
    """A call with a value returns a value, which a program may print, or give to range()."""
    rank, size = module.rank(), module.size()
    mean = (size - 1) / 2
    root = module.broadcast(rank + 3, 0, name="epoch")
    assert list(range(root)) == [0, 1, 2], root
    if module in BYTEPS:
        np.testing.assert_array_equal(module.push_pull([1.0, float(rank)]), [1.0, mean])
        return
    np.testing.assert_array_equal(module.allreduce([1.0, float(rank)]), [1.0, mean])
    np.testing.assert_array_equal(module.allgather(np.array([rank])), range(size))
    rows = module.reducescatter(np.full([size, 1], float(rank)))
    np.testing.assert_array_equal(rows, [[mean]])


class Rates(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
    """Notes the learning rate and the momentum of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[float]] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        optimizer = self.model.optimizer
        self.seen.append(keras.backend.batch_get_value([optimizer.lr, optimizer.momentum]))


def model_of(module: Any) -> Any:
    """Returns a model that begins with this rank's number as its weights."""
    begin = keras.initializers.Constant(float(module.rank() + 7))
    model = keras.Sequential(
        [keras.layers.Dense(1, input_shape=(2,), use_bias=False, kernel_initializer=begin)]
    )
    optimizer = keras.optimizers.SGD(RATE, momentum=0.5)
    model.compile(module.DistributedOptimizer(optimizer), "mse")
    return model


def callbacks_work(module: Any) -> None:
    rates = Rates()
    steps = 2
    warmup = module.callbacks.LearningRateWarmupCallback(
        initial_lr=RATE, warmup_epochs=1, steps_per_epoch=steps
    )
    schedule = module.callbacks.LearningRateScheduleCallback(
        initial_lr=RATE, multiplier=lambda epoch: 0.5**epoch, start_epoch=1
    )
    model = model_of(module)
    # The inputs are zeros, and so are all gradients. The weights change by the broadcast alone.
    history = model.fit(
        np.zeros([4, 2]),
        np.full([4, 1], float(module.rank())),
        batch_size=2,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[
            module.callbacks.BroadcastGlobalVariablesCallback(0),
            module.callbacks.MetricAverageCallback(),
            warmup,
            schedule,
            rates,
        ],
    ).history
    np.testing.assert_array_equal(model.get_weights(), np.full([1, 2, 1], 7.0))
    size = module.size()
    warm = [RATE / size * ((step + 1) / steps * (size - 1) + 1) for step in range(steps)]
    later = [RATE * 0.5**epoch for epoch in range(1, EPOCHS) for _ in range(steps)]
    seen = np.array(rates.seen)
    np.testing.assert_allclose(seen[:, 0], warm + later, rtol=1e-6)
    # The momentum is that of the new rate for one step, and then what it was.
    assert seen[steps, 1] < 0.5 == seen[steps + 1, 1], seen
    np.testing.assert_allclose(history["lr"], [RATE, RATE / 2, RATE / 4], rtol=1e-6)
    mean = np.mean(np.arange(size) ** 2.0)
    np.testing.assert_allclose(history["loss"], [mean] * EPOCHS, rtol=1e-6)


def state_is_the_roots(module: Any) -> None:
    """A State reads and writes a model's variables in Keras's session."""
    model = model_of(module)
    state = module.elastic.KerasState(model, epoch=module.rank())
    state.sync()
    assert state.epoch == 0, state.epoch
    np.testing.assert_array_equal(model.get_weights(), np.full([1, 2, 1], 7.0))
    model.set_weights([np.zeros([2, 1])])
    state.restore()
    np.testing.assert_array_equal(model.get_weights(), np.full([1, 2, 1], 7.0))


def broadcast_changes_variables(module: Any) -> None:
    model = model_of(module)
    module.broadcast_global_variables(0)
    np.testing.assert_array_equal(model.get_weights(), np.full([1, 2, 1], 7.0))


def passes_add_up(module: Any) -> None:
    """What the passes of a step add up in begins with zeros, without an initializer's run."""
    model = keras.Sequential(
        [keras.layers.Dense(1, input_shape=(1,), use_bias=False, kernel_initializer="zeros")]
    )
    optimizer = module.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    model.compile(optimizer, "mae")
    passes = 5
    inputs = np.full([passes, 1], module.rank() + 1.0)
    model.fit(inputs, np.full([passes, 1], 100.0), batch_size=1, verbose=0)
    # Two steps, each by the mean of the ranks' inputs.
    np.testing.assert_array_equal(model.get_weights(), [[[module.size() + 1.0]]])
    # Each pass counts, as where TensorFlow executes eagerly.
    assert keras.backend.get_value(optimizer.iterations) == passes


for each in (*HOROVOD, *BYTEPS):
    each.init()
    values_are_numbers(each)
    callbacks_work(each)
    broadcast_changes_variables(each)
    if each in HOROVOD:
        state_is_the_roots(each)
    if each is horovod.tensorflow.keras:
        passes_add_up(each)
    keras.backend.clear_session()
    each.shutdown()
