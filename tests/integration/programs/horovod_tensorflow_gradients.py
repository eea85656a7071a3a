# SPDX-License-Identifier: Apache-2.0
"""One rank of tensorflow_compat_test.py. It checks gradients, lives and callbacks."""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import horovod.keras as hvd_keras
import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from cases import run_cases
from expected_errors import expect
from talweg import _client
from talweg.tensorflow import _ops

_COUNT = 4


def _operations() -> list[tuple[str, Callable[[list[Any]], list[Any]], float]]:
    """Returns operations of several tensors, with the factor by which each scales a gradient of
    ones.
    """
    size = hvd.size()
    splits = [2] * size
    return [
        ("allreduce", lambda them: hvd.grouped_allreduce(them, op=hvd.Sum), size),
        ("allgather", hvd.grouped_allgather, 1.0),
        ("reducescatter", lambda them: hvd.grouped_reducescatter(them, op=hvd.Sum), size),
        ("broadcast", lambda them: [hvd.broadcast(each, 0) for each in them], hvd.rank() == 0),
        ("alltoall", lambda them: [hvd.alltoall(each, splits)[0] for each in them], 1.0),
    ]


def _inputs() -> list[tf.Tensor]:
    return [tf.fill([2 * hvd.size(), 3], float(each)) for each in range(_COUNT)]


def gradients_of_a_group() -> None:
    """Each output has its own gradient, and one run of a graph computes all."""
    for kind, call, times in _operations():
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            inputs = _inputs()
            outputs = call(inputs)
            wanted = [tf.gradients(out, own)[0] for out, own in zip(outputs, inputs)]
            for found in session.run(wanted):
                assert np.allclose(found, times), (kind, found)


def gradients_of_one_tensor() -> None:
    """Two losses go through one operation within a function."""
    for kind, call, times in _operations():

        @tf.function(reduce_retracing=True)
        def both(
            inputs: list[tf.Tensor], call: Callable[[list[Any]], list[Any]] = call
        ) -> tuple[Any, Any]:
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(inputs)
                outputs = call(inputs)
                one = tf.add_n([tf.reduce_sum(each) for each in outputs])
                two = 3.0 * one
            return tape.gradient(one, inputs), tape.gradient(two, inputs)

        for _ in range(2):
            first, second = both(_inputs())
            for found, thrice in zip(first, second):
                assert np.allclose(found, times), (kind, found)
                assert np.allclose(thrice, 3.0 * times), (kind, thrice)


def gradients_of_unknown_shapes() -> None:
    """A function may not know how many dimensions its tensors have."""
    for kind, call, times in _operations():

        @tf.function(input_signature=[[tf.TensorSpec(None)] * _COUNT])
        def gradients(
            inputs: list[tf.Tensor], call: Callable[[list[Any]], list[Any]] = call
        ) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                total = tf.add_n([tf.reduce_sum(each) for each in call(inputs)])
            return tape.gradient(total, inputs)

        for found in gradients(_inputs()):
            assert found.shape == _inputs()[0].shape, (kind, found)
            assert np.allclose(found, times), (kind, found)


def local_and_global_gradients() -> None:
    """Pairs of a source and its gradient come in the sources' order."""
    rank, size = hvd.rank(), hvd.size()
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    layer.build((None, 2))
    kernel, bias = (weight.value for weight in layer.weights)
    other, third = tf.Variable(1.0), tf.Variable(2.0)
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(layer(tf.ones([1, 2]))) + other + third * 2.0
        loss *= float(rank + 1)
    sources = [other, kernel, third, bias]
    mean = (size + 1) / 2
    partial = hvd.PartialDistributedGradientTape(tape, local_layers=layer)
    local, combined = partial.get_local_and_global_gradients(loss, sources)
    assert [source is mine for (source, _), mine in zip(local, [kernel, bias])] == [True] * 2
    assert [source is mine for (source, _), mine in zip(combined, [other, third])] == [True] * 2
    for _, found in local:
        assert np.allclose(found, (rank + 1) / size), found
    assert np.allclose([found for _, found in combined], [mean, 2 * mean])
    local, combined = hvd.DistributedGradientTape(tape).get_local_and_global_gradients(
        loss, sources
    )
    assert local == [] and len(combined) == len(sources)


def different_numbers_of_local_sources() -> None:
    """Some layers may be at one rank alone, and their variables may come before the others."""
    rank, size = hvd.rank(), hvd.size()
    mean = (size + 1) / 2
    own = [tf.Variable(1.0) for _ in range(rank + 1)]
    shared, rows = tf.Variable(1.0), tf.Variable([1.0, 1.0])
    sources = [*own, shared, rows]

    def combined() -> list[Any]:
        with tf.GradientTape() as tape:
            loss = tf.add_n(own) + shared + tf.reduce_sum(tf.gather(rows, [0]))
            loss *= float(rank + 1)
        spread = hvd.DistributedGradientTape(tape)
        for each in own:
            spread.register_local_source(each)
        found: list[Any] = spread.gradient(loss, sources, use_generic_names=True)
        return found

    for call in (combined, tf.function(combined)):
        *local, dense, sliced = call()
        assert np.allclose(local, (rank + 1) / size), local
        assert np.allclose(dense, mean), dense
        assert np.allclose(tf.convert_to_tensor(sliced), [mean, 0.0]), sliced


def forms_that_differ() -> None:
    """One rank has sparse_as_dense. All get an error in the first step, and the next step works."""
    table = tf.Variable(tf.ones((4, 3)))
    is_last = hvd.rank() == hvd.size() - 1

    def step(is_dense: bool, own: Callable[[Any], Any]) -> Any:
        def computed() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, [hvd.rank(), 1]))
            tape = hvd.DistributedGradientTape(tape, sparse_as_dense=is_dense)
            return tf.convert_to_tensor(tape.gradient(loss, [table])[0])

        return own(computed)()

    # In a graph only the kernel's library, which may be missing, raises all of TensorFlow's errors.
    ways = (
        (lambda function: function, tf.errors.FailedPreconditionError),
        (tf.function, tf.errors.OpError),
    )
    for own, error in ways:
        for is_dense in (is_last, not is_last):
            text = "average" if is_dense else "give all ranks the same sparse_as_dense"
            expect(error, text, step, is_dense, own)
            found = [step(alike, own).numpy() for alike in (True, False)]
            assert np.allclose(found[0], found[1]), found


def names_without_their_scopes() -> None:
    """Ranks may make an operation in different name scopes, and leave these out of its name."""
    rank, size = hvd.rank(), hvd.size()
    own = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([1, 2]))

    @tf.function
    def both() -> tuple[Any, ...]:
        with tf.name_scope(f"rank{rank}"):
            ones = [tf.ones([2]), tf.ones([2])]
            sums = hvd.grouped_allreduce(ones, op=hvd.Sum, name="a", ignore_name_scope=True)
            rows = hvd.grouped_allgather(ones, name="b", ignore_name_scope=True)
            mixed = [ones[0], own]
            mixed = hvd.grouped_allreduce(mixed, op=hvd.Sum, name="c", ignore_name_scope=True)
            return (*sums, *rows, mixed[0], tf.convert_to_tensor(mixed[1]))

    *sums, first, second, dense, sliced = both()
    assert np.allclose([*sums, dense, sliced[0]], size), (sums, dense, sliced)
    assert len(first) == len(second) == 2 * size


def averages_of_integer_slices() -> None:
    """Averages are quotients as TensorFlow's. Rows of one index add up to the average."""
    rank, size = hvd.rank(), hvd.size()
    for dtype in (tf.uint8, tf.int16, tf.int32, tf.int64, tf.float32):
        rows = tf.constant([[5, 100], [5, 100]], dtype)
        own = tf.IndexedSlices(rows, tf.constant([rank, rank + 1]), tf.constant([size + 1, 2]))
        for reduce in (hvd.allreduce, tf.function(hvd.allreduce)):
            mean = reduce(own, op=hvd.Average)
            assert mean.values.dtype == (rows / rows).dtype, mean.values.dtype
            dense = tf.convert_to_tensor(mean)
            assert np.allclose(dense[0], [5 / size, 100 / size]), (dtype, dense)
            assert size == 1 or np.allclose(dense[1], [10 / size, 200 / size]), (dtype, dense)
            total = reduce(own, op=hvd.Sum)
            assert total.values.dtype == dtype and np.all(total.values == [5, 100])


def lives_after_a_graph() -> None:
    """A job begins after another one, in whose graph an optimizer had several passes a step."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("w", initializer=[1.0])
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
        )
        train = optimizer.minimize(weight * 2.0)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train)
        hvd.shutdown()
    hvd.init()
    assert np.allclose(hvd.allreduce(tf.ones(2), op=hvd.Sum), hvd.size())


def own_callbacks() -> None:
    """A program may derive its callbacks from Horovod's for elastic jobs and for broadcasts."""
    rank = hvd.rank()
    model = keras.Sequential([keras.layers.Dense(1), keras.layers.Dense(1)])
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.build((None, 1))
    model.set_weights([np.full_like(each, rank + 1.0) for each in model.get_weights()])
    state = hvd_keras.elastic.KerasState(model, epoch=0, batch=0, commits=0)

    class Counting(hvd_keras.elastic.CommitStateCallback):
        def commit(self) -> None:
            self.state.commits += 1
            super().commit()

    counting = Counting(state, batches_per_commit=2)
    assert counting.state is state and counting.batches_per_commit == 2
    spread = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    spread.register_local_var(model.layers[0].bias)
    data: np.ndarray = np.zeros(
        (4, 1), np.float32
    )  # The first layer's gradients differ from rank to rank.
    model.fit(data, data, batch_size=1, epochs=2, verbose=0, callbacks=[spread, counting])
    assert state.commits == 4, state.commits
    own, other = (hvd.allgather(layer.bias.value).numpy() for layer in model.layers)
    assert np.all(other == other[0]), other
    assert len(set(own)) == hvd.size(), own


def commits_before_counts() -> None:
    """CommitStateCallback warns only if it commits a batch that is not counted yet."""
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.build((None, 1))
    state = hvd_keras.elastic.KerasState(model, epoch=0, batch=0)
    elastic = hvd_keras.elastic
    commit = elastic.CommitStateCallback(state)
    counts = [elastic.UpdateBatchStateCallback(state), elastic.UpdateEpochStateCallback(state)]
    zeros: np.ndarray = np.zeros((3, 1), np.float32)
    # Keras does not know how many steps this dataset has.
    endless = tf.data.Dataset.from_tensor_slices((zeros, zeros)).batch(1).filter(lambda *_: True)

    def warned(data: Any, callbacks: list[Any]) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
        found = [str(each.message) for each in caught]
        return [each for each in found if each.startswith("CommitStateCallback")]

    known = tf.data.Dataset.from_tensor_slices((zeros, zeros)).batch(1)
    first = warned(known, [commit, *counts])
    assert [each.split()[3].rstrip(",") for each in first] == [
        "UpdateBatchStateCallback",
        "UpdateEpochStateCallback",
    ], first
    assert all("put it last" in each for each in first), first
    assert warned(known, [*counts, commit]) == []
    stops = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(model, "stop_training", True)
    )
    assert warned(known, [stops, *counts, commit]) == []
    # Other calls of fit(), and other states, do not count.
    other = elastic.KerasState(model, epoch=0, batch=0)
    assert warned(known, [elastic.CommitStateCallback(other), *counts]) == []
    [text] = warned(endless, [*counts, elastic.CommitStateCallback(state)])
    assert "give fit() steps_per_epoch" in text, text


def what_callbacks_need_and_say() -> None:
    callbacks = hvd_keras.callbacks
    expect(ValueError, "initial_lr", callbacks.LearningRateScheduleCallback, None, 0.1)
    expect(ValueError, "initial_lr", callbacks.LearningRateWarmupCallback, None)
    expect(ValueError, "fused", hvd.SyncBatchNormalization, fused=None)
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    data = np.ones((2, 1))
    warmup = callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=1, verbose=1)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        model.fit(data, data, batch_size=1, verbose=0, callbacks=[warmup])
    assert ("finished gradual" in said.getvalue()) == (hvd.rank() == 0), said.getvalue()


def answers_that_change() -> None:
    """If nodes may come, a graph asks for the number of ranks again, also after a constant."""
    if not _client.current().nodes_change:
        return
    answers = itertools.count(1)
    graph = tf.function(lambda: _ops.asked(lambda _: next(answers), tf.constant([1.0])))
    assert [int(graph()) for _ in range(3)] == [1, 2, 3]


def parts_that_are_not_offered() -> None:
    for name in ("data", "data.compute_service"):
        part = f"horovod.tensorflow.{name}"
        expect(ModuleNotFoundError, "not offered by Talweg: let", importlib.import_module, part)


def main() -> int:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    run_cases(
        gradients_of_a_group,
        gradients_of_one_tensor,
        gradients_of_unknown_shapes,
        local_and_global_gradients,
        different_numbers_of_local_sources,
        forms_that_differ,
        names_without_their_scopes,
        averages_of_integer_slices,
        lives_after_a_graph,
        own_callbacks,
        what_callbacks_need_and_say,
        commits_before_counts,
        answers_that_change,
        parts_that_are_not_offered,
    )
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
