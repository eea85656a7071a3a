# SPDX-License-Identifier: Apache-2.0
"""Trains with JAX. See outliver.py.

The ways are `errors` and `bare`. With `errors` the step is a program in talweg_errors(), with a
broadcast that depends on ranks' numbers. With `bare` it is a program of reductions, which goes on
when the call has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import talweg
import talweg.jax as tw
from outliver import Program, main

_RATE = 0.0002


def loss_of(weights: Any, inputs: Any) -> Any:
    outputs = inputs @ weights["first"] @ weights["second"]
    return jnp.mean((outputs - jnp.sum(inputs, axis=1, keepdims=True)) ** 2)


def train(program: Program, way: str) -> None:
    keys = jax.random.split(jax.random.PRNGKey(talweg.rank()))  # begin() makes weights equal.
    weights = {
        "first": jax.random.normal(keys[0], (20, 2000)) / 5,
        "second": jax.random.normal(keys[1], (2000, 1)) / 50,
    }
    state = talweg.State(weights=weights, step=0, stopped=False)

    @jax.jit
    def step(weights: Any, inputs: Any) -> Any:
        gradients = jax.grad(loss_of)(weights, inputs)
        gradients = tw.push_pull(gradients, f"{way}.gradients")
        rate = jnp.float32(_RATE)
        if way == "errors":
            rate = tw.broadcast(rate, 0, name="rate")
        return jax.tree_util.tree_map(lambda weight, each: weight - rate * each, weights, gradients)

    def make_step(number: int) -> None:
        # end_step() has waited.
        assert all(each.is_ready() for each in jax.tree_util.tree_leaves(state.weights))
        inputs = jax.random.normal(jax.random.PRNGKey(1000 * talweg.rank() + number), (8, 20))
        if way == "bare":
            state.weights = step(state.weights, inputs)
            program.kill_if_told()
            return
        with tw.talweg_errors():
            weights = step(state.weights, inputs)
            program.kill_if_told()
        state.weights = weights  # Only here, because a failed result must not get into the state.

    def prepare() -> Callable[[int], None]:
        return make_step

    def of_state() -> Iterator[np.ndarray]:
        for each in jax.tree_util.tree_leaves(state.weights):
            yield np.asarray(each)

    program.run(way, state, prepare, of_state)


if __name__ == "__main__":
    main(train)
