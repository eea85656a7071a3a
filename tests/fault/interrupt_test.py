# SPDX-License-Identifier: Apache-2.0
"""Tests that Ctrl-C interrupts a rank that waits for its agent, and that the call can go on."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import unittest
from collections.abc import Callable
from concurrent import futures
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import talweg
from cluster import DEADLINE_S, Cluster
from talweg._client import Client
from talweg._declaration import Op
from talweg._elastic import state_rounds
from talweg._elastic.membership import membership_of

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


class TwoRanksTest(unittest.TestCase):
    """The main thread is one rank, whose wait for the other one is interrupted."""

    def setUp(self) -> None:
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        cluster = stack.enter_context(Cluster())
        agent = cluster.agent(0, ["--standalone", "--rank_count=2"])
        with futures.ThreadPoolExecutor() as pool:
            made = [
                pool.submit(Client, agent.addresses["socket"], DEADLINE_S, False) for _ in range(2)
            ]
            self.clients = [each.result() for each in made]
        for client in self.clients:
            self.addCleanup(client.close)
        before = signal.signal(signal.SIGALRM, self._interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)

    def _interrupt(self, *_: object) -> None:
        raise KeyboardInterrupt

    def _interrupted(self, call: Callable[[], object]) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            with self.assertRaises(KeyboardInterrupt):
                call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _with_other(self, own: Callable[[], object], other: Callable[[], object]) -> None:
        with futures.ThreadPoolExecutor() as pool:
            theirs = pool.submit(other)
            own()
            theirs.result()

    def test_the_end_of_a_step(self) -> None:
        """A step has several rounds. Each is interrupted once, and gone on with."""
        states = [
            talweg.State(
                weights=np.ones(3), train=talweg.ElasticSampler(64, 2, balance=True, seed=1)
            )
            for _ in self.clients
        ]
        for state in states:
            state.check_every(1)  # Each step has a round for the digests, and one for the times.
        members = [membership_of(client) for client in self.clients]
        self._with_other(*(partial(m.begin, state) for m, state in zip(members, states)))
        ends = [partial(m.end_step, state._commit) for m, state in zip(members, states)]
        for _ in range(3):
            self._interrupted(ends[0])
            self._interrupted(ends[0])
            self._with_other(*ends)
        exchange, raised = state_rounds.exchange_times, [KeyboardInterrupt]

        def exchange_times(client: Client, times: Any) -> Any:
            if client is self.clients[0] and raised:
                raise raised.pop()
            return exchange(client, times)

        with mock.patch.object(state_rounds, "exchange_times", exchange_times):
            self._with_other(
                lambda: (self.assertRaises(KeyboardInterrupt, ends[0]), ends[0]()), ends[1]
            )

    def test_what_is_not_gone_on_with_is_another_round(self) -> None:
        ones: np.ndarray = np.ones(3)
        runs = [partial(client.run, "x", ones.copy(), Op.SUM) for client in self.clients]
        self._interrupted(runs[0])
        with futures.ThreadPoolExecutor() as pool:
            theirs = pool.submit(lambda: [runs[1](), runs[1]()])
            runs[0]()
            theirs.result()


if __name__ == "__main__":
    unittest.main()
