# SPDX-License-Identifier: Apache-2.0
"""Checks optimizers, for horovod_tensorflow.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import horovod.keras as hvd_keras
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_tf_keras
import keras
import numpy as np
import talweg.tensorflow as tw
import tensorflow as tf
import tf_keras
from expected_errors import expect, expect_warning
from talweg.tensorflow import _rounds


def disagreeing_gradients() -> None:
    """Eager optimizers, tapes and callbacks raise the error that calls raise."""
    if hvd.size() == 1:
        return
    rank, error = hvd.rank(), tf.errors.FailedPreconditionError
    weights = tf.Variable(tf.ones([13 + rank % 2]))  # No other case has such shapes.

    def optimized() -> None:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        optimizer.apply_gradients([(tf.ones_like(weights), weights)])

    def taped() -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(weights)
        tape.gradient(loss, weights)

    for call in (optimized, taped):
        expect(error, "f32[", call)
    for module, kind in ((hvd_keras, keras), (hvd_tf_keras, tf_keras)):
        model = kind.Sequential([kind.layers.Dense(1)])
        model.build((None, 2 + rank % 2))
        model.compile(kind.optimizers.SGD(0.1), "mse")
        broadcast = module.callbacks.BroadcastGlobalVariablesCallback(0)
        broadcast.set_model(model)
        expect(error, "f32[", broadcast.on_batch_end, 0)


def partial_optimizers() -> None:
    """Arguments may come by position, in the order of the documents and in that of the source."""
    first = (None, "", "", hvd.Compression.none, False, 1.0, hvd.Average)
    everyone, layers = hvd.global_process_set, ["a layer"]
    with mock.patch.object(hvd_keras._impl, "distribute", side_effect=lambda *given: given):
        make = partial(hvd_keras.PartialDistributedOptimizer, "an optimizer", *first)
        wanted = make(1, False, [], everyone, layers, False)
        assert wanted[-2:] == (False, layers) and wanted[5:7] == (1, False), wanted
        for same in (
            make([], everyone, layers, False),
            make([], local_layers=layers, scale_local_gradients=False),
            make([], everyone, layers, scale_local_gradients=False),
            make(groups=[], process_set=everyone, local_layers=layers, scale_local_gradients=False),
        ):
            assert same == wanted, same
        assert make(None, everyone) == make() and make(2) != make()


def optimizers() -> None:
    """Each kind of optimizer applies the average, after the given number of passes."""
    size, rank = hvd.size(), hvd.rank()
    mean = (size - 1) / 2
    kinds = [keras.optimizers.SGD, tf_keras.optimizers.SGD, tf_keras.optimizers.legacy.SGD]
    for kind in kinds:
        variable = tf.Variable([1.0, 2.0])
        optimizer = hvd.DistributedOptimizer(kind(1.0), backward_passes_per_step=2)
        assert type(optimizer).__name__ == "SGD" and isinstance(optimizer, kind)

        @tf.function
        def step(optimizer: Any = optimizer, variable: tf.Variable = variable) -> None:
            optimizer.apply_gradients([(tf.fill([2], float(rank)), variable)])

        for passes in range(4):
            step()
            steps = (passes + 1) // 2
            assert np.allclose(variable, np.array([1.0, 2.0]) - 2 * mean * steps)
        averaged = hvd.DistributedOptimizer(
            kind(1.0), backward_passes_per_step=2, average_aggregated_gradients=True
        )
        variable.assign([0.0, 0.0])
        for _ in range(2):
            averaged.apply_gradients([(tf.fill([2], float(rank)), variable)])
        assert np.allclose(variable, -mean)
    expect(ValueError, "Adasum", hvd.DistributedOptimizer, kinds[0](1.0), op=hvd.Adasum)
    expect(ValueError, "Average and Sum", hvd_keras.DistributedOptimizer, kinds[0](1.0), op=hvd.Max)
    expect(
        ValueError,
        "is '2'; it must be a whole number, at least 1",
        hvd.DistributedOptimizer,
        kinds[0](1.0),
        backward_passes_per_step="2",
    )
    expect(TypeError, "got EagerTensor", hvd.broadcast_variables, [tf.ones(1)], 0)
    expect(Exception, "not an optimizer", hvd.DistributedOptimizer, object())
    deprecated = partial(expect_warning, DeprecationWarning, "`num_groups`")
    for module in (hvd, hvd_keras, hvd_tf_keras):
        deprecated(module.DistributedOptimizer, keras.optimizers.SGD(1.0), num_groups=2)
    for make in (hvd.DistributedGradientTape, hvd.PartialDistributedGradientTape):
        deprecated(make, tf.GradientTape(), num_groups=2)


def names_of_gradients() -> None:
    """Each optimizer has names of its own and keeps them. Tapes have the names that they get."""
    told: set[str] = set()
    start = _rounds.start_reduction

    def record(array: Any, name: Any, how: Any) -> Any:
        told.add(name)
        return start(array, name, how)

    def names_of(step: Any, variable: tf.Variable) -> set[str]:
        told.clear()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * variable)
        step(tape, loss, variable)
        return set(told)

    def apply(optimizer: Any, tape: Any, loss: Any, variable: Any) -> None:
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    variables = [tf.Variable(tf.ones([length])) for length in (2, 3)]
    made = [hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)) for _ in variables]
    steps: list[Callable[..., None]] = [partial(apply, each) for each in made]
    named = tw.DistributedOptimizer(keras.optimizers.SGD(1.0), name="mine")
    with mock.patch.object(_rounds, "start_reduction", record):
        first, second = map(names_of, steps, variables)
        assert len(first) == len(second) == 1 and first != second, (first, second)
        hvd.DistributedOptimizer(made[1])
        assert list(map(names_of, steps, variables)) == [first, second]
        assert names_of(partial(apply, named), variables[0]) == {"mine.0"}
        tape = tw.DistributedGradientTape(tf.GradientTape(), name="own")
        with tape:
            loss = tf.reduce_sum(variables[0])
        told.clear()
        tape.gradient(loss, variables[0])
        assert told == {"own.0"}
    expect(ValueError, "name is 3", tw.DistributedGradientTape, tf.GradientTape(), name=3)


def computed_gradients() -> None:
    """An optimizer of tf-keras returns combined gradients if a program asks for them."""
    size, rank = hvd.size(), hvd.rank()
    mean = (size + 1) / 2
    for kind in (tf_keras.optimizers.SGD, tf_keras.optimizers.legacy.SGD):
        own, shared = tf.Variable(0.0), tf.Variable(0.0)
        optimizer = hvd_tf_keras.DistributedOptimizer(kind(1.0), op=hvd.Sum)
        optimizer.register_local_var(own)

        def loss(own: tf.Variable = own, shared: tf.Variable = shared) -> Any:
            return (own + shared) * float(rank + 1)

        optimizer.minimize(loss, [own, shared])
        assert np.allclose(shared, -mean * size) and np.allclose(own, -(rank + 1) / size)
        with tf.GradientTape() as tape:
            value = loss()
        pairs = optimizer.compute_gradients(value, [own, shared], tape=tape)
        assert [float(gradient) for gradient, _ in pairs] == [(rank + 1) / size, mean * size]
        optimizer.apply_gradients([(gradient * 2, each) for gradient, each in pairs])
        assert np.allclose(shared, -3 * mean * size)  # Gradients were combined only once.
        optimizer.minimize(loss, [own, shared])
        assert np.allclose(shared, -4 * mean * size)
        # One rank has no finite gradient, so all skip the step, and none waits for another.
        scaled = tf_keras.mixed_precision.LossScaleOptimizer(
            hvd_tf_keras.DistributedOptimizer(kind(1.0)), dynamic=True, initial_scale=4.0
        )
        variable = tf.Variable(1.0)
        for factor in (float("inf") if rank == size - 1 else 1.0, 1.0):
            with tf.GradientTape() as tape:
                value = variable * factor
                if hasattr(scaled, "get_scaled_loss"):
                    value = scaled.get_scaled_loss(value)
            if not hasattr(scaled, "get_scaled_loss"):
                pairs = scaled.compute_gradients(value, [variable], tape=tape)
            else:
                inner = scaled.inner_optimizer
                pairs = inner.compute_gradients(value, [variable], tape=tape)
                gradients = scaled.get_unscaled_gradients([gradient for gradient, _ in pairs])
                pairs = list(zip(gradients, [variable]))
            scaled.apply_gradients(pairs)
        assert np.allclose(variable, 0.0), variable


def scaled_losses() -> None:
    """Keras 3's loss scaling works around the optimizer and within it, as tf-keras's does."""
    size, rank = hvd.size(), hvd.rank()
    mean = (size + 1) / 2

    def scaling(optimizer: Any) -> Any:
        return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)

    def distributed(optimizer: Any, passes: int = 1) -> Any:
        return hvd_tf_keras.DistributedOptimizer(optimizer, backward_passes_per_step=passes)

    def step_of(variable: Any, optimizer: Any) -> Any:
        @tf.function
        def step(factor: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss(variable.value * factor)
            optimizer.apply([tape.gradient(loss, variable.value)], [variable])

        return step

    for passes, optimizer in (
        (1, distributed(scaling(keras.optimizers.SGD(1.0)))),
        (1, scaling(distributed(keras.optimizers.SGD(1.0)))),
        (1, distributed(scaling(distributed(keras.optimizers.SGD(1.0))))),
        (2, distributed(scaling(keras.optimizers.SGD(1.0)), 2)),
        (2, scaling(distributed(keras.optimizers.SGD(1.0), 2))),
    ):
        variable = keras.Variable(0.0)
        step = step_of(variable, optimizer)
        for wrong in (True, False):
            for _ in range(passes):
                step(tf.constant(float("inf") if wrong and rank == size - 1 else rank + 1.0))
        assert float(optimizer.dynamic_scale) == 2.0
        assert np.allclose(variable, -mean * passes), (variable, passes)
    layer = keras.layers.Dense(1, kernel_initializer="ones", dtype="mixed_float16")
    model = keras.Sequential([keras.Input([2]), layer])
    model.dtype_policy = keras.DTypePolicy("mixed_float16")
    model.compile(distributed(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    x = np.full([4, 2], float("nan") if rank == 0 else 1.0)
    model.fit(x, np.ones([4, 1]), epochs=2, batch_size=2, verbose=0)
    assert float(model.optimizer.dynamic_scale) == 2.0**15 / 2**4
    model.fit(np.full([4, 2], (rank + 1.0) / 8), np.ones([4, 1]), batch_size=2, verbose=0)
    weights = [each.tobytes() for each in model.get_weights()]
    assert hvd.allgather_object(weights) == [weights] * size
    assert not (model.get_weights()[0] == 1).any()
    assert int(model.optimizer.step_counter) == 2
