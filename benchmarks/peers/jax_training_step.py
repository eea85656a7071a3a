# SPDX-License-Identifier: Apache-2.0
"""One rank that makes JAX's training steps as ./bench orders (control.h).

    jax_training_step.py none|distributed|talweg [RANK SIZE STORE]

In an order "dtype" is the model and "bytes" the batch. `none` trains without communicating.
`distributed` is JAX's own way: jax.distributed joins the processes, the batch is sharded over their
devices, the model is replicated, and XLA puts an all-reduce over Gloo into the step. `talweg` uses
talweg.jax.DistributedOptimizer.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from control import Control, Order
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# The models of training_step.py. mlp has 24.9 M parameters. `narrow` has 1.3 M in 82 arrays.
_WIDTHS = {
    "mlp": (1024, 4096, 4096, 960, 10),
    "narrow": (128,) + (180,) * 39 + (128, 10),
    "tiny": (8, 16, 10),
}


def _parameters(widths: tuple[int, ...]) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    return [
        {
            "kernel": random.normal(0, 1 / math.sqrt(given), (given, made)).astype(np.float32),
            "bias": np.zeros(made, np.float32),
        }
        for given, made in zip(widths, widths[1:])
    ]


def _loss(parameters: list[dict[str, Any]], values: Any, labels: Any) -> Any:
    for number, layer in enumerate(parameters):
        values = values @ layer["kernel"] + layer["bias"]
        if number + 1 < len(parameters):
            values = jax.nn.relu(values)
    return optax.softmax_cross_entropy_with_integer_labels(values, labels).mean()


class Trainer:
    """A model and all that a step needs."""

    def __init__(self, manner: str, model: str, batch: int, rank: int) -> None:
        widths = _WIDTHS[model]
        optimizer: Any = optax.sgd(0.01, momentum=0.9)
        if manner == "talweg":
            import talweg.jax

            optimizer = talweg.jax.DistributedOptimizer(optimizer, f"{model}.{batch}")
        random = np.random.default_rng(1 + rank)
        inputs = random.normal(size=(batch, widths[0])).astype(np.float32)
        labels = random.integers(0, widths[-1], batch).astype(np.int32)

        def step(parameters: Any, state: Any, inputs: Any, labels: Any) -> Any:
            gradients = jax.grad(_loss)(parameters, inputs, labels)
            updates, state = optimizer.update(gradients, state, parameters)
            return optax.apply_updates(parameters, updates), state

        parameters: Any = _parameters(widths)
        self._batch: Any = (jnp.asarray(inputs), jnp.asarray(labels))
        if manner == "distributed":
            mesh = Mesh(np.asarray(jax.devices()), ("ranks",))
            whole = NamedSharding(mesh, PartitionSpec())
            rows = NamedSharding(mesh, PartitionSpec("ranks"))
            parameters = jax.tree.map(
                lambda each: jax.make_array_from_process_local_data(whole, each, each.shape),
                parameters,
            )
            self._batch = tuple(
                jax.make_array_from_process_local_data(rows, each) for each in (inputs, labels)
            )
        self._parameters = parameters
        self._state = jax.jit(optimizer.init)(parameters)
        self._step = jax.jit(step, donate_argnums=(0, 1))

    def step(self) -> None:
        self._parameters, self._state = self._step(self._parameters, self._state, *self._batch)
        jax.block_until_ready((self._parameters, self._state))


def _coordinator(rank: int, store: str) -> str:
    """Returns an address with a free port. Rank 0 finds it, and the others read it from a file."""
    place = Path(store + ".address")
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        written = place.with_suffix(".written")
        written.write_text(address)
        written.rename(place)
    while not place.exists():
        time.sleep(0.01)
    return place.read_text()


def main() -> None:
    manner, place = sys.argv[1], sys.argv[2:]
    rank = int(place[0]) if place else -1
    if manner == "talweg":
        import talweg.jax

        talweg.jax.init()
        rank = talweg.jax.rank()
    elif manner == "distributed":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(_coordinator(rank, place[2]), int(place[1]), rank)
    trainers: list[Trainer] = []

    def prepare(order: Order) -> None:
        trainers.clear()
        trainers.append(Trainer(manner, order.dtype, order.sizes[0], rank))

    Control(rank).serve(prepare, lambda: trainers[0].step())


if __name__ == "__main__":
    main()
