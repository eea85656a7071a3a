# SPDX-License-Identifier: Apache-2.0
"""What ranks have told of themselves, and where it differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from talweg.errors import Mismatch


def first_that_differ(told: Sequence[tuple[int, Any]]) -> tuple[tuple[int, Any], tuple[int, Any]]:
    """Returns the first rank, and the first one after it that has something else."""
    first = told[0]
    return first, next(each for each in told if each[1] != first[1])


def raise_names(title: str, told: Sequence[tuple[int, list[str]]]) -> None:
    """Raises Mismatch, with the first thing that differs in what ranks have. `title` begins it."""
    (one, names), (other, theirs) = first_that_differ(told)
    place = next(
        (i for i, pair in enumerate(zip(names, theirs)) if pair[0] != pair[1]),
        min(len(names), len(theirs)),
    )
    here, there = (
        each[place] if place < len(each) else "no more parameters" for each in (names, theirs)
    )
    raise Mismatch(
        f"{title}: rank {one} has {here} where rank {other} has {there}: build the same model at "
        "every rank, and give the optimizer the same parameters"
    )
