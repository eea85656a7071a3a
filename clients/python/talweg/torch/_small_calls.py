# SPDX-License-Identifier: Apache-2.0
"""Small calls of torch.distributed: they take one round, and the caller waits for them at once.

The steps of a small call depend on its dtype and shapes alone. So a group works them out once, and
the next call of that kind goes straight to the library.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from talweg._call_site import call_site
from talweg._collectives.call_channel import CallChannel
from talweg._collectives.channels import Job
from talweg._collectives.collectives import Given, job_of
from talweg._collectives.one_round import OneRound
from talweg._collectives.words import block
from talweg.torch import _cuda
from talweg.torch._c10d_tensors import Outputs
from talweg.torch._callbacks import Callbacks
from talweg.torch._checks import is_in_ram
from talweg.torch._profiling import Range, range_of

# How many calls a group remembers.
_KNOWN_MAX = 256


class Over(dist.Work):
    """A call that was over when it returned."""

    def __init__(self, outputs: Any, callbacks: Callbacks) -> None:
        super().__init__()
        self._outputs = outputs
        self._callbacks = callbacks

    def wait(self, timeout: Any = None) -> bool:
        """Returns at once."""
        return True

    def synchronize(self) -> None:
        """Returns at once."""

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> BaseException | None:
        return None

    def result(self) -> Any:
        return self._outputs

    def get_future(self) -> torch.futures.Future[Any]:
        future = self._callbacks.future([])
        future.set_result(self._outputs)
        return future


class Begun(NamedTuple):
    """A small call that has begun, and that the caller carries on."""

    job: Job
    output: Outputs
    range: Range | None


class _Known(NamedTuple):
    call: OneRound
    given: Given
    nbytes: int
    outputs: Callable[[torch.Tensor], Outputs]


class SmallCalls:
    """The small calls of one group."""

    def __init__(self, channel: CallChannel) -> None:
        self._channel = channel
        self._known: dict[Hashable, _Known] = {}

    def run(
        self, key: tuple[Any, ...], tensor: torch.Tensor, output: torch.Tensor
    ) -> Begun | bool | None:
        """Makes a call like one that is known. Returns True if it is over, None if it was not made,
        else the call that goes on. `key` begins with the operation.
        """
        known = self._known.get(key)
        if known is None or not _is_plain(tensor) or not _is_plain(output):
            return None
        target: list[Outputs] = []

        def later(round_: int) -> Job:
            target.append(known.outputs(output))
            given = replace(
                known.given,
                address=tensor.data_ptr(),
                keep=tensor,
                allocate=target[0].allocate,
                pushed=round_,
                site=call_site(),
            )
            return job_of(channel, [given], 0)

        channel = self._channel
        range_ = range_of(key[0], [tensor])

        def run() -> int:
            if range_ is not None:
                range_.begin()
            addresses = tensor.data_ptr(), output.data_ptr()
            return known.call.run(channel.client.connection, channel.control(), *addresses)

        job = channel.run_first(run, later)
        if job is None:
            return None
        if job.done and job.failure is None and not target:
            channel.client.count_pushed_bytes(known.nbytes)
            if range_ is not None:
                range_.end()
            return True
        return Begun(job, target[0] if target else known.outputs(output), range_)

    def learn(
        self,
        key: Hashable,
        given: Given,
        tensor: torch.Tensor,
        target: Outputs,
        outputs: Callable[[torch.Tensor], Outputs],
    ) -> None:
        """Remembers a call that is about to be made, if it is a small one."""
        channel = self._channel
        if given.rows is None or not OneRound.may_be(given, channel.holds_own()):
            return
        call = channel.one_round(given, block(given))
        got = sum(call.got_rows) * given.rows.row_bytes if call is not None else -1
        if given.address != tensor.data_ptr() or not target.takes(got):
            return
        assert call is not None
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        nbytes = tensor.numel() * tensor.element_size()
        self._known[key] = _Known(call, replace(given, keep=None), nbytes, outputs)


def _is_plain(tensor: torch.Tensor) -> bool:
    return is_in_ram(tensor) and _cuda.is_plain(tensor) and not tensor.is_conj()
