# SPDX-License-Identifier: Apache-2.0
"""Tests in which order results leave over a slow link, by how many have come before one."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import unittest

from cluster import DEADLINE_S, TOOL, Cluster
from permitted import network_of

_LOW_COUNT = 8
_LOW_BYTES = 4 << 20
_HIGH_BYTES = 1 << 20
# At this rate 32 MiB take five seconds, so results wait at the aggregator on any machine.
_LINK_BITS_PER_S = 50_000_000


class ResultsByPriorityTest(unittest.TestCase):
    def _low_before_high(self, *options: str) -> tuple[int, int]:
        """Returns how many results of low priority come to "slow" before the one of high priority,
        and how many results have waited.

        "slow" has contributed to all tensors. Then "quick" contributes to those of low priority, so
        all their results are made at once, and then to the one of high priority.
        """
        with contextlib.ExitStack() as stack:
            network = stack.enter_context(network_of(["server", "slow", "quick"]))
            cluster = stack.enter_context(Cluster())
            server = network.enter("server")
            listen = [f"--listen={network.address('server')}:0", "--insecure"]
            line = [*listen, "--in_memory"]
            scheduler = cluster.start("scheduler", "scheduler", line, server).addresses["listen"]
            line = [f"--scheduler={scheduler}", "--name=x", *listen, *options]
            cluster.start("aggregator", "aggregator.x", line, server)
            end_s = time.monotonic() + DEADLINE_S

            def counter(name: str) -> int:
                line = [str(TOOL), "status", f"--scheduler={scheduler}", "--json"]
                output = subprocess.check_output([*server, *line], timeout=DEADLINE_S)
                self.assertLess(time.monotonic(), end_s, "not in time")
                answer = json.loads(output)["aggregators"].get("x")
                return -1 if answer is None else int(answer["counters"][name])

            while counter("contribution_bytes") < 0:  # The aggregator has not registered yet.
                time.sleep(0.01)
            ranks = []
            for node, host in enumerate(("slow", "quick")):
                line = ["--insecure", f"--scheduler={scheduler}", "--job=training"]
                line += [f"--node_rank={node}", "--rank_count=1", "--min_members=2"]
                agent = cluster.agent(node, [*line, "--max_members=2"], network.enter(host))
                sizes = [str(number) for number in (_LOW_COUNT, _LOW_BYTES, _HIGH_BYTES)]
                ranks.append(cluster.rank(agent, "low_and_high.py", sizes, network.enter(host)))
            slow, quick = ranks
            for rank in ranks:
                rank.wait_for("ready")
            low_bytes = _LOW_COUNT * _LOW_BYTES
            contributed = counter("contribution_bytes") + low_bytes + _HIGH_BYTES
            slow.tell("push")
            while counter("contribution_bytes") < contributed:
                time.sleep(0.01)
            network.shape("slow", _LINK_BITS_PER_S)
            summed = counter("summed_bytes") + 2 * low_bytes
            quick.tell("push")
            while counter("summed_bytes") < summed:
                time.sleep(0.01)
            quick.tell("push")
            count = int(slow.wait_for("high after ").rpartition(" ")[2])
            for rank in ranks:
                rank.wait_for("all are right")
            return count, counter("results_queued")

    def test_a_result_of_high_priority_overtakes(self) -> None:
        """A result of high priority overtakes all except those that have left, at most 4 MiB."""
        count, waited = self._low_before_high("--results_by_priority")
        self.assertLessEqual(count, _LOW_COUNT // 2)
        self.assertGreater(waited, 0)

    def test_without_it_results_come_as_they_were_summed(self) -> None:
        self.assertEqual(self._low_before_high(), (_LOW_COUNT, 0))


if __name__ == "__main__":
    unittest.main()
