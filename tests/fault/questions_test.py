# SPDX-License-Identifier: Apache-2.0
"""Tests questions that cost daemons much to answer and cost the asker nothing."""

from __future__ import annotations

import unittest

from cluster import DEADLINE_S, RUNFILES, Cluster, Daemon, Job, Rank
from raw_http2 import RawHttp2

# How many questions a peer may have open (libs/rpc/call_limits.h).
_QUESTIONS_MAX = 16
_AGENT = "/talweg.agent.v1.AdminService/GetStatus"
_AGGREGATOR = "/talweg.aggregator.v1.AdminService/GetStatus"
# It sets with_tensors. The answer then has 300 KB and more for the program's tensors.
_OF_AGENT = b"\x10\x01"
_OF_AGGREGATOR = b"\x18\x01"
_STATE = "/talweg.scheduler.v1.AdminService/ListJobs"


class QuestionsTest(unittest.TestCase):
    def _hold_answers(self, daemon: Daemon, place: str, method: str, message: bytes) -> None:
        """Asks many questions, and takes no byte of any answer."""
        asked = 100
        address = daemon.addresses[place]
        with RawHttp2(address, DEADLINE_S, answer_window=0) as client:
            for _ in range(asked):
                client.ask(method, message)
            # The daemon refuses the others. A refusal needs no window.
            while len(client.closed) < asked - _QUESTIONS_MAX:
                self.assertTrue(client.take(DEADLINE_S), f"{len(client.closed)} of {place}")
            self.assertEqual(len(client.closed), asked - _QUESTIONS_MAX)
            # The daemon answers other calls.
            health = client.call("/nobodys/Method")
            while health not in client.closed:
                self.assertTrue(client.take(DEADLINE_S))

    def test_few_answers_wait_for_whoever_does_not_read_them(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, program="many_tensors.py", scheduler_options=["--secret_file=none"])
            self._hold_answers(job.scheduler, "listen", _STATE, b"")
            self._hold_answers(job.aggregators[0], "admin", _AGGREGATOR, _OF_AGGREGATOR)
            self._hold_answers(job.agents[0], "admin", _AGENT, _OF_AGENT)
            for rank in job.all_ranks():
                rank.goes_on()

    def test_long_answers_count_as_several_calls(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, program="many_tensors.py")
            for rank in job.all_ranks():  # When all make steps, tensors make answers long.
                rank.goes_on()
            for what, daemon in (("agent", job.agents[0]), ("aggregator", job.aggregators[0])):
                with self.subTest(what):
                    line = [str(RUNFILES / "tests/fault/caller"), daemon.addresses["admin"], what]
                    caller = Rank(cluster.process(line))
                    # On a slow machine the first refusals may come before long answers count.
                    caller.wait_for("long answers counted as several")
                    caller.process.kill()
            for rank in job.all_ranks():
                rank.goes_on()


if __name__ == "__main__":
    unittest.main()
