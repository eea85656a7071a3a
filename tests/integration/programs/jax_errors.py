# SPDX-License-Identifier: Apache-2.0
"""Makes wrong calls of talweg.jax. Each raises an error that names it, and the next call works."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import talweg
import talweg.jax as tw
from expected_errors import expect


def check_before_init() -> None:
    expect(talweg.NotInitialized, "talweg.init()", tw.push_pull, jnp.ones(2), "early")


def works(name: str) -> None:
    np.testing.assert_array_equal(tw.push_pull(jnp.ones(2), name), np.ones(2))


def run(program: Any, x: Any) -> Any:
    with tw.talweg_errors():
        return jax.block_until_ready(program(x))


def check_shapes_that_differ() -> None:
    """The error names both sides, eagerly and in a program, and later calls of the program work."""
    mine = jnp.ones(3 + (tw.rank() == tw.size() - 1))
    expect(talweg.Mismatch, "f32[4]", tw.push_pull, mine, "shapes", tw.Op.SUM)
    expect(talweg.Mismatch, "f32[3]", tw.push_pull, mine, "shapes too", tw.Op.SUM)
    size, is_last = tw.size(), tw.rank() == tw.size() - 1
    for call in (tw.push_pull, tw.reduce_scatter):
        for shape in ((size, 6), (6 * size, 1)):  # Both have as many elements, also in each part.
            turned = jnp.ones((size, 6) if is_last else (6 * size, 1))
            expect(talweg.Mismatch, str(list(shape)), call, turned, f"turned {shape}")
    works("after shapes")

    @jax.jit
    def step(x: Any, other: Any) -> Any:
        return tw.push_pull(x, "in a program"), tw.push_pull(other, "beside it")

    def run() -> None:
        with tw.talweg_errors():
            step(mine, jnp.ones(2))

    expect(talweg.Mismatch, "'in a program'", run)
    with tw.talweg_errors():
        beside = jax.jit(lambda x: tw.push_pull(x, "beside it"))(jnp.ones(2))
    np.testing.assert_array_equal(beside, np.ones(2))


def check_names_after_a_mismatch() -> None:
    """A name on which ranks have disagreed is free again, also for another shape."""
    mine = jnp.ones(3 + (tw.rank() == tw.size() - 1))
    program = jax.jit(lambda x: tw.push_pull(x, "once in a program"))
    for _ in range(2):
        expect(talweg.Mismatch, "f32[4]", tw.push_pull, mine, "once")
        expect(talweg.Mismatch, "f32[4]", run, program, mine)
    for _ in range(2):
        works("once")
        np.testing.assert_array_equal(run(program, jnp.ones(2)), np.ones(2))


def check_agreed_names() -> None:
    """One rank uses an agreed name for something else. All get the error, and the name is free."""
    size, is_last = tw.size(), tw.rank() == tw.size() - 1
    shorter, longer = jnp.ones(2 * size), jnp.ones(3 * size)
    for call in (tw.push_pull, tw.broadcast, tw.reduce_scatter, tw.all_gather, tw.all_to_all):
        name = f"agreed by {call.__name__}"
        for _ in range(2):
            for _ in range(3):
                jax.block_until_ready(call(shorter, name=name))
            expect(talweg.Mismatch, name, call, longer if is_last else shorter, name=name)
            jax.block_until_ready(call(longer, name=name))
            expect(talweg.Mismatch, name, call, shorter if is_last else longer, name=name)
    tw.push_pull(jnp.ones(2), "agreed")
    expect(
        talweg.Mismatch,
        "f16",
        tw.push_pull,
        jnp.ones(2, [np.float32, np.float16][is_last]),
        "agreed",
    )
    tw.push_pull(jnp.ones(2), "agreed")
    ops = [tw.Op.AVERAGE, tw.Op.MAX]
    mine = f"this rank calls f32[2] all_reduce {'max' if is_last else 'average'} of all ranks"
    expect(talweg.Mismatch, mine, tw.push_pull, jnp.ones(2), "agreed", ops[is_last])

    step = jax.jit(lambda x: tw.push_pull(x, "agreed") * 2)
    run(step, jnp.ones(2))
    for text in ("[3]", "[2]"):
        run(step, jnp.ones(2))
        expect(talweg.Mismatch, text, run, step, jnp.ones(2 + is_last))
    works("agreed")


def check_handles() -> None:
    """A handle is collected once, and the name then works again."""
    handle = tw.push_pull_async(jnp.ones(2), "handle")
    np.testing.assert_array_equal(tw.synchronize(handle), np.ones(2))
    for _ in range(2):
        expect(talweg.InvalidArgument, "collected already", tw.synchronize, handle)
    expect(talweg.InvalidArgument, "int is not a handle", tw.synchronize, 3)
    works("handle")


def check_dtypes_and_ops_that_differ() -> None:
    dtype = np.float32 if tw.rank() == 0 else np.float16
    expect(talweg.Mismatch, "f16[2]", tw.push_pull, jnp.ones(2, dtype), "dtypes")
    op = tw.Op.SUM if tw.rank() == 0 else tw.Op.MAX
    expect(talweg.Mismatch, "max", tw.push_pull, jnp.ones(2), "ops", op)
    works("after dtypes")


def check_calls_without_a_name() -> None:
    """Ranks that make different calls get an error that names both, also in a program."""
    is_last = tw.rank() == tw.size() - 1
    mine = jnp.ones(3 + is_last)
    both = (
        "this rank calls all_reduce sum of float32[4], another all_reduce sum of float32[3]"
        if is_last
        else "this rank calls all_reduce sum of float32[3], another all_reduce sum of float32[4]"
    )
    expect(talweg.Mismatch, both, tw.push_pull, mine, op=tw.Op.SUM)

    step = jax.jit(lambda x: tw.push_pull(tw.push_pull(x)[:3] * 2))

    expect(talweg.Mismatch, "float32[4]", run, step, mine)
    expect(talweg.Mismatch, "float32[4]", run, jax.grad(lambda x: tw.push_pull(x).sum()), mine)
    tree = {"a": jnp.ones(2), "b": mine}
    expect(talweg.Mismatch, "average of float32[2], float32[3]", tw.push_pull, tree)
    calls = [lambda: tw.broadcast(jnp.ones(5)), lambda: tw.all_gather(jnp.ones(5))]
    expect(talweg.Mismatch, "all_gather root 0 of float32[rows]", calls[is_last])
    wide = [jnp.ones(2)] * 60 + [mine]
    expect(talweg.Mismatch, "(digest", tw.push_pull, wide)
    if tw.size() > 2:
        three = jnp.ones(2 + tw.rank())
        expect(talweg.Mismatch, "calls without a name differ", tw.push_pull, three)
    for _ in range(2):
        np.testing.assert_array_equal(tw.push_pull(jnp.ones(3)), np.ones(3))


def check_rows_that_differ() -> None:
    """A rank expects other rows than another rank gives. The error has their lengths."""
    rank, size = tw.rank(), tw.size()
    rows = [2] * (size - 1) + [1]
    wrong = [2] * size
    mine = jnp.ones((rows[rank], 3))
    if rank == 0:
        expect(talweg.Mismatch, "expects 24", tw.all_gather, mine, "rows", rows=wrong)
    else:
        tw.all_gather(mine, "rows", rows=rows)
    tw.all_gather(mine, "rows", rows=rows)


def check_no_calls() -> None:
    """Impossible calls are refused before anything is pushed."""
    x = jnp.ones(4)
    expect(talweg.InvalidArgument, "under jax.vmap", jax.vmap(lambda v: tw.push_pull(v, "v")), x)
    traced = jax.jit(lambda v: tw.push_pull(v, "elsewhere")).trace(x)
    expect(
        talweg.Unsupported, "JAX_PLATFORMS=cpu", lambda: traced.lower(lowering_platforms=("cuda",))
    )
    expect(talweg.InvalidArgument, "no dimensions", tw.all_gather, jnp.ones(()), "scalar")
    expect(talweg.InvalidArgument, "complex64", tw.push_pull, x.astype(np.complex64), "complex")
    key = {"dropout": jax.random.key(0)}
    expect(talweg.InvalidArgument, "['dropout'] has random keys", tw.push_pull, key, "keys")
    expect(talweg.InvalidArgument, "no dimensions", tw.all_gather, key, "one key")
    expect(talweg.InvalidArgument, "int4", tw.all_gather, x.astype(jnp.int4), "int4")
    expect(talweg.Unsupported, "average", tw.push_pull, x.astype(np.int32), "average of integers")
    expect(talweg.InvalidArgument, "root_rank is 99", tw.broadcast, x, 99)
    expect(talweg.InvalidArgument, "name is 7", tw.push_pull, x, 7)
    expect(talweg.InvalidArgument, "priority is 'x'", tw.push_pull, x, "early", priority="x")
    expect(TypeError, "3 is no optimizer of optax", tw.DistributedOptimizer, 3)
    expect(talweg.InvalidArgument, "is not an array", tw.push_pull, {"a": "text"}, "text")
    expect(talweg.InvalidArgument, "do not divide", tw.all_to_all, jnp.ones(tw.size() + 1))
    expect(
        talweg.InvalidArgument,
        "does not add up",
        tw.all_to_all,
        x,
        [[9] * tw.size()] * tw.size(),
    )
    expect(talweg.InvalidArgument, "rows is [1]", tw.all_gather, x, "short", rows=[1])
    outside = tw.ProcessSet([(tw.rank() + 1) % tw.size()])
    expect(
        talweg.InvalidArgument,
        f"rank {tw.rank()} is not in",
        tw.push_pull,
        x,
        "outside",
        process_set=outside,
    )
    product = jax.grad(lambda v: tw.push_pull(v, "product", tw.Op.PRODUCT).sum())
    expect(talweg.Unsupported, "no gradient", product, x)
    works("after no calls")


def check_one_name_of_two_calls() -> None:
    """A tree's leaf and an array with the same name are refused, because nothing orders them."""
    tw.push_pull({"a": jnp.ones(2)}, "tree")
    expect(talweg.InvalidArgument, "another name", tw.push_pull, jnp.ones(2), "tree['a']")
    works("a name")
    text = "f32[2] all_reduce average of all ranks and is now used as f32[3] all_reduce average"
    expect(talweg.InvalidArgument, text, tw.push_pull, jnp.ones(3), "a name")
    works("a name")


def check_after_shutdown() -> None:
    """A program that was compiled before shutdown() raises an error after it."""
    step = jax.jit(lambda x: tw.push_pull(x, "again"))
    step(jnp.ones(2)).block_until_ready()
    tw.barrier()
    tw.shutdown()

    def run() -> None:
        with tw.talweg_errors():
            step(jnp.ones(2))

    expect(talweg.Closed, "talweg.jax.init()", run)


def main() -> None:
    check_before_init()
    tw.init()
    for name, check in globals().copy().items():
        if name.startswith("check_") and name != "check_before_init":
            check()
            print(f"{name}: ok", flush=True)


if __name__ == "__main__":
    main()
