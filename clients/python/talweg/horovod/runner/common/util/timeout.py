# SPDX-License-Identifier: Apache-2.0
"""A time limit for several activities, for programs that use Horovod's."""

from __future__ import annotations

import time

__all__ = ["Timeout", "TimeoutException"]


class TimeoutException(Exception):
    """A Timeout is over."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Timeout:
    """A limit of `timeout` seconds from now on. `{activity}` in `message` is what was late."""

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout_s = timeout
        self._end_s = time.time() + timeout
        self._message = message

    def remaining(self) -> float:
        """Returns how many seconds are left, at least 0."""
        return max(0.0, self._end_s - time.time())

    def timed_out(self) -> bool:
        return time.time() > self._end_s

    def check_time_out_for(self, activity: str) -> None:
        """Raises TimeoutException if the time is over."""
        if self.timed_out():
            text = self._message.format(activity=activity).rstrip()
            raise TimeoutException(
                f"{text.removesuffix('.')}. Timeout after {self._timeout_s} seconds."
            )
