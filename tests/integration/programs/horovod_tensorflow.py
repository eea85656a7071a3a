# SPDX-License-Identifier: Apache-2.0
"""One rank of tensorflow_compat_test.py. It checks what Horovod documents of its TensorFlow API."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import tempfile
import warnings
from functools import partial
from typing import Any

import horovod.common.util
import horovod.keras as hvd_keras
import horovod.runner.common.util.env
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_tf_keras
import keras
import numpy as np
import tensorflow as tf
import tf_keras
from cases import run_cases
from expected_errors import expect, expect_warning
from tensorflow_optimizer_cases import (
    computed_gradients,
    disagreeing_gradients,
    names_of_gradients,
    optimizers,
    partial_optimizers,
    scaled_losses,
)


def _parameters(function: Any) -> str:
    words = []
    for p in inspect.signature(function).parameters.values():
        default = getattr(p.default, "__name__", p.default)
        if p.default is hvd.global_process_set:
            default = "PS"
        words.append(p.name if p.default is p.empty else f"{p.name}={default}")
    return ", ".join(words)


def signatures() -> None:
    ps, none, scale = "process_set=PS", "compression=NoneCompressor", "prescale_factor=1.0"
    scale += ", postscale_factor=1.0"
    devices, scope = "device_dense=, device_sparse=", "ignore_name_scope=False"
    local = "scale_local_gradients=True"
    tape = f"gradtape, {devices}, {none}, sparse_as_dense=False, op=0, "
    tape += f"gradient_predivide_factor=1.0, num_groups=0, groups=None, {ps}"
    wanted = {
        hvd.init: "comm=None, process_sets=None",
        hvd.allreduce: f"tensor, average=None, {devices}, {none}, op=None, {scale}, name=None, "
        f"{ps}, {scope}",
        hvd.grouped_allreduce: f"tensors, average=None, {devices}, {none}, op=None, {scale}, {ps}, "
        f"{scope}, name=None",
        hvd.allgather: f"tensor, name=None, {scope}, {ps}",
        hvd.grouped_allgather: f"tensors, name=None, {scope}, {ps}",
        hvd.broadcast: f"tensor, root_rank, name=None, {scope}, {ps}",
        hvd.broadcast_: f"variables, root_rank, name=None, {ps}",
        hvd.alltoall: f"tensor, splits=None, name=None, {scope}, {ps}",
        hvd.reducescatter: f"tensor, device_dense=, {none}, op=0, name=None, {ps}, {scope}, {scale}",
        hvd.grouped_reducescatter: f"tensors, device_dense=, {none}, op=0, {ps}, {scale}",
        hvd.broadcast_variables: f"variables, root_rank, {ps}, inplace=False",
        hvd.broadcast_global_variables: "root_rank",
        hvd.BroadcastGlobalVariablesHook: "root_rank, device=",
        hvd.broadcast_object: f"obj, root_rank=0, session=None, name=None, {ps}",
        hvd.broadcast_object_fn: f"root_rank=0, session=None, name=None, {ps}",
        hvd.allgather_object: f"obj, session=None, name=None, {ps}",
        hvd.join: "",
        hvd.size_op: "process_set_id=0, name=None",
        hvd.process_set_included_op: "process_set_id=0, name=None",
        hvd.rank_op: "name=None",
        hvd.local_rank_op: "name=None",
        hvd.local_size_op: "name=None",
        hvd.SyncBatchNormalization: "fused=False, kwargs",
        hvd.elastic.run: "func",
        hvd.elastic.TensorFlowState: "variables=None, session=None, kwargs",
        hvd.elastic.TensorFlowKerasState: "model, optimizer=None, backend=None, kwargs",
        hvd.DistributedOptimizer: f"optimizer, name=None, use_locking=False, {devices}, {none}, "
        "sparse_as_dense=False, backward_passes_per_step=1, op=0, gradient_predivide_factor=1.0, "
        f"average_aggregated_gradients=False, num_groups=0, groups=None, {ps}, {local}",
        hvd.DistributedGradientTape: f"{tape}, {local}",
        hvd.PartialDistributedGradientTape: f"{tape}, local_layers=None, {local}",
        hvd_tf_keras.DistributedOptimizer: f"optimizer, name=None, {devices}, {none}, "
        "sparse_as_dense=False, gradient_predivide_factor=1.0, op=0, backward_passes_per_step=1, "
        f"average_aggregated_gradients=False, num_groups=0, groups=None, {ps}, {local}",
        hvd_keras.DistributedOptimizer: f"optimizer, name=None, {devices}, {none}, "
        "sparse_as_dense=False, gradient_predivide_factor=1.0, op=0, num_groups=0, groups=None",
        hvd_keras.PartialDistributedOptimizer: f"optimizer, name=None, {devices}, {none}, "
        "sparse_as_dense=False, gradient_predivide_factor=1.0, op=0, backward_passes_per_step=1, "
        f"average_aggregated_gradients=False, groups=None, {ps}, local_layers=None, {local}",
        hvd_tf_keras.allreduce: f"value, name=None, average=None, {scale}, op=None, {none}",
        hvd_keras.allreduce: f"value, name=None, average=True, {scale}, op=None, {none}",
        hvd_keras.allgather: "value, name=None",
        hvd_keras.broadcast: "value, root_rank, name=None",
        hvd_keras.reducescatter: "value, name=None, op=0",
        hvd_keras.load_model: "filepath, custom_optimizers=None, custom_objects=None, "
        f"{none}, legacy_opts=False",
    }
    wanted |= {
        getattr(hvd_tf_keras, function.__name__): text
        for function, text in wanted.items()
        if function in (hvd_keras.allgather, hvd_keras.broadcast, hvd_keras.reducescatter)
        or function is hvd_keras.load_model
    }
    for module in (hvd_keras, hvd_tf_keras):
        wanted |= {
            module.broadcast_global_variables: "root_rank",
            module.elastic.run: "func",
            module.elastic.KerasState: "model, optimizer=None, kwargs",
            module.elastic.CommitStateCallback: "state, batches_per_commit=1",
            module.elastic.UpdateBatchStateCallback: "state",
            module.elastic.UpdateEpochStateCallback: "state",
        }
        callbacks = module.callbacks
        first = "" if module is hvd_keras else "save_weights_only=False, "
        wanted |= {
            callbacks.BroadcastGlobalVariablesCallback: "root_rank, device=, local_variables=None",
            callbacks.MetricAverageCallback: "device=",
            callbacks.LearningRateScheduleCallback: "initial_lr, multiplier, start_epoch=0, "
            "end_epoch=None, staircase=True, momentum_correction=True, steps_per_epoch=None",
            callbacks.LearningRateWarmupCallback: "initial_lr, warmup_epochs=5, "
            "momentum_correction=True, steps_per_epoch=None, verbose=0",
            callbacks.BestModelCheckpoint: f"monitor=val_loss, verbose=0, {first}mode=auto, "
            "save_freq=epoch",
        }
    for function, text in wanted.items():
        assert _parameters(function) == text, f"{function}: {_parameters(function)}"
    tape_of = hvd.DistributedGradientTape(tf.GradientTape())
    assert _parameters(tape_of.register_local_source) == "source"
    assert _parameters(tape_of.get_local_and_global_gradients) == (
        "target, sources, output_gradients=None, use_generic_names=False"
    )
    for module in (hvd, hvd_keras, hvd_tf_keras):
        for name in module.__all__:
            assert hasattr(module, name), name
    ops = {"Average", "Sum", "Adasum", "Min", "Max", "Product"}
    assert ops & set(hvd.__all__) == ops
    assert ops & set(hvd_keras.__all__) == {"Average", "Sum", "Adasum"}
    assert ops & set(hvd_tf_keras.__all__) == {"Average", "Sum"}
    sets = {"ProcessSet", "global_process_set", "add_process_set", "remove_process_set"}
    assert sets & set(hvd_tf_keras.__all__) == sets
    assert sets & set(hvd_keras.__all__) == {"global_process_set"}


def reductions() -> None:
    size, rank = hvd.size(), hvd.rank()
    own = tf.range(6, dtype=tf.float32) + float(rank)
    every = np.stack([np.arange(6.0) + r for r in range(size)])
    for op, wanted in (
        (hvd.Sum, every.sum(0)),
        (hvd.Average, every.mean(0)),
        (hvd.Min, every.min(0)),
        (hvd.Max, every.max(0)),
        (hvd.Product, every.prod(0)),
    ):
        assert np.allclose(hvd.allreduce(own, op=op), wanted)
        graph = tf.function(lambda x, op=op: hvd.allreduce(x, op=op, name=f"op{op}"))
        assert np.allclose(graph(own), wanted)
    assert np.allclose(hvd.allreduce(own), every.mean(0))
    half = hvd.allreduce(own, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert half.dtype == tf.float32 and np.allclose(half, every.sum(0), rtol=1e-2)
    deprecated = partial(expect_warning, DeprecationWarning, "`average`")
    assert np.allclose(deprecated(hvd.allreduce, own, average=False), every.sum(0))
    [grouped] = deprecated(hvd.grouped_allreduce, [own], average=False)
    assert np.allclose(grouped, every.sum(0))
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([1, 2]))
    assert deprecated(hvd.allreduce, rows, average=False).indices.shape == [size]
    for module in (hvd_keras, hvd_tf_keras):
        assert np.allclose(deprecated(module.allreduce, own, average=False), every.sum(0))
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Parameter `average`")
            assert np.allclose(module.allreduce(own), every.mean(0))
    expect(ValueError, "supersedes average", hvd.allreduce, own, True, op=hvd.Sum)
    group = tf.function(lambda x: hvd.grouped_allreduce([x, 2.0 * x], op=hvd.Sum, name="group"))
    assert np.allclose(group(own), [every.sum(0), 2 * every.sum(0)])
    assert hvd.size_op().numpy() == size and hvd.rank_op().numpy() == rank
    assert int(tf.function(hvd.size_op)()) == size
    assert int(hvd.process_set_included_op()) == 1
    if size > 1:
        expect(
            tf.errors.FailedPreconditionError,
            "f32[",
            hvd.allreduce,
            tf.ones(2 + rank),
            op=hvd.Sum,
            name="lengths",
        )


def slices() -> None:
    size, rank = hvd.size(), hvd.rank()

    def own() -> tf.IndexedSlices:
        indices, shape = tf.constant([rank, size]), tf.constant([size + 1, 3])
        return tf.IndexedSlices(tf.fill([2, 3], float(rank + 1)), indices, shape)

    for reduce in (hvd.allreduce, tf.function(hvd.allreduce)):
        result = reduce(own(), op=hvd.Sum)
        dense = tf.convert_to_tensor(result).numpy()[:, 0].tolist()
        assert dense == [r + 1.0 for r in range(size)] + [size * (size + 1) / 2]
        mean = reduce(own(), op=hvd.Average)
        assert np.allclose(tf.convert_to_tensor(mean).numpy()[:, 0] * size, dense)
    expect(NotImplementedError, "sparse", hvd.allreduce, own(), op=hvd.Max)
    expect(NotImplementedError, "sparse", hvd.allreduce, own(), op=hvd.Sum, prescale_factor=2.0)


def others() -> None:
    size, rank = hvd.size(), hvd.rank()
    assert hvd.allgather(tf.fill([rank + 1], rank)).shape == (size * (size + 1) // 2,)
    assert hvd.broadcast(tf.constant(rank), size - 1, name="b").numpy() == size - 1
    variables = [tf.Variable(float(rank))]
    assert hvd.broadcast_(variables, 0)[0] is variables[0] and float(variables[0]) == 0.0
    rows = tf.fill([size + 1, 2], float(rank))  # The last row is one too many, and dropped.
    received, counts = hvd.alltoall(rows, splits=[1] * size)
    assert (
        received.numpy()[:, 0].tolist() == list(range(size))
        and counts.numpy().tolist() == [1] * size
    )
    with tf.GradientTape() as tape:
        tape.watch(rows)
        loss = tf.reduce_sum(hvd.alltoall(rows, splits=[1] * size)[0])
    assert tape.gradient(loss, rows).numpy()[:, 0].tolist() == [1.0] * size + [0.0]
    wrong = tf.errors.InvalidArgumentError
    expect(wrong, "splits", hvd.alltoall, tf.ones(3), splits=[9] * size)
    expect(wrong, "int32", hvd.alltoall, tf.ones(3), splits=tf.ones(size, tf.int64))
    expect(wrong, "first dimension", hvd.reducescatter, tf.constant(1.0))
    for op in (hvd.Max, hvd.Adasum):
        expect(wrong, "Average", hvd.reducescatter, tf.ones(size), op=op)
        expect(wrong, "Average", hvd.grouped_reducescatter, [tf.ones(size)], op=op)
    if size > 1:
        expect(wrong, "splits", hvd.alltoall, tf.ones(size + 1))
    total = hvd.reducescatter(tf.range(size, dtype=tf.float32), op=hvd.Sum)
    assert total.numpy().tolist() == [float(rank * size)]
    assert hvd.broadcast_object_fn(0)({"rank": rank}) == {"rank": 0}
    assert hvd.allgather_object(rank) == list(range(size))
    expect(RuntimeError, "eager", hvd.broadcast_global_variables, 0)
    assert np.allclose(hvd_keras.allreduce(float(rank), average=False), size * (size - 1) / 2)
    assert np.allclose(hvd_tf_keras.allreduce([float(rank)], op=hvd.Sum), size * (size - 1) / 2)


def elastic_where_nodes_stay() -> None:
    """The state goes back to its last commit. An optimizer has variables before its first step."""
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    expect(ValueError, "no variables yet", hvd_keras.elastic.KerasState, keras.Sequential())
    expect(ValueError, "pass `variables`", hvd.elastic.TensorFlowState)
    optimizer = keras.optimizers.Adam()
    state = hvd_tf_keras.elastic.KerasState(model, optimizer, batch=0, epoch=0)
    assert len(optimizer.variables) > 4
    assert hvd_keras.elastic is not hvd.elastic
    assert hvd_keras.elastic.KerasState is hvd_tf_keras.elastic.KerasState

    @hvd.elastic.run
    def train(state: Any) -> int:
        model.set_weights([np.full_like(each, 7) for each in model.get_weights()])
        state.batch = 3
        state.commit()
        model.set_weights([np.full_like(each, 8) for each in model.get_weights()])
        state.restore()
        return int(state.batch)

    assert train(state) == 3
    assert all((each == 7).all() for each in model.get_weights())


def process_sets() -> None:
    size, rank = hvd.size(), hvd.rank()
    if size == 1:
        return
    some = hvd.add_process_set(range(size - 1))
    included = rank < size - 1
    if included:
        assert (hvd.allreduce(tf.ones(2), op=hvd.Sum, process_set=some).numpy() == size - 1).all()
    else:
        wrong = tf.errors.InvalidArgumentError
        for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
            expect(wrong, f"rank {rank}", call, tf.ones(4), process_set=some)
    assert int(hvd.process_set_included_op(some.process_set_id)) == int(included)
    gone = 10  # Nobody has registered it. A graph may ask for a set that has been removed.
    asked = tf.function(lambda: hvd.process_set_included_op(gone))
    assert int(hvd.process_set_included_op(gone)) == int(asked()) == -3
    unknown = hvd.ProcessSet([rank])
    unknown.process_set_id = gone
    expect(ValueError, "no process set with id 10", hvd.allreduce, tf.ones(4), process_set=unknown)
    assert not hvd.remove_process_set(unknown)
    variable = tf.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=some)
    optimizer.apply_gradients([(tf.constant(float(rank)), variable)])
    wanted = (size - 2) / 2 if included else rank
    assert float(variable) == -wanted, (float(variable), wanted)
    again = hvd.ProcessSet(range(size - 1))
    hvd.init(process_sets=[again])
    assert again.process_set_id == some.process_set_id
    assert hvd.remove_process_set(again) and some.process_set_id is None
    assert not hvd.remove_process_set(some)


def tapes() -> None:
    size, rank = hvd.size(), hvd.rank()
    one, two = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    mean = (size + 1) / 2

    def gradients(**options: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = (tf.reduce_sum(one * one) + two * two) * float(rank + 1)
        return hvd.DistributedGradientTape(tape, **options).gradient(loss, {"a": one, "b": two})

    for run in (gradients, tf.function(gradients)):
        found = run()
        assert np.allclose(found["a"], np.array([2.0, 4.0]) * mean)
        assert np.allclose(found["b"], 6.0 * mean)
        found = run(gradient_predivide_factor=2.0)
        assert np.allclose(found["b"], 6.0 * mean)
    expect(ValueError, "predivide", gradients, gradient_predivide_factor=2.0, op=hvd.Sum)
    expect(ValueError, "groups", gradients, groups=-1)

    layer = keras.layers.Dense(1, kernel_initializer="ones")
    layer.build((None, 2))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.ones([1, 2]))) * float(rank + 1) + two
    partial = hvd.PartialDistributedGradientTape(tape, local_layers=[layer])
    kernel, bias, other = partial.gradient(loss, [*(w.value for w in layer.weights), two])
    assert np.allclose(kernel, (rank + 1) / size) and np.allclose(bias, (rank + 1) / size)
    assert np.allclose(other, 1.0)


def graphs_of_version_1() -> None:
    size, rank = hvd.size(), hvd.rank()
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 2])
        weight = tf.compat.v1.get_variable("w", initializer=tf.fill([2, 1], float(rank + 1)))
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.5))
        train = optimizer.minimize(tf.reduce_sum(x @ weight))
        hook = hvd.BroadcastGlobalVariablesHook(0)
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            for _ in range(2):
                session.run(train, {x: np.full((1, 2), rank)})
            found = session.run(weight, {x: np.zeros((1, 2))})
    assert np.allclose(found, 1.0 - 2 * 0.5 * (size - 1) / 2), found
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("w", initializer=[1.0])
        steps = tf.compat.v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
        )
        train = optimizer.minimize(weight * float(rank), global_step=steps)
        session.run(tf.compat.v1.global_variables_initializer())
        for passes in range(1, 6):
            session.run(train)
            found, counted = session.run([weight, steps])
            assert np.allclose(found, 1.0 - passes // 2 * (size - 1)), (passes, found)
            assert counted == passes


def sessions_of_one_thread() -> None:
    """Operations that wait occupy no thread of a session, whatever order ranks come in."""
    size, rank = hvd.size(), hvd.rank()
    threads = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1)
    kinds = [
        lambda each, name: hvd.allgather(each, name=name),
        lambda each, name: hvd.allreduce(each, op=hvd.Sum, name=name),
        lambda each, name: hvd.broadcast(each, 0, name=name),
        lambda each, name: hvd.reducescatter(each, op=hvd.Sum, name=name),
        lambda each, name: hvd.alltoall(each, name=name),
    ]
    calls = list(enumerate(kinds * 2))
    with tf.Graph().as_default(), tf.compat.v1.Session(config=threads) as session:
        results = {}
        for number, call in calls if rank % 2 == 0 else reversed(calls):
            rows = tf.fill([size, 2], tf.compat.v1.placeholder_with_default(1.0, []))
            results[number] = tf.reduce_sum(call(rows, f"c{number}"))
        whole = 2.0 * size
        for _ in range(3):
            found = session.run([results[number] for number, _ in calls])
            assert found == [whole * size, whole * size, whole, whole, whole] * 2, found
        # The root waits for the others' gradients. The others' own gradients are zero.
        x = tf.fill([2], float(rank + 1))
        [gradient] = tf.gradients(hvd.broadcast(x * x, size - 1), x)
        assert (session.run(gradient) == (2.0 * size if rank == size - 1 else 0.0)).all()


def disagreements() -> None:
    size, rank, ops = hvd.size(), hvd.rank(), (hvd.Sum, hvd.Min)[hvd.rank() % 2]
    if size == 1:
        return
    shape = [2, 6] if rank == 0 else [2, 2, 3]  # Both have the same number of elements.
    precondition = tf.errors.FailedPreconditionError
    for _ in range(2):
        expect(precondition, "2, 6", hvd.allreduce, tf.ones(shape))
        assert (hvd.allreduce(tf.ones([2]), op=hvd.Sum).numpy() == size).all()
    mixed = tf.ones([2], (tf.float32, tf.float64)[rank % 2])
    expect(precondition, "f64[2]", hvd.allreduce, mixed, name="dtypes")
    expect(precondition, "min", hvd.allreduce, tf.ones(2), op=ops, name="ops")
    # And for a name on which the ranks have agreed before.
    graph = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="again"))
    for _ in range(2):
        assert (graph(tf.ones(3)).numpy() == size).all()
        expect(tf.errors.OpError, "f32[", graph, tf.ones(4 + rank % 2))
    assert (graph(tf.ones(3)).numpy() == size).all()


def insides() -> None:
    """Checks the internals that Horovod's own tests and similar programs use."""
    assert hvd.util._executing_eagerly() and hvd._executing_eagerly()
    variable = tf.Variable(1.0)
    refs = hvd.util.vars_to_refs([variable, [variable]])
    assert hash(refs) and hvd.util.refs_to_vars(refs) == [variable, [variable]]
    newer = horovod.common.util.is_version_greater_equal_than
    assert newer("2.10.0", "2.9") and newer("2.6.0-rc1", "2.6") and not newer("2.9.3", "2.10")
    expect(ValueError, "not a version", newer, "new", "2.6")
    told = horovod.runner.common.util.env.get_env_rank_and_size
    kept = dict(os.environ)
    try:
        for name in ("HOROVOD", "OMPI_COMM_WORLD", "PMI"):
            os.environ.pop(f"{name}_RANK", None)
            os.environ.pop(f"{name}_SIZE", None)
        assert told() == (0, 1)
        os.environ["PMI_RANK"] = "3"
        expect(RuntimeError, "only PMI_RANK of PMI_RANK and PMI_SIZE is set", told)
        os.environ["PMI_SIZE"] = "4"
        assert told() == (3, 4)
    finally:
        os.environ.clear()
        os.environ.update(kept)
    batch_norm = importlib.import_module("horovod.tensorflow.sync_batch_norm")
    assert batch_norm.SyncBatchNormalization is hvd.SyncBatchNormalization
    for form in ("", "_eager"):
        name = f"horovod.tensorflow.gradient_aggregation{form}"
        expect(ModuleNotFoundError, "backward_passes_per_step", importlib.import_module, name)
    whole = (
        "ProcessSet(process_set_id=0, ranks=" + str(list(range(hvd.size()))) + ", mpi_comm=None)"
    )
    assert str(hvd.global_process_set) == whole
    optimizer = hvd_tf_keras.DistributedOptimizer(
        tf_keras.optimizers.legacy.SGD(), backward_passes_per_step=2
    )
    for passes in (1, 0, 1):
        optimizer.apply_gradients([(tf.constant(1.0), variable)])
        assert int(optimizer._agg_helper.counter) == passes


def models() -> None:
    """A saved model needs nothing of Horovod, and can be loaded with it or without."""
    size, rank = hvd.size(), hvd.rank()
    for module, kind in ((hvd_keras, keras), (hvd_tf_keras, tf_keras)):
        kind.utils.set_random_seed(rank)
        model = kind.Sequential([kind.layers.Dense(1)])
        model.build((None, 2))
        model.compile(module.DistributedOptimizer(kind.optimizers.SGD(0.1, momentum=0.9)), "mse")
        callbacks = [
            module.callbacks.BroadcastGlobalVariablesCallback(0),
            module.callbacks.MetricAverageCallback(),
            module.callbacks.LearningRateWarmupCallback(0.1 * size, warmup_epochs=2),
            module.callbacks.LearningRateScheduleCallback(0.1 * size, 0.1, start_epoch=2),
        ]
        x: np.ndarray = np.full((8, 2), float(rank), np.float32)
        past = model.fit(x, x[:, :1], batch_size=4, epochs=4, verbose=0, callbacks=callbacks)
        rates = past.history["lr"]
        assert np.allclose(rates[1:], [0.1 * size, 0.1 * size, 0.01 * size]), rates
        told = hvd.allgather_object(
            (past.history["loss"], [w.tolist() for w in model.get_weights()])
        )
        assert all(each == told[0] for each in told)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "model.keras")
            model.save(path)
            plain = kind.models.load_model(path)
            assert type(plain.optimizer) is kind.optimizers.SGD
            if kind is keras:
                loaded = module.load_model(path)
                assert type(loaded.optimizer).__mro__[1].__module__.startswith("talweg")
                assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations)


def batch_norm() -> None:
    size, rank = hvd.size(), hvd.rank()
    layer = hvd.SyncBatchNormalization()
    result = layer(tf.fill([2, 1], float(rank)), training=True).numpy()
    ranks = np.arange(size)
    assert np.allclose(result, (rank - ranks.mean()) / np.sqrt(ranks.var() + 1e-3), atol=1e-4)
    expect(ValueError, "fused", hvd.SyncBatchNormalization, fused=True)


def joined() -> None:
    """Rank r has r + 1 batches, so every rank learns that the last rank joined last."""
    size, rank = hvd.size(), hvd.rank()
    last = size - 1
    weights = tf.Variable(tf.zeros(3))
    table = tf.Variable(tf.zeros([4, 2]))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))

    def taped() -> list[Any]:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(weights) + tf.reduce_sum(tf.gather(table, [rank % 4]))
        return list(tape.gradient(loss, [weights, table]))

    def optimized() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights) * (rank + 1)
        optimizer.apply_gradients(zip(tape.gradient(loss, [weights]), [weights]))

    graph = tf.function(optimized)
    for _ in range(2):  # The second turn is after all have joined.
        for step in range(rank + 1):
            there = size - step  # The number of ranks that have this batch.
            dense, sparse = taped()
            assert np.allclose(dense, there / size), (dense, there)
            assert len(sparse.indices) == there and np.allclose(sparse.values, 1 / size)
            weights.assign(tf.zeros(3))
            optimized() if step % 2 else graph()
            assert np.allclose(weights, -sum(range(step + 1, size + 1)) / size), weights
        told = hvd.join()
        assert told.dtype == tf.int32 and int(told) == last, told
    assert int(tf.function(hvd.join)()) == last  # If all join at once, the largest rank counts.


def joined_calls() -> None:
    """The others' reductions go on with zeros, for new names and shapes. Other calls do not."""
    size, rank = hvd.size(), hvd.rank()
    if size == 1:
        assert int(hvd.join()) == 0
        return
    refused = tf.errors.FailedPreconditionError
    hvd.broadcast(tf.ones(3), size - 1, name="settled")

    @tf.function
    def in_graph(tensor: tf.Tensor) -> Any:
        return hvd.allreduce(tensor, name="in_graph", op=hvd.Sum), hvd.allreduce(tensor)

    for first in range(2):
        if rank != first:
            for length in (2, 3000):
                ones = tf.ones(length)
                for name in (None, "eager", f"eager.{first}"):
                    assert np.allclose(hvd.allreduce(ones, name=name), (size - 1) / size)
                    found = hvd.grouped_allreduce([ones, 2 * ones], name=name, op=hvd.Sum)
                    assert np.allclose(found[1], 2 * (size - 1))
                summed, averaged = in_graph(ones)
                assert np.allclose(summed, size - 1) and np.allclose(averaged, (size - 1) / size)
            whole = hvd.allreduce(tf.fill([3], 5), op=hvd.Average, name="whole")
            assert whole.numpy().tolist() == [5 * (size - 1) // size] * 3
            slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([0, 1]), tf.constant([4, 2]))
            assert hvd.allreduce(slices, name="slices").values.shape == (2 * (size - 1), 2)
            who = f"rank {first}"
            for name in (None, "raises"):
                expect(refused, who, hvd.allgather, tf.ones([2, 2]), name=name)
                expect(refused, who, hvd.broadcast, tf.ones(2), size - 1, name=name)
                expect(refused, who, hvd.alltoall, tf.ones(size), name=name)
                expect(refused, who, hvd.reducescatter, tf.ones(size), name=name)
            expect(refused, "has joined (hvd.join())", hvd.broadcast, tf.ones(3), 1, name="settled")
        last = int(hvd.join())
        assert last != first, last
        assert hvd.allgather_object(last) == [last] * size
        for name in ("eager", "settled", "in_graph"):
            found = hvd.allreduce(tf.ones(3), name=name, op=hvd.Sum)
            assert np.allclose(found, size)
            assert np.allclose(hvd.broadcast(tf.fill([3], rank), 1, name=name), 1)


def main() -> int:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    precondition = tf.errors.FailedPreconditionError
    expect(ValueError, "initialized", hvd.size)
    expect(precondition, "initialized", hvd.allreduce, tf.ones(1))
    for ask in (hvd.join, hvd.size_op, hvd.rank_op, hvd.process_set_included_op):
        expect(precondition, "initialized", ask)
    expect(precondition, "initialized", hvd_keras.allreduce, 1.0)
    hvd.init(process_sets="dynamic")
    run_cases(
        signatures,
        partial_optimizers,
        reductions,
        slices,
        others,
        elastic_where_nodes_stay,
        process_sets,
        tapes,
        optimizers,
        graphs_of_version_1,
        sessions_of_one_thread,
        disagreements,
        names_of_gradients,
        disagreeing_gradients,
        computed_gradients,
        scaled_losses,
        insides,
        models,
        batch_norm,
        joined,
        joined_calls,
    )
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
