# SPDX-License-Identifier: Apache-2.0
"""Rank 0 gets signals in the midst of its calls, and goes on with them: Ctrl-C, as a cell of a
notebook does, and SIGALRM, as a test with a time limit does.

Each time the signal comes while the library pushes, or waits for another rank: it is raised inside
of the Python function that calls the library.
"""

from __future__ import annotations

import datetime
import itertools
import signal
from collections.abc import Callable
from typing import Any

import talweg.torch
import torch
import torch.distributed as dist
from talweg import _client

_SMALL, _LARGE = 8, 300_000
_METHODS = ("exchange", "push_parts", "push_places", "wait_parts", "wait_places")


class TimeUp(Exception):
    """What the handler of SIGALRM raises. Unlike KeyboardInterrupt it could be a call's error."""


def _end_time(*_: object) -> None:
    raise TimeUp


class Interrupts:
    """Raises a signal at the end of one call of the library, counted from the last set_off()."""

    def __init__(self, signal_: signal.Signals) -> None:
        self._left = 0
        self.signal = signal_
        connection = _client.current().connection
        for name in _METHODS:
            setattr(connection, name, self._interrupted(getattr(connection, name)))

    def set_off(self, calls: int) -> None:
        """Raises it in the call of that number. 0: in none."""
        self._left = calls

    @property
    def has_come(self) -> bool:
        return self._left == 0

    def _interrupted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            if self._left > 0:
                self._left -= 1
                if self._left == 0:
                    signal.raise_signal(self.signal)
            return result

        return call


def _reduced(length: int) -> torch.Tensor:
    tensor = torch.full((length,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor)
    return tensor


def _gathered(length: int) -> torch.Tensor:
    output = torch.zeros(2 * length)
    dist.all_gather_into_tensor(output, torch.full((length,), float(dist.get_rank() + 1)))
    return output[:length] + output[length:]


def main() -> None:
    dist.init_process_group("talweg", timeout=datetime.timedelta(seconds=60))
    signal.signal(signal.SIGALRM, _end_time)
    interrupts = Interrupts(signal.SIGINT)
    for interrupts.signal, raised in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, TimeUp)):
        for call, length in itertools.product((_reduced, _gathered), (_SMALL, _LARGE)):
            assert (call(length) == 3).all()  # From now on the small call is one of the library.
            for number in range(1, 6):
                interrupts.set_off(number if dist.get_rank() == 0 else 0)
                try:
                    call(length)
                    assert dist.get_rank() != 0 or not interrupts.has_come
                except raised:
                    assert interrupts.has_come
                interrupts.set_off(0)
                for following in (call, _reduced):
                    assert (following(length) == 3).all(), (call, length, number)
    print("done", flush=True)
    talweg.shutdown()


if __name__ == "__main__":
    main()
