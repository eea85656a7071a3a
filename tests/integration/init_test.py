# SPDX-License-Identifier: Apache-2.0
"""Tests that Ctrl-C, and shutdown(), end init() while it waits for the job's other ranks."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from concurrent import futures
from typing import Any
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
    def _interrupt_soon(self, handler: Callable[..., object] = _interrupt) -> None:
        before = signal.signal(signal.SIGALRM, handler)
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

    def _wait_and_leave(
        self, outcome: mock.Mock | Exception, may_come: threading.Event
    ) -> mock.Mock:
        """Leaves, in a signal handler, an init() that waits for a client, or for a failure. Returns
        what makes clients.
        """

        def connect(*_: object) -> mock.Mock:
            may_come.wait(_WAIT_S)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        make = mock.Mock(side_effect=connect)
        patch = mock.patch.object(process, "Client", make)
        patch.start()
        self.addCleanup(patch.stop)
        self._interrupt_soon(lambda *_: talweg.shutdown())
        with self.assertRaisesRegex(talweg.Closed, "shutdown"):
            talweg.init()
        self.assertFalse(talweg.is_initialized())
        return make

    def test_a_signal_handler_may_leave(self) -> None:
        """The handler runs on the thread that waits in init()."""
        late, may_come = mock.Mock(is_inherited=False), threading.Event()
        self._wait_and_leave(late, may_come)
        may_come.set()
        _join_connecting()
        late.close.assert_called_once()
        self.assertFalse(talweg.is_initialized())
        after = mock.Mock(is_inherited=False)
        with mock.patch.object(process, "Client", lambda *_: after):
            talweg.init()
        self.assertIs(process.current(), after)
        talweg.shutdown()
        after.close.assert_called_once()

    def test_init_goes_on_with_an_attempt_that_was_left(self) -> None:
        """That attempt has this rank's place in the job, which a second one would find taken."""
        client, may_come = mock.Mock(is_inherited=False), threading.Event()
        make = self._wait_and_leave(client, may_come)
        self.addCleanup(may_come.set)
        with self.assertRaises(talweg.Timeout):
            talweg.init(timeout_s=0.01)
        self._interrupt_soon()
        with self.assertRaises(KeyboardInterrupt):
            talweg.init()
        self._interrupt_soon(lambda *_: may_come.set())
        talweg.init()
        make.assert_called_once()
        client.close.assert_not_called()
        self.assertIs(process.current(), client)
        talweg.shutdown()
        client.close.assert_called_once()

    def test_init_does_not_go_on_with_another_jobs_attempt(self) -> None:
        may_come = threading.Event()
        make = self._wait_and_leave(mock.Mock(), may_come)
        self.addCleanup(may_come.set)
        make.side_effect = lambda *_: mock.Mock(is_inherited=False)
        for call in (
            lambda: talweg.init("/elsewhere"),
            lambda: mock.patch.dict(os.environ, MASTER_PORT="7")(talweg.init)(),
        ):
            before = make.call_count
            call()
            self.assertEqual(make.call_count, before + 1)
            talweg.shutdown()

    def test_init_begins_anew_if_the_attempt_that_was_left_fails(self) -> None:
        may_come = threading.Event()
        make = self._wait_and_leave(talweg.Timeout("too late"), may_come)
        after = mock.Mock(is_inherited=False)

        def fail(*_: object) -> None:
            make.side_effect = lambda *_: after
            may_come.set()

        self._interrupt_soon(fail)
        talweg.init()
        self.addCleanup(talweg.shutdown)
        self.assertIs(process.current(), after)

    def test_a_signal_handler_may_leave_a_rank_that_waits_for_another_agent(self) -> None:
        lost, late, may_come = mock.Mock(is_inherited=False), mock.Mock(), threading.Event()

        def connect(client: Any) -> Any:
            self.assertIs(client, lost)
            may_come.wait(_WAIT_S)
            return late

        with mock.patch.object(process, "Client", lambda *_: lost):
            talweg.init()
        self._interrupt_soon(lambda *_: talweg.shutdown())
        with self.assertRaises(talweg.Closed):
            process.replace(connect)
        lost.close.assert_called_once()
        self.assertFalse(talweg.is_initialized())
        may_come.set()
        _join_connecting()
        late.close.assert_called_once()
        self.assertFalse(talweg.is_initialized())

    def test_another_thread_may_leave(self) -> None:
        client, waits, may_come = mock.Mock(), threading.Event(), threading.Event()

        def connect(*_: object) -> mock.Mock:
            waits.set()
            may_come.wait(_WAIT_S)
            return client

        with (
            mock.patch.object(process, "Client", connect),
            futures.ThreadPoolExecutor() as pool,
        ):
            joining = pool.submit(talweg.init)
            waits.wait(_WAIT_S)
            talweg.shutdown()
            self.assertIsInstance(joining.exception(_SOON_S), talweg.Closed)
            may_come.set()
            _join_connecting()
        client.close.assert_called_once()

    def test_a_client_that_was_left_when_it_came_does_not_stay(self) -> None:
        client = mock.Mock(is_inherited=False)
        with (
            mock.patch.object(process, "Client", lambda *_: client),
            mock.patch.object(process, "_tell_of", lambda _: talweg.shutdown()),
            self.assertRaises(talweg.Closed),
        ):
            talweg.init()
        client.close.assert_called()
        self.assertFalse(talweg.is_initialized())

    def test_a_signal_handler_may_not_join_while_init_waits(self) -> None:
        may_come, refusals = threading.Event(), []

        def connect(*_: object) -> mock.Mock:
            may_come.wait(_WAIT_S)
            return mock.Mock(is_inherited=False)

        def join(*_: object) -> None:
            try:
                talweg.init()
            except talweg.InvalidArgument as error:
                refusals.append(str(error))
            may_come.set()

        with mock.patch.object(process, "Client", connect):
            self._interrupt_soon(join)
            talweg.init()
        self.addCleanup(talweg.shutdown)
        self.assertRegex(refusals[0], "call shutdown.. first")

    def test_errors_are_the_callers(self) -> None:
        with self.assertRaisesRegex(talweg.InvalidArgument, "timeout_s is -1"):
            talweg.init("/nowhere", timeout_s=-1)
        with self.assertRaisesRegex(talweg.NoAgent, "/nowhere"):
            talweg.init("/nowhere")


if __name__ == "__main__":
    unittest.main()
