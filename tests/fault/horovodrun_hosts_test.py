# SPDX-License-Identifier: Apache-2.0
"""Tests a program of Horovod's elastic mode under horovodrun, on hosts that come and go."""

from __future__ import annotations

import sys
import unittest

from torch_forks import torch_forks
from virtual_hosts import HostsJob


class _Job(HostsJob):
    launcher = (sys.executable, "-P", "-m", "talweg.horovod.runner")

    def __init__(
        self, test: unittest.TestCase, hosts: str, *options: str, factor: float = 1.0
    ) -> None:
        program = ["hvd_elastic_torch.py", str(factor)]
        super().__init__(test, hosts, options, program, torch_forks())

    def sizes(self) -> set[str]:
        """Returns the sizes that the ranks have been told after changes."""
        return {
            line.partition(" ")[2]
            for lines in self.said().values()
            for line in lines
            if line.startswith("reset")
        }


class HorovodrunHostsTest(unittest.TestCase):
    def test_from_one_host_to_two_and_back(self) -> None:
        script = ["--host-discovery-script", "{script}", "--slots-per-host", "2"]
        job = _Job(self, "a", "-np", "1", "--min-np", "1", "--max-np", "3", *script)
        job.go_on(2)
        job.name_hosts("a b")
        job.go_on(3)  # There is room for one of the new host's two slots.
        job.name_hosts("b")
        job.wait_for("nothing is left on a", lambda: not job.processes("a"))
        job.go_on(1)
        job.stop()
        output = job.end()
        self.assertIn("host b is node 1, with 1 rank", output)
        self.assertEqual(len(job.weights()), 1, output)
        self.assertLessEqual({"3", "1"}, job.sizes())

    def test_the_only_host_with_the_state_is_taken_off_the_list(self) -> None:
        """The host trains on until another has its state, although the job may have one rank."""
        options = ["-np", "1", "--min-np", "1", "--max-np", "1", "--hostfile", "{hosts}"]
        job = _Job(self, "a", *options)
        job.go_on(1)
        job.name_hosts("slow")
        job.says("host a (node 0) is not listed any more")
        job.says("host a is not listed any more, and goes when a listed host has its state")
        job.go_on(1)
        (job.directory / "SLOW").touch()
        job.wait_for("nothing is left on a", lambda: not job.processes("a"))
        job.go_on(1)
        job.stop()
        output = job.end()
        self.assertEqual(len(job.weights()), 1, output)
        lines = job.said().values()
        begun = sorted(next(line for line in each if "begins" in line) for each in lines)
        self.assertEqual(begun[0], "begins 0")
        self.assertRegex(begun[1], "^begins [1-9]")  # The second rank begins with the state.

    def test_a_host_is_killed(self) -> None:
        """Another host takes its place. All have the same weights, and end with 0."""
        job = _Job(self, "a:1 b:1", "-np", "2", "--min-np", "2", "--hostfile", "{hosts}")
        job.go_on(2)
        job.kill_host("a")  # Host a has the lower rank, and is the source of all state.
        job.says("the job needs 2 ranks to go on, and has 1 (b)")
        job.name_hosts("a:1 b:1 c:1")
        job.go_on(2)
        job.stop()
        output = job.end()
        self.assertEqual(len(job.weights()), 2, output)
        self.assertEqual(len(set(job.weights())), 1, output)

    def test_averages_divide_by_the_ranks_that_there_are(self) -> None:
        """So do averages with a part of the division before the sum."""
        options = ["-np", "1", "--min-np", "1", "--hostfile", "{hosts}"]
        job = _Job(self, "a:1", *options, factor=2.0)
        job.go_on(1)
        job.name_hosts("a:1 b:1")
        job.go_on(2)
        job.stop()
        output = job.end()
        self.assertEqual(len(job.weights()), 2, output)
        self.assertEqual(len(set(job.weights())), 1, output)

    def test_the_limit_of_resets(self) -> None:
        job = _Job(
            self, "a:1", "-np", "1", "--min-np", "1", "--reset-limit", "1", "--hostfile", "{hosts}"
        )
        job.go_on(1)
        job.name_hosts("a:1 b:1")
        job.go_on(2)
        job.name_hosts("a:1")
        self.assertIn("hosts have come or gone 2 times, and the limit is 1", job.end(1))


if __name__ == "__main__":
    unittest.main()
