# SPDX-License-Identifier: Apache-2.0
"""Checks callers' arguments and converts them for libtalweg.so; raises InvalidArgument."""

from __future__ import annotations

import hashlib
import operator
from typing import Any

from talweg import errors

NAME_BYTES_MAX = 1024
# The rest of a name's bytes is for the lane, the group and the view.
_BEGIN_BYTES_MAX = 700


def name_for_tensors(name: str) -> str:
    """Returns how the names of a call's tensors begin. A long name is cut, and gets a digest."""
    encoded = name.encode()
    if len(encoded) <= _BEGIN_BYTES_MAX:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:32]
    return f"{encoded[: _BEGIN_BYTES_MAX - 33].decode(errors='ignore')}#{digest}"


def whole(what: str, value: Any) -> int:
    """Returns a whole number, of Python or another library; raises WrongType for others."""
    try:
        return operator.index(value)
    except TypeError:
        raise errors.WrongType(f"{what} is {value!r}; it must be a whole number") from None


def whole_numbers(what: str, values: Any, wanted: str) -> list[int]:
    """Returns a list of whole numbers. Raises InvalidArgument for others, and names `wanted`."""
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        raise errors.InvalidArgument(f"{what} is {values!r}; it must be {wanted}") from None


def nanoseconds(timeout_s: float | None) -> int:
    """Returns nanoseconds, -1 for no limit; raises InvalidArgument if it is no time."""
    if timeout_s is None:
        return -1
    try:
        is_time = bool(timeout_s >= 0)
    except (TypeError, ValueError, RuntimeError):  # As for a text, or an array of several.
        is_time = False
    if not is_time:
        raise errors.InvalidArgument(
            f"timeout_s is {timeout_s!r}; it must be 0 or more seconds, or None to wait for ever"
        )
    return int(min(timeout_s * 1e9, float(2**62)))


def encode(name: str) -> bytes:
    if not isinstance(name, str):
        raise errors.InvalidArgument(f"a tensor's name is a str, not {type(name).__name__}")
    if "\0" in name:
        raise errors.InvalidArgument(f"tensor name {name!r} contains a NUL character")
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise errors.InvalidArgument(f"tensor name {name!r} has no UTF-8 encoding") from None


def within(what: str, value: int, lowest: int, highest: int) -> int:
    """Returns the value; raises InvalidArgument if ctypes would cut it to another number."""
    value = whole(what, value)
    if not lowest <= value <= highest:
        raise errors.InvalidArgument(f"{what} is {value}; it must be {lowest} to {highest}")
    return value


# The priority of rounds that nobody waits for. The agents' stall_ms does not count them.
NOBODY_WAITS = 1 - 2**31


def checked_priority(value: int) -> int:
    # The lowest number of 32 bits means the priority that was declared.
    return within("priority", value, 1 - 2**31, 2**31 - 1)


def check_declaration(name: str, root_rank: int, count: int, priority: int) -> None:
    """Raises InvalidArgument for what the library cannot be told."""
    encode(name)
    checked_priority(priority)
    within("root_rank", root_rank, 0, 2**32 - 1)
    within("count", count, 0, 2**64 - 1)


def check_name_and_priority(name: str, priority: int) -> None:
    """Raises InvalidArgument if no tensor can have this name or priority, before any push."""
    nbytes = len(encode(name))
    if not 1 <= nbytes <= NAME_BYTES_MAX:
        raise errors.InvalidArgument(
            f"a tensor's name has {nbytes} bytes; it must have 1 to {NAME_BYTES_MAX} bytes"
        )
    checked_priority(priority)
