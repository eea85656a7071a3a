# SPDX-License-Identifier: Apache-2.0
"""Jobs that fill the link of their aggregator, and how much of it each one gets."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import unittest
from types import TracebackType

from cluster import DEADLINE_S, TOOL, Cluster, Rank
from netns import Network
from permitted import network_of

_JOBS = ("one", "other")
_NODES = 2
_MBIT = 1_000_000
# Each rank always has so many tensors of so many bytes under way: more than a link's queue.
_TENSORS, _TENSOR_BYTES = "6", str(512 << 10)
# Rounds of the job that gets more, before anything is compared, and that are compared.
_FIRST_ROUNDS, _ROUNDS = 30, 90


class _Jobs:
    """An aggregator behind a link of that rate, and two jobs of two nodes, each on a host of its own."""

    def __init__(self, rules: str, link_bits_per_s: int) -> None:
        self._rules = rules
        self._rate = link_bits_per_s
        self._stack = contextlib.ExitStack()
        self._ranks: dict[str, list[Rank]] = {}

    def __enter__(self) -> _Jobs:
        with contextlib.ExitStack() as stack:
            hosts = ["server", *(f"{job}{node}" for job in _JOBS for node in range(_NODES))]
            self._network: Network = stack.enter_context(network_of(hosts))
            self._cluster = stack.enter_context(Cluster())
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, at)

    def _start(self) -> None:
        self._server = self._network.enter("server")
        self._network.shape("server", self._rate)
        rules = self._cluster.directory / "quotas"
        rules.write_text(self._rules)
        listen = [f"--listen={self._network.address('server')}:0", "--insecure"]
        line = [*listen, "--in_memory", f"--quotas_file={rules}"]
        scheduler = self._cluster.start("scheduler", "scheduler", line, self._server)
        self._scheduler = scheduler.addresses["listen"]
        line = [f"--scheduler={self._scheduler}", "--name=x", *listen]
        self._cluster.start("aggregator", "aggregator.x", line, self._server)
        end_s = time.monotonic() + DEADLINE_S
        while self.credit_held_bytes() is None:  # It has not registered yet.
            assert time.monotonic() < end_s
            time.sleep(0.01)

    def credit_held_bytes(self) -> int | None:
        line = [str(TOOL), "status", f"--scheduler={self._scheduler}", "--json"]
        output = subprocess.check_output([*self._server, *line], timeout=DEADLINE_S)
        answer = json.loads(output)["aggregators"].get("x")
        return None if answer is None else int(answer["counters"]["credit_held_bytes"])

    def begin(self, job: str) -> None:
        """Returns when a round is over."""
        self._ranks[job] = []
        for node in range(_NODES):
            host = self._network.enter(f"{job}{node}")
            line = ["--insecure", f"--scheduler={self._scheduler}", f"--job={job}"]
            line += [f"--node_rank={node}", "--rank_count=1"]
            line += [f"--min_members={_NODES}", f"--max_members={_NODES}"]
            agent = self._cluster.agent(node, line, host, name=f"{job}{node}")
            rank = self._cluster.rank(agent, "busy.py", [_TENSORS, _TENSOR_BYTES], host)
            self._ranks[job].append(rank)
        for rank in self._ranks[job]:
            rank.wait_for("ready")
        for rank in self._ranks[job]:
            rank.tell("go")
        self.goes_on(job, 1)

    def goes_on(self, job: str, rounds: int) -> None:
        for _ in range(rounds):
            self._ranks[job][0].wait_for("step ")

    def drop(self, job: str) -> int:
        """How many rounds have come that nobody has asked for."""
        rank = self._ranks[job][0]
        lines = [rank.lines.get() for _ in range(rank.lines.qsize())]
        assert all(line.startswith("step ") for line in lines), lines
        return len(lines)

    def ratio(self) -> float:
        """Rounds of one job over those of the other, while both are busy."""
        self.goes_on("one", _FIRST_ROUNDS)
        self.drop("one")
        self.drop("other")
        self.goes_on("one", _ROUNDS)
        more = self.drop("one")
        return (_ROUNDS + more) / max(1, self.drop("other"))


class LinkSharesTest(unittest.TestCase):
    def _ratio(self, rules: str, link_bits_per_s: int) -> float:
        with _Jobs(rules, link_bits_per_s) as jobs:
            jobs.begin("one")
            jobs.goes_on("one", 10)
            # A job alone waits for nobody.
            self.assertEqual(jobs.credit_held_bytes(), 0)
            jobs.begin("other")
            ratio = jobs.ratio()
            print(f"{rules.strip()} at {link_bits_per_s // _MBIT} Mbit/s: {ratio:.2f} to 1")
            self.assertNotEqual(jobs.credit_held_bytes(), 0)
            return ratio

    def _check_weights(self, link_bits_per_s: int) -> None:
        ratio = self._ratio("job one weight=4\n", link_bits_per_s)
        self.assertGreater(ratio, 2.2)
        self.assertLess(ratio, 6)

    def test_four_to_one_on_a_slow_link(self) -> None:
        self._check_weights(50 * _MBIT)

    def test_four_to_one_on_a_usual_link(self) -> None:
        self._check_weights(200 * _MBIT)

    @unittest.skipUnless(
        os.environ.get("TALWEG_TEST_FULL"), "a busy machine does not fill it: ./test --full"
    )
    def test_four_to_one_on_a_fast_link(self) -> None:
        self._check_weights(1000 * _MBIT)

    def test_equal_weights(self) -> None:
        ratio = self._ratio("job * weight=3\n", 200 * _MBIT)
        self.assertGreater(ratio, 0.6)
        self.assertLess(ratio, 1.7)

    def test_a_priority_goes_before_a_lower_one(self) -> None:
        """16 to 1. The other job still goes on."""
        ratio = self._ratio("job one priority=high\n", 200 * _MBIT)
        self.assertGreater(ratio, 8)
        self.assertLess(ratio, 40)


if __name__ == "__main__":
    unittest.main()
