# SPDX-License-Identifier: Apache-2.0
"""Floods the scheduler with processes that want to be let in."""

from __future__ import annotations

import os
import re
import unittest
from pathlib import Path

import other_user
from cluster import RUNFILES, Cluster, Daemon, Job, Rank

_SECRET = "0123456789abcdef" * 4
_LEASE_MS = 1000
# It grows by 3 to 9 MiB. If it kept the refused calls of a flood, that would be 40 MiB. What a
# sanitizer keeps of freed memory counts as well.
_GROWTH_KIB_MAX = (64 if os.environ.get("TALWEG_SANITIZER") else 20) << 10
_REPORTS = 15
_NO_BOUNDS_ON_CALLS = (
    "--peer_calls_per_second_max=1000000",
    "--peer_calls_open_max=1000000",
)
_RULES = """
job flood* tenant=flood
tenant flood jobs_max=4 members_max=64
"""


def _most_kib(daemon: Daemon) -> int:
    """Returns the most memory that the process has had."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])


class JoinFloodTest(unittest.TestCase):
    def _flood(self, kinds: tuple[str, ...], rules: str, options: tuple[str, ...]) -> list[str]:
        """Another user floods the scheduler. Returns what came of the calls of each kind."""
        reason = other_user.why_not()
        if reason:
            self.skipTest(reason)
        with Cluster() as cluster:
            secret = cluster.directory / "secret"
            secret.touch(mode=0o600)
            secret.write_text(_SECRET + "\n")
            quotas = cluster.directory / "quotas"
            quotas.write_text(rules)
            with_secret = [f"--secret_file={secret}"]
            job = Job(
                cluster,
                scheduler_options=[
                    *with_secret,
                    f"--lease_ms={_LEASE_MS}",
                    f"--quotas_file={quotas}",
                    *options,
                ],
                aggregator_options=with_secret,
                agent_options=with_secret,
            )
            address = job.scheduler.addresses["listen"]
            before = _most_kib(job.scheduler)
            program = str(RUNFILES / "tests/fault/join_flood")
            floods = []
            for kind in kinds:
                line = [*other_user.BECOME, program, address, kind]
                floods.append(Rank(cluster.process(line)))
                floods[-1].tell(_SECRET)
            for flood in floods:
                flood.wait_for("calls ")
            # A process that comes now gets in, and so does its job.
            own = [f"--scheduler={address}", "--min_members=1", "--job=honest", *with_secret]
            agent = cluster.agent(0, own, name="honest")
            cluster.wait_for_log(agent, "joined job")
            # The flood lasts for several leases.
            ends = []
            for flood in floods:
                for _ in range(_REPORTS):
                    text = flood.wait_for("calls ")
                ends.append(text)
            for rank in job.all_ranks():
                rank.goes_on()
            self.assertLess(_most_kib(job.scheduler) - before, _GROWTH_KIB_MAX)
            log = cluster.log(job.scheduler)
            self.assertNotRegex(log, "job '(default|honest)': .*(lost|lease)")
            for daemon in (job.scheduler, agent, *job.aggregators, *job.agents):
                self.assertIsNone(daemon.process.poll())
            for flood in floods:
                flood.process.kill()
            return ends

    def test_without_the_job_secret(self) -> None:
        (end,) = self._flood(("wrong",), "", ())
        self.assertIn(" code-7 ", end)  # A Join with another secret.
        self.assertIn(" code-16 ", end)  # A sealed call that does not open.
        self.assertIn(" code-8 ", end)  # Too many calls.

    def test_without_the_job_secret_and_without_bounds_on_calls(self) -> None:
        """The scheduler reads, and refuses, each call of the flood."""
        (end,) = self._flood(("wrong",), "", _NO_BOUNDS_ON_CALLS)
        self.assertIn(" code-7 ", end)
        self.assertIn(" code-16 ", end)
        self.assertNotIn(" code-8 ", end)

    def test_with_the_job_secret_and_bounds_on_calls(self) -> None:
        ends = self._flood(("one-job", "many-jobs"), _RULES, ())
        self.assertTrue(any(" code-8 " in end for end in ends), ends)

    def test_with_the_job_secret_and_rules_alone(self) -> None:
        """The flood comes through to the scheduler's core."""
        ends = self._flood(("one-job", "many-jobs"), _RULES, _NO_BOUNDS_ON_CALLS)
        for end in ends:
            self.assertIn(" sealed-10 ", end)  # It has to wait.
            self.assertNotIn(" code-8 ", end)


if __name__ == "__main__":
    unittest.main()
