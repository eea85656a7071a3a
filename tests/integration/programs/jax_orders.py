# SPDX-License-Identifier: Apache-2.0
"""Checks that fifty tensors in opposite orders never block each other, with one thread of XLA.

    jax_orders.py ELEMENTS

With few elements XLA runs a program's calls one after another. With more it runs ready ones.
"""

from __future__ import annotations

import os
import sys
from typing import Any

# It is set before jax is imported, so jax's pools have one thread.
_CPUS = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {_CPUS[os.getpid() % len(_CPUS)]})
os.environ["NPROC"] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import talweg.jax as tw  # noqa: E402

_COUNT = 50
_APART = 10  # So many tensors have a program each.
_STEPS = 3


def main() -> None:
    tw.init()
    elements = int(sys.argv[1])
    names = [f"tensor {number}" for number in range(_COUNT)]
    if tw.rank() % 2 == 1:
        names.reverse()

    @jax.jit
    def separate(given: dict[str, Any]) -> list[Any]:
        return [tw.push_pull(given[name], name, tw.Op.SUM) for name in names]

    @jax.jit
    def together(given: dict[str, Any]) -> list[Any]:
        result = tw.push_pull(dict.fromkeys(names, 0) | given, "together", tw.Op.SUM)
        return [result[name] for name in names]

    begin = jax.jit(
        lambda x, name: tw.push_pull_async(x, f"async {name}", tw.Op.SUM), static_argnums=1
    )
    given = {name: jnp.full(elements, float(name.split()[1])) for name in names}
    for function in (separate, together):
        for _ in range(_STEPS):
            for name, result in zip(names, function(given)):
                np.testing.assert_array_equal(result, tw.size() * given[name])
    # The ranks' programs differ. One rank starts at once what another starts late.
    late = tw.rank() % 2

    @jax.jit
    def crossed(x: Any) -> list[Any]:
        inputs = [x, x]
        for _ in range(12):
            inputs[late] = jnp.sort(jnp.sin(inputs[late]))
        handles = [
            tw.push_pull_async(each, f"crossed {number}", tw.Op.MAX)
            for number, each in enumerate(inputs)
        ]
        return tw.synchronize(handles)

    for result in crossed(jnp.ones(elements)):
        np.testing.assert_array_equal(result, jnp.ones(elements))

    # Programs run one after another, and so do calls that wait. So start all, then collect.
    for _ in range(_STEPS):
        started = {
            name: begin(given[name], name) for name in names if int(name.split()[1]) < _APART
        }
        for name, result in tw.synchronize(started).items():
            np.testing.assert_array_equal(result, tw.size() * given[name])
    tw.shutdown()


if __name__ == "__main__":
    main()
