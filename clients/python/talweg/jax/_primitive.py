# SPDX-License-Identifier: Apache-2.0
"""Two primitives for every call: one starts a group of rounds, the other collects groups.

In XLA each round starts in a custom call, which runs as soon as its input is there and does not
wait. One custom call collects all rounds. It takes the tickets that the start calls return, and
this data flow orders the two: all rounds are under way before XLA waits for the first.

If there is a comparison, its whole round comes before the first start. Ranks whose calls would
differ end there, with an error.

An ordered effect of JAX, one for each key, orders the groups of that key: within a program, in
loops, and from one program to the next. It also keeps XLA from merging or dropping a call. Groups
of different keys have no order among each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import jax
import numpy as np
from jax._src import core, dispatch
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from talweg.errors import InvalidArgument, Unsupported
from talweg.jax import _library
from talweg.jax._effects import AnyRound, RoundEffect


@dataclass(frozen=True)
class Round:
    """One round of a group: what rounds.h calls a Call. Lengths are in bytes."""

    tensor: str
    dtype: int
    op: int
    shares: tuple[int, int]
    root_rank: int
    priority: int
    element_count: int
    ranks: tuple[int, ...]
    given: tuple[int, ...]
    got: tuple[int, ...]
    prescale: float
    postscale: float
    signature: int  # What must be alike at all ranks: shape_signature(). 0: no signature.
    compares: bool  # The round compares what ranks are about to call, and has no result.
    # What this rank gets.
    shape: tuple[int, ...]
    result_dtype: np.dtype

    def attributes(self) -> dict[str, Any]:
        """Returns the attributes in the order in which Call::From reads them."""
        numbers = [
            self.dtype,
            self.op,
            *self.shares,
            self.root_rank,
            self.priority,
            self.element_count,
            len(self.ranks),
            len(self.given),
            len(self.got),
            self.signature - (self.signature >> 63 << 64),  # As a signed 64-bit number.
            self.compares,
            *self.ranks,
            *self.given,
            *self.got,
        ]
        return {
            "name": self.tensor,
            "call": np.asarray(numbers, np.int64),
            "factors": np.asarray([self.prescale, self.postscale], np.float64),
        }


@dataclass(frozen=True)
class Comparison:
    """What a rank says about its call before it begins it, and the round in which it says so."""

    round: Round
    said: bytes


# Arrays that ranks give -> a ticket for each. Parameters: rounds, key, comparison.
start_p = Primitive("talweg_start")
# Tickets -> what their rounds give. Parameters: rounds, keys.
collect_p = Primitive("talweg_collect")
for _primitive in (start_p, collect_p):
    _primitive.multiple_results = True
    _primitive.def_impl(partial(dispatch.apply_primitive, _primitive))

# A ticket has 64 bits. JAX has no 64-bit numbers unless a program enables them.
_TICKET = ShapedArray((2,), np.dtype(np.uint32))


@start_p.def_effectful_abstract_eval
def _started(*_: Any, rounds: tuple[Round, ...], key: str, comparison: Comparison | None) -> Any:
    return [_TICKET] * len(rounds), {AnyRound(), RoundEffect(key)}


@collect_p.def_effectful_abstract_eval
def _collected(*_: Any, rounds: tuple[Round, ...], keys: tuple[str, ...]) -> Any:
    results = [ShapedArray(each.shape if each.got else (0,), each.result_dtype) for each in rounds]
    return results, {AnyRound(), *(RoundEffect(key) for key in keys)}


_TOKEN = core.abstract_token


def _custom_call(
    ctx: Any,
    target: str,
    operands: Sequence[Any],
    given: Sequence[Any],
    results: Sequence[Any],
    **attributes: Any,
) -> Any:
    """Makes one custom call of XLA. Its arrays are row-major, as Talweg's parts are.

    `given` and `results` are the abstract values of the operands and the results.
    """
    types = [
        mlir.token_type()
        if each is _TOKEN
        else mlir.ir.RankedTensorType.get(each.shape, mlir.dtype_to_ir_type(each.dtype))
        for each in results
    ]
    lower = jax.ffi.build_ffi_lowering_function(target, has_side_effect=True, result_types=types)
    at = ctx.replace(avals_in=list(given), avals_out=list(results))
    return lower(at, *operands, **attributes).results


def _lower_comparison(ctx: Any, comparison: Comparison, token: Any) -> Any:
    """Returns the token that exists when all ranks have said the same."""
    said = np.frombuffer(comparison.said, np.uint8)
    kind = ShapedArray(said.shape, said.dtype)
    [ticket] = _custom_call(
        ctx,
        _library.START,
        [mlir.ir_constant(said), token],
        [kind, _TOKEN],
        [_TICKET],
        **comparison.round.attributes(),
    )
    _, after = _custom_call(
        ctx, _library.COLLECT, [ticket, token], [_TICKET, _TOKEN], [kind, _TOKEN]
    )
    return after


def _lower_start(
    ctx: Any,
    *operands: Any,
    rounds: tuple[Round, ...],
    key: str,
    comparison: Comparison | None,
) -> Sequence[Any]:
    effect = RoundEffect(key)
    token = ctx.tokens_in.get(effect)
    if comparison is not None:
        token = _lower_comparison(ctx, comparison, token)
    # The token goes on unchanged: a group's starts wait for what came before, not for each other.
    tickets: list[Any] = []
    for each, operand, kind in zip(rounds, operands, ctx.avals_in):
        given, kinds = ([operand], [kind]) if each.given else ([], [])
        attributes = each.attributes()
        tickets += _custom_call(
            ctx, _library.START, [*given, token], [*kinds, _TOKEN], [_TICKET], **attributes
        )
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({effect: token})))
    return tickets


def _lower_collect(
    ctx: Any, *tickets: Any, rounds: tuple[Round, ...], keys: tuple[str, ...]
) -> Sequence[Any]:
    effects_of_keys = [RoundEffect(key) for key in keys]
    tokens = [ctx.tokens_in.get(effect) for effect in effects_of_keys]
    made = _custom_call(
        ctx,
        _library.COLLECT,
        [*tickets, *tokens],
        [*ctx.avals_in, *[_TOKEN] * len(tokens)],
        [*ctx.avals_out, *[_TOKEN] * len(tokens)],
    )
    results, tokens_out = made[: len(rounds)], made[len(rounds) :]
    after = mlir.TokenSet(dict(zip(effects_of_keys, tokens_out)))
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(after))
    return results


mlir.register_lowering(start_p, _lower_start, platform="cpu", cacheable=False)
mlir.register_lowering(collect_p, _lower_collect, platform="cpu", cacheable=False)


def _refuse_device(ctx: Any, *_: Any, rounds: tuple[Round, ...], **__: Any) -> NoReturn:
    raise Unsupported(
        f"'{rounds[0].tensor}' is called for {', '.join(ctx.module_context.platforms)}, and Talweg "
        "takes JAX's arrays in host memory: put them there with "
        "jax.device_put(array, jax.devices('cpu')[0]), or set JAX_PLATFORMS=cpu"
    )


# For all other platforms: JAX calls it when a program is compiled for one.
mlir.register_lowering(start_p, _refuse_device)
mlir.register_lowering(collect_p, _refuse_device)


def _refuse_batch(*_: Any, rounds: tuple[Round, ...], **__: Any) -> NoReturn:
    raise InvalidArgument(
        f"'{rounds[0].tensor}' is called under jax.vmap, where it has no meaning: a round is of a "
        "whole tensor. Call it outside of vmap, on the batch"
    )


batching.primitive_batchers[start_p] = _refuse_batch
batching.primitive_batchers[collect_p] = _refuse_batch
