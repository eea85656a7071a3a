# SPDX-License-Identifier: Apache-2.0
"""Many calls of push_pull or broadcast that have one handle."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from talweg import _client
from talweg._client import Handle, group_of
from talweg._client.left_rounds import finish_call
from talweg._collectives import rounds
from talweg._collectives.nameless_groups import nameless_group
from talweg._library.native_arguments import check_name_and_priority


def start_many(
    start_one: Callable[..., Handle],
    tensors: Sequence[Any],
    name: str | None,
    *arguments: Any,
    **options: Any,
) -> Handle:
    """Starts one call for each tensor, and returns one handle for all. The calls are named name.0,
    name.1 and so on, if there is a name.
    """
    if name is None:
        with nameless_group(len(tensors)):
            started = [start_one(tensor, *arguments, name=None, **options) for tensor in tensors]
    else:
        check_name_and_priority(name, 0)
        names = (f"{name}.{index}" for index in itertools.count())
        started = [
            start_one(tensor, *arguments, name=own, **options)
            for tensor, own in zip(tensors, names)
        ]
    return group_of(_client.current(), started)


def run_many(
    start_all: Callable[..., Handle],
    tensors: Sequence[Any],
    name: str | None,
    timeout_s: float | None,
    *arguments: Any,
    **options: Any,
) -> list[Any]:
    """Runs the calls that `start_all` starts. Returns their results."""
    client = _client.current()
    left_s = rounds.before_calls(client, name, len(tensors), options.get("process_set"), timeout_s)
    handle = start_all(tensors, *arguments, name=name, **options)
    results: list[Any] = finish_call(client, handle, left_s)
    return results
