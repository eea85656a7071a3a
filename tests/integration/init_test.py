# SPDX-License-Identifier: Apache-2.0
"""Tests that Ctrl-C ends init() while it waits for the job's other ranks."""

from __future__ import annotations

import signal
import socket
import tempfile
import threading
import time
import unittest
from unittest import mock

import talweg
from talweg._client import process

# Far longer than an interrupted call takes, and far shorter than it would wait for the job.
_SOON_S = 30.0
_WAIT_S = 90.0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _join_connecting() -> None:
    for thread in threading.enumerate():
        if thread.name == "talweg-connect":
            thread.join(_SOON_S)
            assert not thread.is_alive()


class InitTest(unittest.TestCase):
    def _interrupt_soon(self) -> None:
        before = signal.signal(signal.SIGALRM, _interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.3)

    def test_ctrl_c_is_heard(self) -> None:
        with (
            tempfile.TemporaryDirectory(dir="/tmp") as directory,
            socket.socket(socket.AF_UNIX) as agent,  # An agent that says nothing yet.
        ):
            agent.bind(f"{directory}/agent.sock")
            agent.listen()
            begin = time.monotonic()
            self._interrupt_soon()
            with self.assertRaises(KeyboardInterrupt):
                talweg.init(f"{directory}/agent.sock", timeout_s=_WAIT_S)
            self.assertLess(time.monotonic() - begin, _SOON_S)
            self.assertFalse(talweg.is_initialized())
        _join_connecting()

    def test_what_has_come_too_late_is_closed(self) -> None:
        client, may_come = mock.Mock(), threading.Event()

        def connect(*_: object) -> mock.Mock:
            may_come.wait(_WAIT_S)
            return client

        with mock.patch.object(process, "Client", connect):
            self._interrupt_soon()
            with self.assertRaises(KeyboardInterrupt):
                talweg.init()
            client.close.assert_not_called()
            may_come.set()
            _join_connecting()
        client.close.assert_called_once()
        self.assertFalse(talweg.is_initialized())

    def test_errors_are_the_callers(self) -> None:
        with self.assertRaisesRegex(talweg.InvalidArgument, "timeout_s is -1"):
            talweg.init("/nowhere", timeout_s=-1)
        with self.assertRaisesRegex(talweg.NoAgent, "/nowhere"):
            talweg.init("/nowhere")


if __name__ == "__main__":
    unittest.main()
