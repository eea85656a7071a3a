# SPDX-License-Identifier: Apache-2.0
"""Tests two users of one machine: their jobs stay apart, and one job may have ranks of both."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path

import job
import other_user
from cluster import DEADLINE_S, PROGRAMS, Cluster, Daemon

_CROSSED_LINES = [sys.executable, "-P", str(job.PROGRAMS / "crossed_lines.py")]


class TwoUsersTest(unittest.TestCase):
    def setUp(self) -> None:
        # root's own directories are closed to others, so this one is not among them.
        directory = tempfile.TemporaryDirectory(prefix="talweg.")
        self.addCleanup(directory.cleanup)
        self.home = Path(directory.name)
        os.chown(self.home, other_user.UID, other_user.UID)
        self.environment = dict(os.environ, HOME=str(self.home))
        self.environment.pop("XDG_RUNTIME_DIR", None)

    def _start(self, become: Sequence[str], line: Sequence[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*become, *line],
            env=self.environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.terminate)
        return process

    def _check(self, runs: Sequence[subprocess.Popen[str]]) -> None:
        outputs = [run.communicate(timeout=2 * DEADLINE_S)[0] for run in runs]
        self.assertEqual([run.returncode for run in runs], [0] * len(runs), "\n".join(outputs))

    def test_jobs_of_one_name_at_once(self) -> None:
        shape = ["--nodes=2", "--aggregators=1", "--force-distributed", "--job=same"]
        line = [job.TOOL, "run", *shape, "--", *_CROSSED_LINES, "2", "0.01"]
        self._check([self._start(become, line) for become in ((), other_user.BECOME)])

    def test_an_agent_of_each_user_in_one_job(self) -> None:
        with Cluster() as cluster:
            address = cluster.scheduler(["--in_memory"]).addresses["listen"]
            cluster.aggregator(address, "of-root")
            runs = []
            for node, become in enumerate(((), other_user.BECOME)):
                shape = [f"--scheduler={address}", "--nodes=2", f"--node-rank={node}"]
                line = [job.TOOL, "run", *shape, "--", *_CROSSED_LINES, "2", "0.01"]
                runs.append(self._start(become, line))
            self._check(runs)

    def _agent(self, cluster: Cluster, become: Sequence[str], *options: str) -> Daemon:
        socket = self.home / "agent.sock"
        line = [f"--socket_path={socket}", "--standalone", *options]
        return cluster.start("agent", "agent", line, become)

    def _refusal(self, cluster: Cluster, agent: Daemon, become: Sequence[str]) -> str:
        rank = cluster.rank(agent, "steady.py", (), become)
        line = rank.wait_for("talweg.errors.")
        self.assertNotEqual(rank.process.wait(DEADLINE_S), 0)
        return line

    def test_a_rank_of_root_is_not_served_by_another_users_agent(self) -> None:
        with Cluster() as cluster:
            agent = self._agent(cluster, other_user.BECOME)
            own = cluster.rank(agent, "steady.py", (), other_user.BECOME)
            own.wait_for("step 1 ")
            # The kernel lets root connect to any socket, so the agent asks who the client is.
            line = self._refusal(cluster, agent, ())
            self.assertIn("talweg.errors.PermissionDenied", line)
            self.assertIn(f"the agent of user {other_user.UID}", line)
            self.assertIn("does not serve user 0", line)
            self.assertIn("--socket_mode", line)
            own.wait_for("step ")  # The user's own rank goes on.

    def test_another_users_rank_is_not_served_by_roots_agent(self) -> None:
        self.home.chmod(0o755)
        with Cluster() as cluster:
            agent = self._agent(cluster, (), "--socket_mode=0600")
            line = self._refusal(cluster, agent, other_user.BECOME)
            self.assertIn(agent.addresses["socket"], line)
            self.assertIn("may not be opened by this user", line)

    def test_the_sockets_mode_lets_others_in(self) -> None:
        with Cluster() as cluster:
            agent = self._agent(cluster, (), "--socket_mode=0666", "--rank_count=2")
            ranks = [cluster.rank(agent, "steady.py", (), other_user.BECOME) for _ in range(2)]
            for rank in ranks:
                rank.wait_for("step 3 ")

    def test_a_group_lets_its_members_in(self) -> None:
        with Cluster() as cluster:
            group = f"--regid={other_user.UID}"  # The socket gets the agent's group.
            agent = self._agent(cluster, ("setpriv", group, "--clear-groups"), "--socket_mode=0660")
            cluster.rank(agent, "steady.py", (), other_user.BECOME).wait_for("step 3 ")

    def test_a_directory_that_another_user_made_is_not_used(self) -> None:
        """Another user has made the default directory of agents' sockets first."""
        runtime = self.home / "talweg"
        runtime.mkdir()
        os.chown(runtime, other_user.UID, other_user.UID)
        environment = dict(self.environment, XDG_RUNTIME_DIR=str(self.home))
        done = subprocess.run(
            [str(PROGRAMS.parents[2] / "services" / "agent" / "talweg-agent"), "--standalone"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"{runtime} belongs to user {other_user.UID}", done.stderr)


if __name__ == "__main__":
    reason = other_user.why_not()
    if reason:
        print(f"SKIPPED: {reason}")
        sys.exit(0)
    unittest.main()
