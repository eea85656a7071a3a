# SPDX-License-Identifier: Apache-2.0
"""Tests that Ctrl-C interrupts a rank that waits for its agent, and that the call can go on."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import unittest
from collections.abc import Callable

import numpy as np
import talweg
from cluster import DEADLINE_S, Cluster

# Far longer than an interrupted call takes. Without the interrupt it would wait for ever.
_SOON_S = 30.0


class InterruptTest(unittest.TestCase):
    def setUp(self) -> None:
        before = signal.signal(signal.SIGALRM, self._interrupt_who_waits)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.cluster = stack.enter_context(Cluster())
        agent = self.cluster.agent(0, ["--standalone"])
        self.agent = agent.process
        self.sums = self.sums_seen = 0
        talweg.init(agent.addresses["socket"], timeout_s=DEADLINE_S)
        self.addCleanup(talweg.shutdown)

    def _interrupt_who_waits(self, *_: object) -> None:
        if self.sums == self.sums_seen:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt
        self.sums_seen = self.sums

    def _interrupted(self, call: Callable[[], object]) -> None:
        """Checks that `call` ends with KeyboardInterrupt while the agent is stopped."""
        self.agent.send_signal(signal.SIGSTOP)
        try:
            begin = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
            with self.assertRaises(KeyboardInterrupt):
                call()
            self.assertLess(time.monotonic() - begin, _SOON_S)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.agent.send_signal(signal.SIGCONT)

    def _check_sum(self) -> None:
        ones: np.ndarray = np.ones(1000, np.float32)
        np.testing.assert_array_equal(talweg.push_pull(ones, "x", talweg.Op.SUM), ones)
        self.sums += 1

    def test_a_declaration(self) -> None:
        self._interrupted(self._check_sum)
        self._check_sum()

    def test_a_push_with_no_room(self) -> None:
        # A single rank completes its rounds by itself, until the queue to the agent is full.
        self._check_sum()

        def check_sums() -> None:
            while True:
                self._check_sum()

        self._interrupted(check_sums)
        self._check_sum()

    def test_a_declaration_that_takes_several_calls(self) -> None:
        talweg.shutdown()
        scheduler = self.cluster.scheduler(["--in_memory"]).addresses["listen"]
        aggregator = self.cluster.aggregator(scheduler, "late").process
        agent = self.cluster.agent(1, [f"--scheduler={scheduler}", "--rank_count=1"])
        talweg.init(agent.addresses["socket"], timeout_s=DEADLINE_S)
        aggregator.send_signal(signal.SIGSTOP)
        resume = threading.Timer(2.5, aggregator.send_signal, (signal.SIGCONT,))
        resume.start()
        self.addCleanup(resume.join)
        self._check_sum()

    def test_an_agent_that_stays_stopped_is_noticed(self) -> None:
        # The agent is silent for longer than any call into the library.
        talweg.shutdown()
        agent = self.cluster.agent(0, ["--standalone", "--silence_ms=6000"], name="hangs")
        talweg.init(agent.addresses["socket"], timeout_s=DEADLINE_S)
        agent.process.send_signal(signal.SIGSTOP)
        with self.assertRaisesRegex(talweg.AgentLost, "is stopped, or hangs.* 6.0 s"):
            self._check_sum()


if __name__ == "__main__":
    unittest.main()
