# SPDX-License-Identifier: Apache-2.0
"""Trains with JAX: see outliver.py.

The ways: `jit` (the whole step is a program), `calls` (gradients are summed between programs). In
both a program has a broadcast, which depends on ranks' numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import talweg
import talweg.jax as tw
from outliver import Program

_RATE = 0.0002


def loss_of(weights: Any, inputs: Any) -> Any:
    outputs = inputs @ weights["first"] @ weights["second"]
    return jnp.mean((outputs - jnp.sum(inputs, axis=1, keepdims=True)) ** 2)


def update(weights: Any, gradients: Any) -> Any:
    # The same at all ranks, as it comes from one of them.
    rate = tw.broadcast(jnp.float32(_RATE), 0, name="rate")
    return jax.tree_util.tree_map(lambda weight, each: weight - rate * each, weights, gradients)


def train(program: Program, way: str) -> None:
    keys = jax.random.split(jax.random.PRNGKey(talweg.rank()))  # begin() makes them alike.
    weights = {
        "first": jax.random.normal(keys[0], (20, 2000)) / 5,
        "second": jax.random.normal(keys[1], (2000, 1)) / 50,
    }
    state = talweg.State(weights=weights, step=0, stopped=False)

    @jax.jit
    def step(weights: Any, inputs: Any) -> Any:
        gradients = jax.grad(loss_of)(weights, inputs)
        return update(weights, tw.push_pull(gradients, f"{way}.gradients"))

    gradients_of, updated = jax.jit(jax.grad(loss_of)), jax.jit(update)

    def make_step(number: int) -> None:
        inputs = jax.random.normal(jax.random.PRNGKey(1000 * talweg.rank() + number), (8, 20))
        # What has failed must not come into the state.
        with tw.talweg_errors():
            if way == "jit":
                weights = step(state.weights, inputs)  # It goes on when this returns.
                program.kill_if_told()
            else:
                gradients = gradients_of(state.weights, inputs)
                program.kill_if_told()
                gradients = tw.push_pull(gradients, f"{way}.gradients")
                weights = updated(state.weights, gradients)
        state.weights = weights

    def prepare() -> Callable[[int], None]:
        return make_step

    def of_state() -> Iterator[np.ndarray]:
        for each in jax.tree_util.tree_leaves(state.weights):
            yield np.asarray(each)

    program.run(way, state, prepare, of_state)


def main() -> None:
    program = Program()
    talweg.init()
    for way in program.ways:
        train(program, way)
    talweg.shutdown()


if __name__ == "__main__":
    main()
