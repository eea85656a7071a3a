# SPDX-License-Identifier: Apache-2.0
"""Sends and receives of a process group.

A message is a call of two ranks, its sender and its receiver. Messages of one sender, one receiver
and one tag belong together by their order. A receiver that takes from any source takes part in the
next call of each other rank at once, and takes what that rank gives. The first that is complete is
what it gets. The others stay open, and are the next messages that come from those ranks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from talweg._client import Client
from talweg._collectives import SEND, Given, Rows
from talweg._process_sets import Group, ProcessSet
from talweg.errors import InvalidArgument, Mismatch, TalwegError, Timeout
from talweg.torch import _c10d_tensors as tensors_
from talweg.torch._collectives import TorchTensors
from talweg.torch._work import Work, future_of

_TENSORS = TorchTensors()


class Received(dist.Work):
    """A receive that gets its message from whoever sends first, or after others have been asked."""

    def __init__(self, tensor: torch.Tensor, what: str, timeout_s: float) -> None:
        super().__init__()
        self.output = tensors_.Outputs([tensor], "recv")
        self.output.begin()
        self._tensor = tensor
        self._what = what
        self._timeout_s = timeout_s
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._source = -1
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None

    @property
    def tensor(self) -> torch.Tensor:
        return self._tensor

    def end(self, source: int, failure: BaseException | None) -> None:
        """Has it complete: the message is in the tensor, or never comes."""
        with self._lock:
            self._source, self._failure = source, failure
            self._over.set()
            future = self._future
        if future is not None:
            self._complete(future)

    def _complete(self, future: torch.futures.Future[Any]) -> None:
        if self._failure is None:
            future.set_result([self._tensor])
        else:
            future.set_exception(self._failure)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Returns when the message is there. Timeout as Work's."""
        given_s = timeout.total_seconds()
        timeout_s = given_s if given_s > 0 else self._timeout_s
        end = time.monotonic() + min(timeout_s, 1e8)
        # In pieces, so that a signal's handler in Python runs soon.
        while not self._over.wait(min(0.5, max(0.0, end - time.monotonic()))):
            if time.monotonic() >= end:
                raise Timeout(
                    f"{self._what}: timeout after {timeout_s:g} s: nobody has sent anything with this "
                    "tag"
                )
        if self._failure is not None:
            raise self._failure
        return True

    def synchronize(self) -> None:
        """wait()"""
        self.wait()

    def is_completed(self) -> bool:
        return self._over.is_set()

    def is_success(self) -> bool:
        return self._over.is_set() and self._failure is None

    def exception(self) -> BaseException | None:
        return self._failure

    def result(self) -> Any:
        self.wait()
        return [self._tensor]

    def get_future(self) -> torch.futures.Future[Any]:
        with self._lock:
            is_first = self._future is None
            if self._future is None:
                self._future = future_of([self._tensor])
            future, is_over = self._future, self._over.is_set()
        if is_first and is_over:
            self._complete(future)
        return future

    def source_rank(self) -> int:
        """Who sent the message, as a number in the group."""
        return self._source

    _source_rank = source_rank


@dataclass
class _Wanted:
    """A receive that has no message yet."""

    received: Received
    source: int  # -1: any.

    def takes(self, source: int) -> bool:
        return self.source in (-1, source)


class _Message:
    """What a source sends, of whatever dtype and length."""

    tensor: torch.Tensor

    def allocate(self, rows: Rows, counts: list[int]) -> tuple[Any, int]:
        self.tensor = _TENSORS.empty(rows.dtype, (sum(counts), *rows.row_shape)).view(-1)
        return None, int(self.tensor.data_ptr())

    def begin(self) -> None:
        """The receive that gets it has its own (_want)."""

    def finish(self, got: Any) -> None:
        """It is where it was allocated."""


@dataclass
class _Opened:
    """A call of a source's that this rank takes part in for whoever wants it."""

    call: Work
    message: _Message
    is_over: bool = False


@dataclass
class _Tag:
    """The messages of one tag, once this rank has received from any source with it."""

    wanted: list[_Wanted] = field(default_factory=list)  # In the order of their calls.
    opened: dict[int, _Opened] = field(default_factory=dict)  # By source, one each.
    # Sources of which nothing more comes, as they have left or the call has failed, with the error.
    closed: dict[int, BaseException] = field(default_factory=dict)


class PointToPoint:
    """The sends and receives of the rank `place` of `ranks`.

    `submit` makes a call, as ProcessGroup has it.
    """

    def __init__(
        self, client: Client, ranks: Sequence[int], place: int, submit: Callable[..., Work]
    ) -> None:
        self._client = client
        self._ranks = ranks
        self._place = place
        self._submit = submit
        self._lock = threading.RLock()
        self._tags: dict[int, _Tag] = {}

    def send(self, tensor: torch.Tensor, target: int, tag: int) -> Work:
        self._require_other(target, "send")
        return self._pair("send", tensor, self._place, target, tag)

    def receive(self, tensor: torch.Tensor, source: int, tag: int, timeout_s: float) -> dist.Work:
        self._require_other(source, "recv")
        with self._lock:
            messages = self._tags.get(tag)
            if messages is None or source not in {**messages.opened, **messages.closed}:
                return self._pair("recv", tensor, source, self._place, tag)
        return self._want(tensor, source, tag, timeout_s)

    def receive_from_any(self, tensor: torch.Tensor, tag: int, timeout_s: float) -> dist.Work:
        if len(self._ranks) == 1:
            raise InvalidArgument("recv: the group has no other rank to receive from")
        return self._want(tensor, -1, tag, timeout_s)

    def _require_other(self, peer: int, operation: str) -> None:
        if peer == self._place or not 0 <= peer < len(self._ranks):
            raise InvalidArgument(
                f"{operation}: rank {peer} of the group is "
                f"{'this one' if peer == self._place else 'none'}; name another of its "
                f"{len(self._ranks)} ranks"
            )

    def _pair(
        self, operation: str, tensor: torch.Tensor, source: int, target: int, tag: int
    ) -> Work:
        gives = operation == "send"
        outputs = [] if gives else [tensors_.Outputs([tensor], operation)]
        call = tensors_.given(
            SEND,
            [tensor] if gives else [],
            tensors_.whole(tensor, any_shape=True),
            [1] if gives else [],
            self._ranks[source],
            outputs[0] if outputs else None,
        )
        return self._call(operation, call, [tensor], outputs, source, target, tag)

    def _call(
        self,
        operation: str,
        call: Given,
        tensors: list[torch.Tensor],
        outputs: list[Any],
        source: int,
        target: int,
        tag: int,
    ) -> Work:
        sender, receiver = self._ranks[source], self._ranks[target]
        peer = f"to rank {receiver}" if operation == "send" else f"from rank {sender}"
        return self._submit(
            f"{operation} {peer}",
            [call],
            tensors,
            tensors,
            outputs,
            None,
            lane=f".{sender}.{receiver}.{tag}",
            group=Group(self._client, ProcessSet([sender, receiver]), operation),
            source_rank=source,
        )

    # ----- From any source -----

    def _want(self, tensor: torch.Tensor, source: int, tag: int, timeout_s: float) -> Received:
        who = "any rank" if source < 0 else f"rank {self._ranks[source]}"
        what = f"rank {self._client.rank}: recv from {who} of {tensors_.said(tensor)}"
        received = Received(tensor, what, timeout_s)
        with self._lock:
            messages = self._tags.setdefault(tag, _Tag())
            messages.wanted.append(_Wanted(received, source))
            self._open(tag)
        self._deal(tag)
        return received

    def _open(self, tag: int) -> None:
        """Takes part in the next call of each source that something is wanted from."""
        messages = self._tags[tag]
        for source in range(len(self._ranks)):
            is_wanted = any(wanted.takes(source) for wanted in messages.wanted)
            is_there = source in messages.opened or source in messages.closed
            if source == self._place or is_there or not is_wanted:
                continue
            message = _Message()
            call = Given(SEND, self._ranks[source], None, [], 0, None, message.allocate)
            try:
                work = self._call("recv", call, [], [message], source, self._place, tag)
            except TalwegError as failure:
                messages.closed[source] = failure
                continue
            opened = messages.opened[source] = _Opened(work, message)
            opened.call.call_when_done(partial(self._note, tag, opened))

    def _note(self, tag: int, opened: _Opened) -> None:
        with self._lock:
            opened.is_over = True
        self._deal(tag)

    def _deal(self, tag: int) -> None:
        """Brings each message that has come to the first receive that takes it, and ends receives
        for which nothing can come.
        """
        ended = []
        with self._lock:
            messages = self._tags[tag]
            for source, opened in list(messages.opened.items()):
                failure = opened.call.exception() if opened.is_over else None
                wanted = next((each for each in messages.wanted if each.takes(source)), None)
                if failure is not None:
                    messages.closed[source] = failure
                    del messages.opened[source]
                elif opened.is_over and wanted is not None:
                    del messages.opened[source]
                    messages.wanted.remove(wanted)
                    ended.append((wanted.received, source, _bring(opened, wanted.received)))
            for wanted in list(messages.wanted):
                sources = range(len(self._ranks)) if wanted.source < 0 else [wanted.source]
                failures = [messages.closed.get(each) for each in sources if each != self._place]
                if None not in failures:
                    messages.wanted.remove(wanted)
                    ended.append((wanted.received, wanted.source, failures[-1]))
            if ended:
                self._open(tag)
        for received, source, failure in ended:
            received.end(source, failure)


def _bring(opened: _Opened, received: Received) -> BaseException | None:
    """Copies the message to the receive's tensor; returns what the receive fails with."""
    came, tensor = opened.message.tensor, received.tensor
    if came.dtype != tensor.dtype or came.numel() != tensor.numel():
        return Mismatch(
            f"recv: {tensors_.said(came)} has come from rank {opened.call.source_rank()} of the "
            f"group, but the output is {tensors_.said(tensor)}: make it as long as what is sent"
        )
    received.output.take(came)
    return None
