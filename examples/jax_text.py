# SPDX-License-Identifier: Apache-2.0
"""Trains a small network to predict the next character of Python's standard library.

    talweg run --nodes 2 --ranks-per-node 2 -- python examples/jax_text.py
    python examples/jax_text.py --single      # The same, in one process, without Talweg.

The global batch is the same in both cases. With N ranks, each takes an Nth of every batch. The
example needs jax and optax.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

_CONTEXT = 16  # The network predicts a character from so many characters before it.
_CHARACTERS = 96  # The printable characters, and one number for all others.
_TEXT_BYTES = 2_000_000


def load_text() -> np.ndarray:
    """Returns the library's sources one after another, as numbers below _CHARACTERS: int32[n]."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(source.read_bytes() for source in sources)[:_TEXT_BYTES]
    numbers = np.frombuffer(text, np.uint8).astype(np.int32) - 32
    return np.where((numbers >= 0) & (numbers < _CHARACTERS - 1), numbers, _CHARACTERS - 1)


def build_parameters(seed: int) -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(seed), 4)

    def layer(key: Any, given: int, made: int) -> dict[str, Any]:
        kernel = jax.random.normal(key, (given, made)) / math.sqrt(given)
        return {"kernel": kernel, "bias": jnp.zeros(made)}

    return {
        "embedding": 0.1 * jax.random.normal(keys[0], (_CHARACTERS, 24)),
        "first": layer(keys[1], _CONTEXT * 24, 256),
        "second": layer(keys[2], 256, 128),
        "last": layer(keys[3], 128, _CHARACTERS),
    }


def loss_of(parameters: dict[str, Any], windows: jax.Array) -> jax.Array:
    """Returns the mean cross entropy, in nats, of the last character of each window.

    Windows are int32[n, _CONTEXT + 1].
    """
    values = parameters["embedding"][windows[:, :-1]].reshape(len(windows), -1)
    for name in ("first", "second"):
        values = jax.nn.gelu(values @ parameters[name]["kernel"] + parameters[name]["bias"])
    logits = values @ parameters["last"]["kernel"] + parameters["last"]["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, -1]).mean()


def windows_at(text: np.ndarray, places: np.ndarray) -> np.ndarray:
    return text[places[:, None] + np.arange(_CONTEXT + 1)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--single", action="store_true", help="one process, without Talweg")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=512, help="global batch (default 512)")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--output", help="directory for what the run measured, one JSON a rank")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    rank, size = 0, 1
    optimizer: Any = optax.adam(arguments.lr)
    # The seeds differ on purpose. The broadcast makes parameters equal.
    parameters = build_parameters(seed=0)
    if not arguments.single:
        import talweg.jax as tw

        tw.init()
        rank, size = tw.rank(), tw.size()
        optimizer = tw.DistributedOptimizer(optimizer)
        parameters = tw.broadcast_parameters(build_parameters(seed=rank))
    if arguments.batch % size != 0:
        sys.exit(f"--batch is {arguments.batch}; it must be a multiple of the {size} ranks")

    @jax.jit
    def step(parameters: Any, state: Any, windows: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, windows)
        updates, state = optimizer.update(gradients, state, parameters)
        if not arguments.single:
            loss = tw.push_pull(loss, "loss")
        return optax.apply_updates(parameters, updates), state, loss

    text = load_text()
    training, held_out = text[: -len(text) // 10], text[-len(text) // 10 :]
    state = optimizer.init(parameters)
    share = arguments.batch // size
    losses: list[float] = []
    begin_s = time.monotonic()
    for number in range(arguments.steps):
        places = np.random.default_rng(number).integers(
            0, len(training) - _CONTEXT - 1, arguments.batch
        )
        mine = places[rank * share : (rank + 1) * share]
        parameters, state, loss = step(parameters, state, windows_at(training, mine))
        losses.append(float(loss))
        if rank == 0 and (len(losses) % 50 == 0 or len(losses) == arguments.steps):
            print(f"step {len(losses)}/{arguments.steps} loss {losses[-1]:.4f}", flush=True)
    seconds = time.monotonic() - begin_s

    places = np.random.default_rng(arguments.steps).integers(0, len(held_out) - _CONTEXT - 1, 4096)
    test_loss = float(jax.jit(loss_of)(parameters, windows_at(held_out, places)))
    if rank == 0:
        print(f"test loss {test_loss:.4f}, {test_loss / math.log(2):.2f} bits a character")
    if arguments.output:
        weights = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(parameters)])
        result = {
            "rank": rank,
            "size": size,
            "losses": losses,
            "test_loss": test_loss,
            "weights_sha256": hashlib.sha256(weights.tobytes()).hexdigest(),
            "steps_a_second": arguments.steps / seconds,
        }
        Path(arguments.output).mkdir(parents=True, exist_ok=True)
        (Path(arguments.output) / f"rank{rank}.json").write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
