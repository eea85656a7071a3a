# SPDX-License-Identifier: Apache-2.0
"""Tests `talweg run` on hosts that come and go, when one silently loses its network."""

from __future__ import annotations

import unittest
from pathlib import Path

from ssh_hosts import SshHosts, SshHostsJob

_SILENCE_S = 6
_VARIABLES = {"TALWEG_LEASE_MS": "2000", "TALWEG_HOST_SILENCE_S": f"{_SILENCE_S}"}


class HostsCutTest(unittest.TestCase):
    def _begin(self, *options: str) -> SshHostsJob:
        self.hosts = SshHosts(self, ["a", "b"])
        # The node starts itself again, and comes back when it can, as the same member.
        options = ("--hostfile={hosts}", "--restarts=5", "--restart-pause-ms=100", *options, "--")
        program = ["train_on.py", "--pause=0.01"]
        job = SshHostsJob(self, self.hosts, "a b", options, program, **_VARIABLES)
        job.go_on(2)
        return job

    def _cut(self, job: SshHostsJob, says: str) -> int:
        """Cuts host b off. Returns its rank's PID, when the launcher has said what it does."""
        [lost] = [pid for pid in job.said() if pid in self.hosts.processes("b")]
        self.hosts.network.unplug("b")
        job.go_on(1)  # The other rank goes on when the lease is over.
        job.says(f"host {job.address('b')} (node 1) is lost: ")
        job.says(says)
        self.assertIn("ssh to it failed", job.text())
        return lost

    def test_it_is_barred(self) -> None:
        job = self._begin()
        lost = self._cut(job, "it is not used again before it has been off the list")
        self.hosts.network.plug("b")
        job.wait_for("nothing is left on b", lambda: not self.hosts.processes("b"))
        self.assertFalse(Path(f"/proc/{lost}").exists())
        job.go_on(1)
        job.stop()
        self.assertIn("the job has ended well without host", job.end())
        self.assertEqual(len(job.weights()), 1)
        self.assertEqual(self.hosts.processes("a"), [])

    def test_it_cools_down_and_comes_back(self) -> None:
        job = self._begin("--host-cooldown-s=1,2")
        lost = self._cut(job, "it is used again after 1 s")
        # The launcher cannot reach the host yet.
        job.says(f"host {job.address('b')} (node 2) is lost: ")
        # The network is still gone. All that ran there has ended by itself, except for sshd.
        job.wait_for("all has ended on b", lambda: set(self.hosts.programs("b")) <= {"sshd"})
        self.assertFalse(Path(f"/proc/{lost}").exists())
        self.hosts.network.plug("b")
        job.go_on(2)
        job.stop()
        job.end()
        self.assertEqual(len(job.weights()), 2)
        self.assertEqual(len(set(job.weights())), 1)
        self.assertEqual(self.hosts.processes("a"), [])


if __name__ == "__main__":
    unittest.main()
