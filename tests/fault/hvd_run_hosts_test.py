# SPDX-License-Identifier: Apache-2.0
"""Tests horovod.run() of functions that train in Horovod's elastic mode, on hosts that change."""

from __future__ import annotations

import os
import signal
import sys
import time
import unittest
from typing import Any

from cluster import DEADLINE_S, PROGRAMS
from talweg.horovod.runner.elastic import constants
from virtual_hosts import HostsJob


class _Job(HostsJob):
    launcher = (sys.executable, "-P", str(PROGRAMS / "hvd_run.py"))

    def __init__(self, test: unittest.TestCase, hosts: str, arguments: str, **variables: str):
        self.variables = variables
        super().__init__(test, hosts, [f"dict({arguments})"], ["{ranks}"])

    def order(self, name: str) -> None:
        (self.ranks / name).touch()

    def hears_news(self) -> None:
        """Returns when a rank has heard that the list of hosts has changed."""
        self.wait_for("news", lambda: any("news" in lines for lines in self.said().values()))

    def results(self) -> list[Any]:
        output = self.end()
        found = [line for line in output.splitlines() if line.startswith("results ")]
        if len(found) != 1:
            self.fail("no results")
        return list(eval(found[0].partition(" ")[2]))

    def error(self) -> str:
        """Returns the text of the RuntimeError, with no result before it."""
        output = self.end()
        found = output.partition("raises RuntimeError horovod.run: ")[2]
        if not found or "\nresults " in output:
            self.fail("no RuntimeError")
        return found


class HvdRunHostsTest(unittest.TestCase):
    def test_a_host_that_comes(self) -> None:
        """It gets the function, and its ranks' results come after those of the first host."""
        arguments = "min_num_proc=1, max_num_proc=3, slots=2, host_discovery_script='{script}'"
        job = _Job(self, "a:1", arguments)
        job.go_on(1)
        job.name_hosts("a:1 b")
        job.hears_news()
        job.go_on(3)
        job.stop()
        self.assertEqual(job.results(), [(0, 3, "a", 7), (1, 3, "b", 7), (2, 3, "b", 7)])

    def test_a_host_that_is_killed(self) -> None:
        """Its rank has no result. The others have other numbers at the end."""
        job = _Job(self, "a:1 b:1", "min_num_proc=2, hostfile='{hosts}'")
        job.go_on(2)
        job.kill_host("a")
        job.says("the job needs 2 ranks to go on, and has 1 (b)")
        job.name_hosts("a:1 b:1 c:1")
        job.go_on(2)
        job.stop()
        self.assertEqual(job.results(), [(0, 2, "b", 7), (1, 2, "c", 7)])

    def test_a_host_that_goes(self) -> None:
        arguments = "num_proc=1, host_discovery_script='{script}', verbose=True, use_gloo=True"
        job = _Job(self, "a:1", arguments)
        job.go_on(1)
        job.name_hosts("b:2")
        job.hears_news()
        job.wait_for("nothing is left on a", lambda: not job.processes("a"))
        job.go_on(2)
        job.stop()
        self.assertEqual(job.results(), [(0, 2, "b", 7), (1, 2, "b", 7)])

    def test_the_function_fails_at_one_host(self) -> None:
        """Its rank is lost, as with Horovod. The others go on."""
        job = _Job(self, "a:1 b:1", "num_proc=2, min_num_proc=1, hostfile='{hosts}'")
        job.go_on(2)
        job.order("fails.a")
        job.says("host a (node 0) is lost: rank 0.0")
        job.go_on(1)
        job.stop()
        self.assertEqual(job.results(), [(0, 1, "b", 7)])

    def test_one_rank_of_a_host_dies(self) -> None:
        """The host's other rank is lost with it, as with Horovod."""
        job = _Job(self, "a:2 b:2", "num_proc=4, min_num_proc=2, hostfile='{hosts}'")
        job.go_on(4)
        job.order("dies.a.1")
        job.says("host a (node 0) is lost: rank 0.1")
        job.go_on(2)
        job.stop()
        self.assertEqual(job.results(), [(0, 2, "b", 7), (1, 2, "b", 7)])
        self.assertIn("has ended well without host a (node 0): rank 0.1", job.text())

    def test_the_function_fails_at_all_hosts(self) -> None:
        job = _Job(self, "a:1 b:1", "num_proc=2, min_num_proc=1, hostfile='{hosts}'")
        job.go_on(2)
        job.order("fails.a")
        job.order("fails.b")
        text = r"host [ab] \(node ([01])\): rank \1.0 \(pid \d+\) failed: exit status 1 \(above\); "
        text += "no node is left; .* processes exited with non-zero status"
        self.assertRegex(job.error(), text)
        self.assertIn("ArithmeticError: it was told to fail", job.text())

    def test_fewer_ranks_than_the_least_end_well(self) -> None:
        job = _Job(self, "a:1 b:1", "min_num_proc=2, hostfile='{hosts}'")
        job.go_on(2)
        job.order("fails.at_end.b")
        job.stop()
        text = "1 of at least 2 ranks has a result: the job has ended well without host b"
        self.assertIn(text, job.error())

    def test_too_few_hosts(self) -> None:
        arguments = "min_num_proc=2, host_discovery_script='{script}'"
        job = _Job(self, "a:1", arguments, HOROVOD_ELASTIC_TIMEOUT="1")
        self.assertIn("the job needs 2 ranks to begin, and has 1 (a): not within 1 s", job.error())

    def test_the_limit_of_resets(self) -> None:
        job = _Job(self, "a:1", "min_num_proc=1, reset_limit=1, host_discovery_script='{script}'")
        job.go_on(1)
        job.name_hosts("a:1 b:1")
        job.go_on(2)
        job.name_hosts("a:1")
        error = job.error()
        self.assertIn("hosts have come or gone 2 times, and the limit is 1", error)
        # Programs look for Horovod's sentence.
        self.assertIn(constants.RESET_LIMIT_EXCEEDED_MESSAGE.format(1), error)

    def test_a_host_that_has_failed_is_used_again(self) -> None:
        arguments = "min_num_proc=2, cooldown_range=(1, 2), hostfile='{hosts}'"
        job = _Job(self, "a:1 b:1", arguments)
        job.go_on(2)
        job.kill_host("a")
        job.says("host a is node 2")
        job.go_on(2)
        job.stop()
        self.assertEqual(job.results(), [(0, 2, "b", 7), (1, 2, "a", 7)])

    def test_the_program_is_killed(self) -> None:
        """All that it has started ends, and leaves no file."""
        job = _Job(self, "a:1 b:1", "min_num_proc=2, hostfile='{hosts}'")
        job.go_on(2)
        job.process.kill()
        job.process.wait()
        end = time.monotonic() + DEADLINE_S
        while left := [*job.processes(), *job.temporary.iterdir()]:
            self.assertLess(time.monotonic(), end, left)
            time.sleep(0.01)

    def test_the_program_is_interrupted(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            job = _Job(self, "a:1", "min_num_proc=1, hostfile='{hosts}'")
            job.go_on(1)
            os.kill(job.process.pid, number)
            self.assertIn("KeyboardInterrupt", job.end(-signal.SIGINT))


if __name__ == "__main__":
    unittest.main()
