# SPDX-License-Identifier: Apache-2.0
"""One rank of tensorflow_compat_test.py. It checks what BytePS documents of byteps.tensorflow."""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
from typing import Any

import byteps.keras as bps_keras
import byteps.tensorflow as bps
import byteps.tensorflow.keras as bps_tf_keras
import keras
import numpy as np
import tensorflow as tf
import tf_keras
from byteps.tensorflow import distribute
from byteps.tensorflow.distribute import mirrored_strategy
from byteps.tensorflow.util import _executing_eagerly
from cases import run_cases
from expected_errors import expect
from talweg.tensorflow import _optimizer


def _parameters(function: Any) -> str:
    words = []
    for p in inspect.signature(function).parameters.values():
        default = getattr(p.default, "__name__", p.default)
        words.append(p.name if p.default is p.empty else f"{p.name}={default}")
    return ", ".join(words)


def signatures() -> None:
    devices, none = "device_dense=, device_sparse=", "compression=NoneCompressor"
    wanted = {
        bps.init: "lazy=True",
        bps.push_pull: f"tensor, scope=, average=None, {devices}, {none}, op=None, "
        "enable_async=False, name=None",
        bps.broadcast: "tensor, root_rank, scope=, name=None, is_variable=True",
        bps.broadcast_variables: "variables, root_rank, scope=",
        bps.broadcast_global_variables: "root_rank, scope=",
        bps.BroadcastGlobalVariablesHook: "root_rank, device=, scope=",
        bps.DistributedOptimizer: f"optimizer, name=None, use_locking=False, {devices}, {none}, "
        "sparse_as_dense=False, backward_passes_per_step=1, op=Average, enable_async=False",
        bps.DistributedGradientTape: f"gradtape, {devices}, {none}, sparse_as_dense=False, "
        "op=Average",
    }
    for module in (bps_keras, bps_tf_keras):
        callbacks = module.callbacks
        wanted |= {
            module.DistributedOptimizer: f"optimizer, name=None, {devices}, {none}, "
            "sparse_as_dense=False",
            module.push_pull: "value, name=None, average=True",
            module.broadcast: "value, root_rank, name=None",
            module.load_model: "filepath, custom_optimizers=None, custom_objects=None, " + none,
            callbacks.BroadcastGlobalVariablesCallback: "root_rank, device=",
            callbacks.MetricAverageCallback: "device=",
            callbacks.LearningRateScheduleCallback: "multiplier, start_epoch=0, end_epoch=None, "
            "staircase=True, momentum_correction=True, steps_per_epoch=None, initial_lr=None",
            callbacks.LearningRateWarmupCallback: "warmup_epochs=5, momentum_correction=True, "
            "steps_per_epoch=None, verbose=0, initial_lr=None",
        }
    for function, text in wanted.items():
        assert _parameters(function) == text, f"{function}: {_parameters(function)}"


def calls_of_unreleased_branches() -> None:
    for name, remedy in (
        ("allgather", "all_gather"),
        ("alltoall", "all_to_all"),
        ("alltoall_cpu2gpu", "all_to_all"),
        ("alltoall_gpu2cpu", "all_to_all"),
    ):
        assert not hasattr(bps, name)
        expect(AttributeError, f"use talweg.tensorflow.{remedy}", getattr, bps, name)


def sums() -> None:
    size, rank = bps.size(), bps.rank()
    total, mean = size * (size - 1) / 2, (size - 1) / 2
    own = tf.fill([3], float(rank))
    for dtype in (tf.int32, tf.int64, tf.float16, tf.float32, tf.float64):
        cast = tf.cast(own, dtype)
        assert (bps.push_pull(cast, average=False).numpy() == total).all()
        assert (bps.push_pull(cast, "scope.", op=bps.Sum).numpy() == total).all()
        named = bps.push_pull(cast, average=False, name=f"named.{dtype.name}")
        assert (named.numpy() == total).all()
        graph = tf.function(lambda x: bps.push_pull(x, average=False))
        assert (graph(cast).numpy() == total).all()
    assert np.allclose(bps.push_pull(own), mean)
    assert np.allclose(bps.push_pull(own, compression=bps.Compression.fp16), mean)
    with tf.GradientTape() as tape:
        tape.watch(own)
        loss = tf.reduce_sum(bps.push_pull(own, average=False))
    assert np.allclose(tape.gradient(loss, own), size)
    assert bps.broadcast(own, size - 1, name="b").numpy()[0] == size - 1
    variable = tf.Variable(float(rank))
    bps.broadcast_variables([variable], root_rank=size - 1)
    assert float(variable) == size - 1
    assert float(bps_keras.push_pull(float(rank))) == mean
    assert float(bps_tf_keras.push_pull(float(rank), name="n", average=False)) == total
    assert int(bps_keras.broadcast(rank, 0, name="epoch")) == 0
    moment, speed = bps.get_pushpull_speed()
    assert (moment, speed) == (0, -5.0) or speed >= 0.0
    expect(ValueError, "supersedes", bps.push_pull, own, average=True, op=bps.Sum)
    expect(ValueError, "Adasum", bps.push_pull, own, op=bps.Adasum)
    expect(ValueError, "enable_async", bps.push_pull, own, enable_async=True)
    expect(RuntimeError, "eager", bps.broadcast_global_variables, 0)


def tapes_and_optimizers() -> None:
    size, rank = bps.size(), bps.rank()
    mean = (size - 1) / 2
    table = tf.Variable(tf.zeros([size + 1, 2]))

    @tf.function
    def gradient(**options: Any) -> Any:
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [rank, size])
            loss = tf.reduce_sum(rows) * float(rank)
        return bps.DistributedGradientTape(tape, **options).gradient(loss, [table])[0]

    wanted = [r / size for r in range(size)] + [mean]
    assert isinstance(gradient(), tf.IndexedSlices)
    for found in (gradient(), gradient(sparse_as_dense=True)):
        assert np.allclose(tf.convert_to_tensor(found).numpy()[:, 0], wanted)
    optimizers = [keras.optimizers.Adam, tf_keras.optimizers.Adam, tf_keras.optimizers.legacy.Adam]
    for kind in optimizers:
        results: list[np.ndarray] = []
        for optimizer, own in ((kind(0.1), mean + 1.0), (kind(0.1), rank + 1.0)):
            variable = tf.Variable([1.0, -1.0])
            if len(results) == 1:  # The ranks' average is the first one's gradient.
                optimizer = bps.DistributedOptimizer(optimizer)
            for _ in range(3):
                optimizer.apply_gradients([(tf.fill([2], float(own)), variable)])
            results.append(variable.numpy())
        assert np.allclose(results[0], results[1], atol=1e-6), results
    expect(ValueError, "Adasum", bps.DistributedOptimizer, optimizers[0](), op=bps.Adasum)


def graphs_of_version_1() -> None:
    size, rank = bps.size(), bps.rank()
    assert _executing_eagerly()
    with tf.Graph().as_default():
        assert not _executing_eagerly()
        weight = tf.compat.v1.get_variable("w", initializer=tf.fill([2], float(rank + 1)))
        loss = tf.reduce_sum(weight) * float(rank)
        optimizer = bps.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.5))
        train = optimizer.minimize(loss)
        start = bps.broadcast_global_variables(0)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(start)
            session.run(train)
            found = session.run(weight)
    assert np.allclose(found, 1.0 - 0.5 * (size - 1) / 2), found


def models() -> None:
    size, rank = bps.size(), bps.rank()
    for module, kind in ((bps_keras, keras), (bps_tf_keras, tf_keras)):
        kind.utils.set_random_seed(rank)
        model = kind.Sequential([kind.layers.Dense(1)])
        model.build((None, 2))
        model.compile(module.DistributedOptimizer(kind.optimizers.SGD(0.1)), "mse")
        callbacks = [
            module.callbacks.BroadcastGlobalVariablesCallback(0),
            module.callbacks.MetricAverageCallback(),
            module.callbacks.LearningRateWarmupCallback(warmup_epochs=1, initial_lr=0.1),
        ]
        x: np.ndarray = np.full((8, 2), float(rank), np.float32)
        past = model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
        own = np.array([*past.history["loss"], *np.ravel(model.get_weights()[0])])
        assert np.array_equal(bps.broadcast(own, 0, name=f"same.{kind.__name__}"), own)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.keras")
        model = keras.Sequential([keras.layers.Dense(1)])
        model.build((None, 2))
        model.compile(bps_keras.DistributedOptimizer(keras.optimizers.Adam()), "mse")
        model.save(path)
        loaded = [bps_keras.load_model(path).optimizer for _ in range(2)]
        assert all("talweg" in type(each).__mro__[1].__module__ for each in loaded)
        assert len({_optimizer.name_of(each) for each in (model.optimizer, *loaded)}) == 3
    assert size >= 1


def schedules() -> None:
    """A number multiplies the first rate in every epoch of the range."""
    for module, kind in ((bps_keras, keras), (bps_tf_keras, tf_keras)):
        model = kind.Sequential([kind.layers.Dense(1)])
        model.compile(kind.optimizers.SGD(0.5), "mse")
        schedule = module.callbacks.LearningRateScheduleCallback
        callbacks = [
            schedule(start_epoch=0, end_epoch=1, multiplier=1.0),
            schedule(start_epoch=1, end_epoch=4, multiplier=1e-1, staircase=False),
            schedule(start_epoch=4, multiplier=lambda epoch: 10.0**-epoch),
        ]
        ones: np.ndarray = np.ones((4, 2), np.float32)
        past = model.fit(ones, ones[:, :1], epochs=5, verbose=0, callbacks=callbacks)
        wanted = [0.5, 0.05, 0.05, 0.05, 0.5e-4]
        assert np.allclose(past.history["lr"], wanted), (kind.__name__, past.history["lr"])


def mirrored() -> None:
    size, rank = bps.size(), bps.rank()
    assert mirrored_strategy.MirroredStrategy is distribute.MirroredStrategy
    strategy = distribute.MirroredStrategy(devices=["/gpu:0"])  # Without a GPU it takes the CPU.
    with strategy.scope():
        variable = tf.Variable(1.0)
        optimizer = tf_keras.optimizers.legacy.SGD(1.0)

    def replica() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = variable * float(rank)
        optimizer.apply_gradients(zip(tape.gradient(loss, [variable]), [variable]))
        return tf.constant(float(rank))

    value = tf.function(lambda: strategy.run(replica))()
    assert variable.numpy() == 1.0 - size * (size - 1) / 2, variable.numpy()
    assert float(strategy.reduce("SUM", value, axis=None)) == size * (size - 1) / 2
    assert float(strategy.reduce("MEAN", value, axis=None)) == (size - 1) / 2


def mirrored_over_devices() -> None:
    """Each device of each rank adds a gradient of its own, and gets the sum of all."""
    size, rank = bps.size(), bps.rank()
    strategy = distribute.MirroredStrategy(["/cpu:0", "/job:localhost/device:CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    with strategy.scope():
        variable = tf.Variable(1.0)
        optimizer = tf_keras.optimizers.legacy.SGD(1.0)

    def replica() -> tf.Tensor:
        own = tf.distribute.get_replica_context().replica_id_in_sync_group
        factor = tf.cast(own + 2 * rank, tf.float32)
        with tf.GradientTape() as tape:
            loss = variable * factor
        optimizer.apply_gradients(zip(tape.gradient(loss, [variable]), [variable]))
        return factor

    values = tf.function(lambda: strategy.run(replica))()
    total = size * (2 * size - 1)  # 0 + 1 + ... + (2 * size - 1)
    copies = strategy.experimental_local_results(variable)
    assert [each.numpy() for each in copies] == [1.0 - total] * 2, copies
    assert float(strategy.reduce("SUM", values, axis=None)) == total
    expect(
        ValueError,
        "/gpu:7 of `devices` is not here",
        distribute.MirroredStrategy,
        ["/cpu:0", "/gpu:7"],
    )


def names_of_optimizers() -> None:
    """Optimizers of all BytePS's modules have names of their own."""
    named = [
        module.DistributedOptimizer(keras.optimizers.SGD(1.0))
        for module in (bps, bps_keras, bps_tf_keras, bps_keras)
    ]
    assert len({_optimizer.name_of(each) for each in named}) == len(named)


def main() -> int:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    assert (bps.rank(), bps.size()) == (0, 1)  # BytePS says this before init().
    expect(tf.errors.FailedPreconditionError, "init", bps.push_pull, tf.ones(1))
    bps.init()
    run_cases(
        signatures,
        calls_of_unreleased_branches,
        sums,
        tapes_and_optimizers,
        graphs_of_version_1,
        models,
        schedules,
        mirrored,
        mirrored_over_devices,
        names_of_optimizers,
    )
    bps.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
