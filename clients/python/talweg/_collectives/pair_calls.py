# SPDX-License-Identifier: Apache-2.0
"""send and recv, as a framework's module offers them."""

from __future__ import annotations

import math
from typing import Any

from talweg import _client
from talweg._client import Client, Handle
from talweg._collectives import collectives
from talweg._collectives.call_channel import NAMELESS
from talweg._collectives.collectives import Given, Rows
from talweg._collectives.family import Family, require_dimensions
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._counted import counted
from talweg._library.native_arguments import check_name_and_priority, whole
from talweg.errors import InvalidArgument


class PairCalls(Family):
    """The calls of two ranks."""

    def _pair(
        self, operation: str, peer_of: int, name: str | None, process_set: ProcessSet | None
    ) -> tuple[Client, Group, str]:
        client = _client.current()
        everyone = Group(client, process_set, operation)
        peer = whole(f"{operation}: {'dst' if operation == 'send' else 'src'}", peer_of)
        check_name_and_priority("none" if name is None else name, 0)
        src, dst = (client.rank, peer) if operation == "send" else (peer, client.rank)
        if peer == client.rank or not 0 <= peer < client.size:
            raise InvalidArgument(
                f"{operation}: rank {peer} "
                f"{'is this one' if peer == client.rank else 'does not exist'}; "
                f"give another of the job's {counted(client.size, 'rank')}"
            )
        if peer not in everyone.ranks:
            raise InvalidArgument(
                f"{operation}: rank {peer} is not in {process_set}: give a rank of the set"
            )
        group = Group(client, ProcessSet([src, dst]), operation)
        own = f"{'talweg.send' if name is None else name}{everyone.suffix}"
        return client, group, f"{own}.{src}.{dst}"

    def _send(
        self,
        is_async: bool,
        tensor: Any,
        dst: int,
        name: str | None,
        process_set: ProcessSet | None,
        priority: int,
        timeout_s: float | None = None,
    ) -> Any:
        client, group, pair_name = self._pair("send", dst, name, process_set)
        given = self._given(
            collectives.SEND,
            tensor,
            lambda rows: [rows],
            is_async,
            client.rank,
            lambda rows, counts: self._new(rows.dtype, rows.row_shape),
            call="send",
        )
        of = (priority, lambda results: None, timeout_s, name or NAMELESS)
        return self._go(is_async, client, pair_name, group, [given], *of)

    def send(
        self,
        tensor: Any,
        dst: int,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        """Sends the tensor to rank `dst`, which calls recv(). Returns when `dst` has taken it.

        Both give the same `process_set`, or none. `dst` is a rank of the job, also with a set.
        """
        self._send(False, tensor, dst, name, process_set, priority, timeout_s)

    def send_async(
        self,
        tensor: Any,
        dst: int,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
    ) -> Handle:
        """Starts send() and returns its handle; the tensor may be changed at once."""
        return self._send(True, tensor, dst, name, process_set, priority)

    def _recv(
        self,
        is_async: bool,
        tensor_or_shape: Any,
        src: int,
        dtype: Any,
        name: str | None,
        process_set: ProcessSet | None,
        priority: int,
        timeout_s: float | None = None,
    ) -> Any:
        framework = self._framework
        client, group, pair_name = self._pair("recv", src, name, process_set)
        wanted: Rows | None = None
        fill: Any = None
        if tensor_or_shape is not None and isinstance(tensor_or_shape, (tuple, list)):
            if dtype is None:
                raise InvalidArgument(
                    "recv: a shape needs a dtype: pass dtype=..., or None for whatever comes"
                )
            shape_wanted = tuple(whole("recv: a dimension", each) for each in tensor_or_shape)
            if min(shape_wanted, default=0) < 0:
                raise InvalidArgument(
                    f"recv: the shape {shape_wanted} has a dimension below 0: give those of what "
                    "is sent, or None for whatever comes"
                )
            require_dimensions(collectives.SEND, shape_wanted)
            probe = framework.empty(framework.dtype_named(dtype), (0,))
            row_bytes = math.prod(shape_wanted) * framework.item_bytes(probe)
            wanted = Rows(framework.dtype(probe), shape_wanted, row_bytes)
        elif tensor_or_shape is not None:
            framework.require_target(tensor_or_shape)
            wanted, _ = self._rows(tensor_or_shape, collectives.SEND)
            fill = framework.target(tensor_or_shape)

        def allocate(rows: Rows, counts: list[int]) -> tuple[Any, int]:
            if fill is not None:
                return fill, framework.address(fill)
            return self._new(rows.dtype, rows.row_shape)

        def shape(results: list[Any]) -> Any:
            if fill is None:
                return results[0]
            framework.written(tensor_or_shape, fill)
            return tensor_or_shape

        given = Given(collectives.SEND, src, wanted, [], 0, None, allocate, call="recv")
        of = (priority, shape, timeout_s, name or NAMELESS)
        return self._go(is_async, client, pair_name, group, [given], *of)

    def recv(
        self,
        tensor_or_shape: Any,
        src: int,
        dtype: Any = None,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Any:
        """Returns the tensor that rank `src` sends with send().

        Given a tensor, recv() writes into it. Given a shape and a dtype, it returns a new tensor of
        these. Given None, it returns a new tensor of any shape and dtype that is sent. Raises
        Mismatch if the sent tensor has another shape or dtype.
        """
        of = (src, dtype, name, process_set, priority, timeout_s)
        return self._recv(False, tensor_or_shape, *of)

    def recv_async(
        self,
        tensor_or_shape: Any,
        src: int,
        dtype: Any = None,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        *,
        priority: int = 0,
    ) -> Handle:
        """Starts recv() and returns its handle."""
        return self._recv(True, tensor_or_shape, src, dtype, name, process_set, priority)
