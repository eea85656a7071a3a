# SPDX-License-Identifier: Apache-2.0
"""Makes the names of operations, as Horovod does."""

from __future__ import annotations


def named(kind: str, name: str | None) -> str | None:
    return None if name is None else f"{kind}.{name}"


def member_names(name: str | None, count: int) -> list[str | None]:
    """Returns the names of a group's operations: `x_1of3`."""
    if name is None:
        return [None] * count
    return [f"{name}_{i + 1}of{count}" for i in range(count)]


def group_names(name: str | None, kind: str, count: int) -> list[str | None]:
    """Returns such names with the operation's kind: `grouped_allreduce.x_1of3`."""
    return member_names(named(kind, name), count)
