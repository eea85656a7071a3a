# SPDX-License-Identifier: Apache-2.0
"""Tests how jobs share the link of their aggregator when they fill it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import time
import unittest
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from cluster import DEADLINE_S, TOOL, Cluster, Rank
from netns import Network
from permitted import network_of

_JOBS = ("one", "other")
_NODES = 2
_MBIT = 1_000_000
# Each rank always has so many tensors of so many bytes under way, which is more than a link's
# queue.
_TENSORS, _TENSOR_BYTES = "6", str(512 << 10)
# Tensors that one lane sums as a whole, because they have less than 64 KiB for each lane.
_SMALL_TENSORS, _SMALL_TENSOR_BYTES = 40, 96 << 10
# How many rounds of the job with more pass before the comparison, and how many are compared.
_FIRST_ROUNDS, _ROUNDS = 30, 90


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def _fingerprint(text: str) -> int:
    """Returns the fingerprint of libs/base/fingerprint.h."""
    value = 0xCBF29CE484222325 ^ len(text)
    for char in text.encode():
        value = (value ^ char) * 0x100000001B3 % 2**64
    return _mix(value)


def _names_at(lane: str, lanes: list[str], count: int) -> list[str]:
    """Returns names of tensors that lie whole at that lane (libs/view/placement.h)."""

    def owner(name: str) -> str:
        key = _mix(_fingerprint(name))
        return max(lanes, key=lambda each: _mix(key ^ _fingerprint(each)))

    names = (f"small{i}" for i in itertools.count())
    return list(itertools.islice((name for name in names if owner(name) == lane), count))


class _Jobs:
    """An aggregator with a slow link, and two jobs of two nodes, each on a host of its own."""

    def __init__(self, rules: str, link_bits_per_s: int, lanes: int = 1) -> None:
        self._rules = rules
        self._lanes = lanes
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
        line = [f"--scheduler={self._scheduler}", "--name=x", f"--lanes={self._lanes}", *listen]
        self._cluster.start("aggregator", "aggregator.x", line, self._server)
        end_s = time.monotonic() + DEADLINE_S
        while len(self._aggregators()) < self._lanes:  # Some lanes have not registered yet.
            assert time.monotonic() < end_s
            time.sleep(0.01)

    def _aggregators(self) -> dict[str, Any]:
        line = [str(TOOL), "status", f"--scheduler={self._scheduler}", "--json"]
        output = subprocess.check_output([*self._server, *line], timeout=DEADLINE_S)
        answer: dict[str, Any] = json.loads(output)["aggregators"]
        return answer

    def credit_held_bytes(self) -> int:
        lanes = self._aggregators().values()
        return sum(int(lane["counters"]["credit_held_bytes"]) for lane in lanes)

    def sums_at(self, lane: str, job: str) -> int:
        """Returns how many slices of the job the lane has summed."""
        jobs = {each["name"]: each for each in self._aggregators()[lane]["jobs"]}
        return int(jobs[job]["rounds_done"]) if job in jobs else 0

    def begin(self, job: str, tensors: Sequence[str] = (_TENSORS, _TENSOR_BYTES)) -> None:
        """Starts the job. Returns when a round is over."""
        self._ranks[job] = []
        for node in range(_NODES):
            host = self._network.enter(f"{job}{node}")
            line = ["--insecure", f"--scheduler={self._scheduler}", f"--job={job}"]
            line += [f"--node_rank={node}", "--rank_count=1"]
            line += [f"--min_members={_NODES}", f"--max_members={_NODES}"]
            agent = self._cluster.agent(node, line, host, name=f"{job}{node}")
            rank = self._cluster.rank(agent, "busy.py", tensors, host)
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
        """Drops the rounds that have come and that nobody has taken. Returns how many."""
        rank = self._ranks[job][0]
        lines = [rank.lines.get() for _ in range(rank.lines.qsize())]
        assert all(line.startswith("step ") for line in lines), lines
        return len(lines)

    def ratio(self, times: int = 1) -> float:
        """Returns the rounds of one job over those of the other, while both are busy.

        It compares `times` as many rounds.
        """
        self.goes_on("one", times * _FIRST_ROUNDS)
        self.drop("one")
        self.drop("other")
        self.goes_on("one", times * _ROUNDS)
        more = self.drop("one")
        return (times * _ROUNDS + more) / max(1, self.drop("other"))


class LinkSharesTest(unittest.TestCase):
    def _ratio(self, rules: str, link_bits_per_s: int) -> float:
        with _Jobs(rules, link_bits_per_s) as jobs:
            jobs.begin("one")
            jobs.goes_on("one", 10)
            # A single job does not wait for credit.
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

    def test_four_to_one_over_all_lanes(self) -> None:
        """One job is at one lane, the other at both. They share the link, not only that lane."""
        lanes = ["x", "x/1"]
        names = _names_at(lanes[0], lanes, _SMALL_TENSORS)
        small = [str(_SMALL_TENSORS), str(_SMALL_TENSOR_BYTES), *names]
        with _Jobs("job one weight=4\n", 200 * _MBIT, len(lanes)) as jobs:
            jobs.begin("one", small)
            jobs.goes_on("one", 10)
            jobs.begin("other")
            rounds = jobs.ratio(int(_TENSOR_BYTES) // _SMALL_TENSOR_BYTES)
            self.assertEqual(jobs.sums_at(lanes[1], "one"), 0)
            for lane in lanes:
                self.assertGreater(jobs.sums_at(lane, "other"), 0)
        ratio = rounds * _SMALL_TENSOR_BYTES / int(_TENSOR_BYTES)
        print(f"weight 4 at one of two lanes, beside a job at both: {ratio:.2f} to 1")
        self.assertGreater(ratio, 2.2)
        self.assertLess(ratio, 6)

    def test_equal_weights(self) -> None:
        ratio = self._ratio("job * weight=3\n", 200 * _MBIT)
        self.assertGreater(ratio, 0.6)
        self.assertLess(ratio, 1.7)

    def test_a_priority_goes_before_a_lower_one(self) -> None:
        """Priorities give shares of 16 to 1. The other job still goes on.

        On a faster link the first job does not always fill its share where the machine is busy.
        """
        ratio = self._ratio("job one priority=high\n", 50 * _MBIT)
        self.assertGreater(ratio, 8)
        self.assertLess(ratio, 40)


if __name__ == "__main__":
    unittest.main()
