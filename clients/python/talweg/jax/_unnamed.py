# SPDX-License-Identifier: Apache-2.0
"""Calls without a name: the names of their tensors, and how ranks compare them.

Such calls are matched by their order. So each rank says what it is about to call, and the ranks go
on if all say the same (comparison.h). The name of a tensor describes its content, because each
shape needs a tensor of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from talweg._collectives.kinds import ALL_REDUCE, OWN, ROW, Kind
from talweg._collectives.process_sets import Group
from talweg._declaration import DType, Op
from talweg.jax._primitive import Comparison, Round
from talweg.jax._rounds import Plan, plan_round

# The key that orders the calls without a name. A process set adds its suffix.
KEY = "talweg.jax"

_WORDS_BYTES = 252
_DIGEST_BYTES = 4


def named(
    rounds: Sequence[Round],
    kind: Kind,
    op: Op,
    root_rank: int,
    arrays: Sequence[Any],
    group: Group,
) -> tuple[list[Round], Comparison]:
    """Returns the rounds of a call under their own names, and the comparison that comes first."""
    call = f"{kind.name} {op.name.lower()}" if kind.reduces else f"{kind.name} root {root_rank}"
    seen: Counter[str] = Counter()
    result, described = [], []
    for each, array in zip(rounds, arrays):
        words = _words_of(each, kind, array)
        described.append(words)
        tensor = f"{KEY}.{call}.{words}"
        result.append(dataclasses.replace(each, tensor=f"{tensor}.{seen[tensor]}{group.suffix}"))
        seen[tensor] += 1
    said = _said(f"{call} of {', '.join(described)}")
    return result, Comparison(_round_of(said, group), said)


def _words_of(each: Round, kind: Kind, array: Any) -> str:
    """Returns what is alike at all ranks. Ranks that give their own rows may give other numbers."""
    if kind.gives not in (OWN, ROW):
        return f"{array.dtype}{list(array.shape)}"
    rows = ", ".join(["rows", *map(str, array.shape[1:])])
    longest = each.element_count * DType(each.dtype).nbytes
    return f"{array.dtype}[{rows}] of {longest} bytes a rank at most"


def _digest(words: bytes) -> bytes:
    """Returns the digest that comparison.cc computes."""
    digest = 2166136261
    for each in words:
        digest = (digest ^ each) * 16777619 & 0xFFFFFFFF
    return digest.to_bytes(_DIGEST_BYTES, "little")


@cache
def _said(text: str) -> bytes:
    """Returns the words, their digest, and the complement of both."""
    words = text.encode()
    if len(words) > _WORDS_BYTES:
        mark = f"... (digest {hashlib.sha256(words).hexdigest()[:16]})".encode()
        words = words[: _WORDS_BYTES - len(mark)] + mark
    words = words.ljust(_WORDS_BYTES, b"\0")
    words += _digest(words)
    return words + bytes(255 - each for each in words)


def _round_of(said: bytes, group: Group) -> Round:
    plan = Plan(ALL_REDUCE, group, Op.MAX)
    planned = plan_round(plan, f"{KEY}.compared{group.suffix}", (len(said),), np.dtype(np.uint8))
    return dataclasses.replace(planned, compares=True)
