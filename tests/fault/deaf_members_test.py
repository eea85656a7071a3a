# SPDX-License-Identifier: Apache-2.0
"""Tests members of a job that never read what the scheduler tells them."""

from __future__ import annotations

import re
import unittest
from pathlib import Path

from cluster import RUNFILES, Cluster, Daemon, Job, Rank

# Each gets a view with the texts of all: 570 MB altogether.
_MEMBERS = 500
_GROWTH_KIB_MAX = 300 << 10


def _most_kib(daemon: Daemon) -> int:
    """Returns the most memory that the process has had."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])


class DeafMembersTest(unittest.TestCase):
    def test_the_scheduler_keeps_little_for_members_that_do_not_read(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, scheduler_options=["--secret_file=none"])
            address = job.scheduler.addresses["listen"]
            before = _most_kib(job.scheduler)
            program = str(RUNFILES / "tests/fault/deaf_members")
            deaf = Rank(cluster.process([program, address, str(_MEMBERS)]))
            deaf.wait_for("running")
            cluster.wait_for_log(
                job.scheduler, "ends the watch of the agent of node .* did not read"
            )
            self.assertLess(_most_kib(job.scheduler) - before, _GROWTH_KIB_MAX)
            # Another job goes on, and none of its leases has ended.
            for rank in job.all_ranks():
                rank.goes_on()
            self.assertNotRegex(cluster.log(job.scheduler), "job 'default': .* lease has lapsed")
            self.assertIsNone(job.scheduler.process.poll())
            deaf.process.kill()


if __name__ == "__main__":
    unittest.main()
