# SPDX-License-Identifier: Apache-2.0
"""Compares every call of talweg.jax with NumPy, in any job."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import talweg.jax as tw

_EAGER_AND_JIT: list[Callable[[Any], Any]] = [lambda function: function, jax.jit]


def of_rank(rank: int, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Returns the array of a rank: small whole numbers, so that sums are exact in every dtype."""
    values = np.random.default_rng(1000 + rank).integers(0, 4, shape)
    return np.asarray(values).astype(dtype)


def all_of(shape: tuple[int, ...], dtype: Any = np.float32) -> list[np.ndarray]:
    return [of_rank(rank, shape, dtype) for rank in range(tw.size())]


def same(result: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.asarray(result), np.asarray(expected))
    assert result.dtype == expected.dtype, (result.dtype, expected.dtype)


_COMBINED: dict[tw.Op, Callable[[Any], Any]] = {
    tw.Op.SUM: sum,
    tw.Op.MIN: functools.partial(np.min, axis=0),
    tw.Op.MAX: functools.partial(np.max, axis=0),
    tw.Op.PRODUCT: functools.partial(np.prod, axis=0),
}
_DTYPES = [np.float32, np.float16, jnp.bfloat16, np.int8, np.uint8, np.int16, np.uint16]
_DTYPES += [np.int32, np.uint32]


def check_reductions() -> None:
    for wrap, dtypes in ((_EAGER_AND_JIT[0], _DTYPES[:1]), (jax.jit, _DTYPES)):
        every = {np.dtype(dtype).name: all_of((3, 5), dtype) for dtype in dtypes}
        flags = [value > 1 for value in all_of((7,))]

        def call(given: Any, flag: Any, word: str = f"{wrap is jax.jit}") -> Any:
            results = [tw.push_pull(given, f"{op.name}.{word}", op) for op in _COMBINED]
            return results, tw.push_pull(flag, f"any.{word}", tw.Op.MAX)

        mine = {name: jnp.asarray(each[tw.rank()]) for name, each in every.items()}
        results, any_flag = wrap(call)(mine, jnp.asarray(flags[tw.rank()]))
        for op, result in zip(_COMBINED, results):
            for name, each in every.items():
                same(result[name], np.asarray(_COMBINED[op](each)).astype(each[0].dtype))
        same(any_flag, np.any(flags, axis=0))


def check_float64() -> None:
    with jax.enable_x64(True):
        every = all_of((4,), np.float64)
        mine = jnp.asarray(every[tw.rank()])
        assert mine.dtype == np.float64
        same(tw.push_pull(mine, "f64", tw.Op.SUM), sum(every))
        whole = all_of((4,), np.int64)
        same(tw.push_pull(jnp.asarray(whole[tw.rank()]), "i64", tw.Op.SUM), sum(whole))


def check_factors() -> None:
    every = all_of((6,))
    for wrap in _EAGER_AND_JIT:
        call = wrap(
            functools.partial(
                tw.push_pull,
                name=f"factors.{wrap is jax.jit}",
                op=tw.Op.SUM,
                prescale_factor=0.5,
                postscale_factor=4.0,
            )
        )
        same(call(jnp.asarray(every[tw.rank()])), 2 * sum(every))


def check_trees() -> None:
    def tree(rank: int) -> Any:
        return {
            "dense": {"kernel": of_rank(rank, (40, 30)), "bias": of_rank(rank, (30,))},
            "scale": of_rank(rank, ()),
            "counts": (of_rank(rank, (3,), np.int32), of_rank(rank, (0,))),
        }

    total = jax.tree.map(lambda *leaves: sum(leaves), *[tree(rank) for rank in range(tw.size())])
    for wrap in _EAGER_AND_JIT:
        for name in ("tree", None):
            call = wrap(functools.partial(tw.push_pull, name=name, op=tw.Op.SUM))
            jax.tree.map(same, call(tree(tw.rank())), total)
        restored = wrap(functools.partial(tw.broadcast, root_rank=tw.size() - 1))(tree(tw.rank()))
        jax.tree.map(same, restored, tree(tw.size() - 1))
    jax.tree.map(same, tw.broadcast_parameters(tree(tw.rank())), tree(0))


def check_async() -> None:
    """Rounds start in one program, or in none, and are collected in another one."""
    every = all_of((5,))
    mine = jnp.asarray(every[tw.rank()])

    def start(array: Any, word: str) -> Any:
        return [
            tw.push_pull_async({"x": array * factor}, f"async {word} {factor}", tw.Op.SUM)
            for factor in (1, 2)
        ]

    for _ in range(2):
        eager = start(mine, "eager")
        compiled = jax.jit(functools.partial(start, word="compiled"))(mine)
        for handles in (eager, compiled):
            for factor, result in zip((1, 2), tw.synchronize(handles)):
                same(result["x"], factor * sum(every))
        within = jax.jit(lambda array: tw.synchronize(start(array, "within")))(mine)
        same(within[1]["x"], 2 * sum(every))


def check_rows() -> None:
    size, rank = tw.size(), tw.rank()
    root = size - 1
    for wrap in _EAGER_AND_JIT:
        every = all_of((2, 3))
        mine = jnp.asarray(every[rank])
        same(wrap(functools.partial(tw.all_gather, name="gather"))(mine), np.concatenate(every))
        gathered = wrap(functools.partial(tw.gather, root_rank=root, name="to root"))(mine)
        same(gathered, np.concatenate(every) * np.float32(rank == root))

        uneven = [of_rank(other, (other + 1, 2), np.int16) for other in range(size)]
        rows = tuple(range(1, size + 1))
        call = wrap(functools.partial(tw.all_gather, name="uneven", rows=rows))
        same(call(jnp.asarray(uneven[rank])), np.concatenate(uneven))

        wide = all_of((size + 3, 2))
        shares = np.array_split(sum(wide), size)
        mine = jnp.asarray(wide[rank])
        call = wrap(functools.partial(tw.reduce_scatter, name="shares", op=tw.Op.SUM))
        same(call(mine), shares[rank])
        call = wrap(functools.partial(tw.scatter, root_rank=root, name="from root"))
        same(call(mine), np.array_split(wide[root], size)[rank])
        reduced = wrap(functools.partial(tw.reduce, root_rank=root, name="reduce", op=tw.Op.SUM))
        same(reduced(mine), sum(wide) * np.float32(rank == root))


def check_calls_without_a_name() -> None:
    """Calls without a name are matched by their order, whatever their shapes and rows."""
    size, rank = tw.size(), tw.rank()
    for wrap in _EAGER_AND_JIT:
        for count in (1, 3):
            uneven = [of_rank(other, (other + count, 2)) for other in range(size)]
            rows = tuple(range(count, size + count))
            mine = jnp.asarray(uneven[rank])
            same(wrap(functools.partial(tw.all_gather, rows=rows))(mine), np.concatenate(uneven))
            gathered = wrap(functools.partial(tw.gather, rows=rows))(mine)
            same(gathered, np.concatenate(uneven) * np.float32(rank == 0))
            sent = [[giver + count] * size for giver in range(size)]
            every = [of_rank(giver, (sum(sent[giver]), 2)) for giver in range(size)]

            def exchange(array: Any, sent: Any = sent) -> Any:
                return tw.all_to_all(array, sent)[0]

            got = [
                np.split(every[giver], np.cumsum(sent[giver])[:-1])[rank] for giver in range(size)
            ]
            same(wrap(exchange)(jnp.asarray(every[rank])), np.concatenate(got))
            reduced = wrap(functools.partial(tw.push_pull, op=tw.Op.SUM))(
                {"a": jnp.full(count, 1.0 + rank), "b": jnp.full((2, count), rank)}
            )
            total = sum(range(size))
            same(reduced["a"], np.full(count, size + total, np.float32))
            same(reduced["b"], np.full((2, count), total, np.int32))


def check_all_to_all() -> None:
    size, rank = tw.size(), tw.rank()
    for wrap in _EAGER_AND_JIT:
        every = all_of((size * 2, 3))
        call = wrap(lambda array: tw.all_to_all(array, name="even")[0])
        expected = np.concatenate([each[2 * rank : 2 * rank + 2] for each in every])
        same(call(jnp.asarray(every[rank])), expected)

        # Rank r sends r + i rows to rank i.
        sent = [[giver + taker for taker in range(size)] for giver in range(size)]
        every = [of_rank(giver, (sum(sent[giver]), 2)) for giver in range(size)]
        received = [sent[giver][rank] for giver in range(size)]

        def uneven(array: Any, sent: Any = sent, received: Any = received) -> Any:
            result, counts = tw.all_to_all(array, sent, name="uneven")
            assert counts == received
            return result

        parts = [np.split(every[giver], np.cumsum(sent[giver])[:-1])[rank] for giver in range(size)]
        same(wrap(uneven)(jnp.asarray(every[rank])), np.concatenate(parts))


def check_copied_dtypes() -> None:
    for dtype in (np.complex64, jnp.float8_e4m3fn, np.bool_):
        every = all_of((2, 2), dtype)
        mine = jnp.asarray(every[tw.rank()])
        same(tw.all_gather(mine, f"copied.{np.dtype(dtype).name}"), np.concatenate(every))


def check_random_keys() -> None:
    """Keys are copied as what they are, also beside arrays, and rows of keys are rows."""
    size, rank = tw.size(), tw.rank()

    def same_keys(result: Any, expected: Any) -> None:
        assert result.dtype == expected.dtype and result.shape == expected.shape, result
        same(jax.random.key_data(result), jax.random.key_data(expected))

    for wrap in _EAGER_AND_JIT:
        for name in ("keys", None):
            tree = {"dropout": jax.random.key(rank), "kernel": jnp.full(3, rank)}
            copied = wrap(functools.partial(tw.broadcast, root_rank=size - 1, name=name))(tree)
            same_keys(copied["dropout"], jax.random.key(size - 1))
            same(copied["kernel"], jnp.full(3, size - 1))
        wide = [jax.random.split(jax.random.key(each, impl="rbg"), 2) for each in range(size)]
        call = wrap(functools.partial(tw.all_gather, name="rows of keys"))
        same_keys(call(wide[rank]), jnp.concatenate(wide))


def check_sets() -> None:
    chosen = tw.ProcessSet({0, tw.size() - 1})
    every = all_of((5,))
    if chosen.included():
        ranks = chosen.ranks
        expected = sum(every[rank] for rank in ranks)
        for wrap in _EAGER_AND_JIT:
            mine = jnp.asarray(every[tw.rank()])
            call = wrap(
                functools.partial(tw.push_pull, name="set", op=tw.Op.SUM, process_set=chosen)
            )
            same(call(mine), expected)
            call = wrap(functools.partial(tw.all_gather, name="set", process_set=chosen))
            same(call(mine), np.concatenate([every[rank] for rank in ranks]))
    same(tw.push_pull(jnp.asarray(every[tw.rank()]), "set", tw.Op.SUM), sum(every))


def check_gradients() -> None:
    """A gradient is that of the sum of all ranks' losses."""
    size, rank = tw.size(), tw.rank()
    weights = all_of((size * 2, 3))  # Rank r's loss is the sum of weights[r] times its result.
    mine = jnp.asarray(of_rank(rank + 50, (size * 2, 3)))
    total = sum(weights)

    def gradient(call: Callable[[Any], Any], weight: Any) -> Any:
        function = jax.grad(lambda array: jnp.sum(call(array) * weight))
        eager, compiled = function(mine), jax.jit(function)(mine)
        same(eager, compiled)
        return eager

    own = jnp.asarray(weights[rank])
    same(gradient(lambda x: tw.push_pull(x, "d.sum", tw.Op.SUM), own), total)
    average = gradient(lambda x: tw.push_pull(x, "d.average"), own)
    np.testing.assert_allclose(average, total / size, rtol=1e-6)
    same(gradient(lambda x: tw.broadcast(x, 0, "d.broadcast"), own), total * np.float32(rank == 0))
    same(gradient(lambda x: tw.reduce(x, 0, "d.reduce", tw.Op.SUM), own), weights[0])
    tall = np.tile(weights[rank], (size, 1))
    towards = sum(np.tile(weights[other], (size, 1)) for other in range(size))
    expected = towards[rank * size * 2 : (rank + 1) * size * 2]
    same(gradient(lambda x: tw.all_gather(x, "d.gather"), jnp.asarray(tall)), expected)
    shares = [weights[other][:2] for other in range(size)]
    share = jnp.asarray(shares[rank])
    same(
        gradient(lambda x: tw.reduce_scatter(x, "d.scatter", tw.Op.SUM), share),
        np.concatenate(shares),
    )
    swapped = np.concatenate([weights[other][2 * rank : 2 * rank + 2] for other in range(size)])
    same(gradient(lambda x: tw.all_to_all(x, name="d.all")[0], own), swapped)


def check_loops() -> None:
    """A scan, a while loop and a condition repeat a name. Two equal calls stay two calls."""
    size, rank = tw.size(), tw.rank()

    def accumulate(carry: Any, value: Any) -> Any:
        carry = carry + tw.push_pull(value, "scan", tw.Op.SUM)
        return carry, carry

    values = np.stack(all_of((6, 4)))  # One array for each rank.
    last, every = jax.jit(lambda xs: jax.lax.scan(accumulate, jnp.zeros(4), xs))(values[rank])
    expected = np.cumsum(values.sum(axis=0), axis=0)
    same(every, expected)
    same(last, expected[-1])

    doubled = jax.jit(
        lambda x: jax.lax.while_loop(
            lambda state: state[0] < 3,
            lambda state: (state[0] + 1, tw.push_pull(state[1], "while", tw.Op.SUM)),
            (0, x),
        )
    )(jnp.ones(2))[1]
    same(doubled, np.full(2, size**3, np.float32))

    conditional = jax.jit(
        lambda flag, x: jax.lax.cond(
            flag, lambda y: tw.push_pull(y, "cond", tw.Op.SUM), lambda y: y, x
        )
    )
    same(conditional(True, jnp.ones(2)), np.full(2, size, np.float32))
    same(conditional(False, jnp.ones(2)), np.ones(2, np.float32))

    @jax.jit
    def twice(x: Any) -> Any:
        return tw.push_pull(x, "twice", tw.Op.SUM), tw.push_pull(x, "twice", tw.Op.SUM)

    @jax.jit
    def unused(x: Any) -> Any:
        tw.push_pull(x, "unused", tw.Op.SUM)
        return x

    x = jnp.ones(3)
    for function, count in ((twice, 2), (unused, 1)):
        compiled = function.lower(x).compile().as_text()
        assert compiled.count('custom_call_target="talweg_start"') == count, compiled
        jax.block_until_ready(function(x))


def check_gradients_of_loops() -> None:
    """Gradients go through a scan, and through remat, which repeats a call."""
    size, rank = tw.size(), tw.rank()
    for word, wrap in (("plain", lambda function: function), ("remat", jax.checkpoint)):

        def loss(first: Any, word: str = word, wrap: Any = wrap) -> Any:
            def body(carry: Any, _: Any) -> Any:
                return tw.push_pull(carry, f"d.scan.{word}", tw.Op.SUM) * 0.5, None

            return jnp.sum(jax.lax.scan(wrap(body), first, None, length=3)[0])

        same(jax.jit(jax.grad(loss))(jnp.ones(2)), np.full(2, (size / 2) ** 3, np.float32))

    def sine(weights: Any) -> Any:
        total = jax.checkpoint(lambda w: jnp.sin(tw.push_pull(w, "d.remat", tw.Op.SUM)))
        return jnp.sum(total(weights * (rank + 1)))

    weights = jnp.arange(3.0) / 10
    factor = size * (size + 1) / 2
    expected = np.cos(np.arange(3) / 10 * factor) * size * (rank + 1)
    np.testing.assert_allclose(jax.jit(jax.grad(sine))(weights), expected, rtol=1e-5)
    # Integers beside floats have no gradient.
    tree = {"whole": jnp.arange(3), "float": jnp.ones(2)}
    mixed = jax.grad(lambda t: tw.push_pull(t, "mixed", tw.Op.SUM)["float"].sum(), allow_int=True)
    same(mixed(tree)["float"], np.full(2, size, np.float32))


def check_gradients_of_gradients() -> None:
    """A penalty on a gradient has the gradient that one process computes with all ranks' inputs."""
    size, rank = tw.size(), tw.rank()

    def loss(weights: Any, x: Any) -> Any:
        return (tw.push_pull(weights * x, "penalized", tw.Op.SUM) ** 2).sum()

    def penalty(weights: Any, x: Any) -> Any:
        return (jax.grad(loss)(weights, x) ** 2).sum()

    weights = np.array([1, 2, 3], np.float32)
    inputs: np.ndarray = np.arange(1, size + 1, dtype=np.float32)
    # Rank r's penalty is (2 n y x_r)^2, because each of n losses has y = w (x_1 + ... + x_n).
    y = weights * inputs.sum()
    expected = sum(8 * size**2 * y * x**2 * inputs[rank] for x in inputs)
    for wrap in _EAGER_AND_JIT:
        gradient = wrap(jax.grad(penalty))(jnp.asarray(weights), inputs[rank])
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)

    calls: dict[str, Callable[[Any], Any]] = {
        "gathered": lambda x: tw.all_gather(x, "gathered twice"),
        "shared": lambda x: tw.reduce_scatter(x, "shared twice"),
        "broadcast": lambda x: tw.broadcast(x, 0, "broadcast twice"),
        "exchanged": lambda x: tw.all_to_all(x, name="exchanged twice")[0],
    }
    for name, call in calls.items():

        def cubes(x: Any, call: Callable[[Any], Any] = call) -> Any:
            return (call(x) ** 3).sum()

        def of_gradient(x: Any, cubes: Callable[[Any], Any] = cubes) -> Any:
            return (jax.grad(cubes)(x) ** 2).sum()

        assert jnp.isfinite(jax.grad(of_gradient)(jnp.ones((2 * size, 2)))).all(), name


def check_compiled_ahead_of_time() -> None:
    x = jnp.full(3, 1.0 + tw.rank())
    step = jax.jit(lambda x: tw.push_pull(x, "ahead", tw.Op.SUM)).lower(x).compile()
    for _ in range(3):
        same(step(x), np.full(3, sum(range(1, tw.size() + 1)), np.float32))


def check_multi_steps() -> None:
    """optax accumulates two steps, and only their average travels."""
    optimizer = optax.MultiSteps(tw.DistributedOptimizer(optax.sgd(1.0)), 2)
    parameters = {"a": jnp.zeros(2)}
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state

    for number in range(4):
        gradients = {"a": jnp.full(2, float(tw.rank() + number))}
        parameters, state = step(parameters, state, gradients)
    mean = (tw.size() - 1) / 2
    same(parameters["a"], np.full(2, -(mean + 0.5) - (mean + 2.5), np.float32))


def check_integers_without_gradients() -> None:
    """Gradients of integers have the dtype float0. They stay in the tree, and nothing is sent."""
    is_float = {"steps": False, "w": True}
    optimizer = tw.DistributedOptimizer(optax.masked(optax.sgd(1.0), is_float))
    params = {"steps": jnp.arange(3), "w": jnp.zeros(3)}
    factor = float(tw.rank() + 1)

    def gradients(params: Any) -> Any:
        def loss(of: Any) -> Any:
            return (of["w"] * of["steps"]).sum() * factor

        return jax.grad(loss, allow_int=True)(params)

    def step(params: Any, state: Any) -> Any:
        return optimizer.update(gradients(params), state, params)[0]

    mean = (tw.size() + 1) / 2
    for run in (step, jax.jit(step)):
        updates = run(params, optimizer.init(params))
        same(updates["w"], -mean * np.arange(3, dtype=np.float32))
        assert updates["steps"].dtype == jax.dtypes.float0, updates
    reduced = tw.reduce(gradients(params), 0, "of the root")
    summed = tw.synchronize(tw.push_pull_async(gradients(params), "async"))
    for result in (reduced, summed):
        assert result["steps"].dtype == jax.dtypes.float0 and result["steps"].shape == (3,)
    same(summed["w"], mean * np.arange(3, dtype=np.float32))


def check_order_of_one_name() -> None:
    """Calls that share only a name keep their order, within a program and across programs."""
    size, rank = tw.size(), tw.rank()

    @jax.jit
    def steps(first: Any) -> Any:
        results = []
        for step in range(8):
            # Only the name orders these calls.
            results.append(tw.push_pull(first * (step + 1), "steps", tw.Op.SUM))
        return results

    for repetition in range(4):
        given = jnp.full(1024, float(rank + repetition))
        for step, result in enumerate(steps(given)):
            total = sum(other + repetition for other in range(size)) * (step + 1)
            same(result, np.full(1024, total, np.float32))


def check_compiled_once() -> None:
    traced = []

    @jax.jit
    def step(x: Any) -> Any:
        traced.append(1)
        return tw.push_pull(x, "once")

    for value in range(3):
        step(jnp.full(3, float(value))).block_until_ready()
    assert traced == [1], traced
    assert step._cache_size() == 1


def main() -> None:
    tw.init()
    for name, check in sorted(globals().items()):
        if name.startswith("check_"):
            check()
            print(f"{name}: ok", flush=True)
    tw.shutdown()


if __name__ == "__main__":
    main()
