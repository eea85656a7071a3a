# SPDX-License-Identifier: Apache-2.0
"""Tests that ranks of the real torchrun start the daemons that their nodes need, and end them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import unittest

import job
from launcher_site import BACKEND, RANK, TORCHRUN, SiteTest, backend, torchrun
from outliving_site import OutlivingTest


class TorchrunTest(SiteTest):
    def test_one_node(self) -> None:
        line = [*torchrun(), "--standalone", "--nproc-per-node=3", "--no-python", *RANK, "sum"]
        self.require_ranks(self.run_line(line), [3])
        self.require_nothing_left()

    def test_one_rank_needs_no_agent(self) -> None:
        line = [*torchrun(), "--standalone", "--nproc-per-node=1", "--no-python", *RANK, "sum"]
        self.require_ranks(self.run_line(line), [1])
        self.assertEqual(list(self.directory.glob("talweg-*")), [])

    def test_the_backend_of_torch(self) -> None:
        output = self.run_line(
            [*torchrun(), "--standalone", "--nproc-per-node=2", "--no-python", *backend()]
        )
        self.assertEqual(output.count("of 2: sum is right"), 2, output)
        self.require_nothing_left()

    def test_programs_of_other_systems(self) -> None:
        for module in ("byteps.common", "horovod.common.basics"):
            program = f"import talweg.{module} as b; b.init(); print(f'rank {{b.rank()}} of {{b.size()}}')"
            line = [
                *torchrun(),
                "--standalone",
                "--nproc-per-node=2",
                "--no-python",
                sys.executable,
            ]
            output = self.run_line([*line, "-P", "-c", program])
            self.assertIn("rank 0 of 2", output)
            self.assertIn("rank 1 of 2", output)

    def test_daemons_know_the_variables_of_byteps(self) -> None:
        program = (
            "import os, pathlib, talweg; from talweg.byteps import common; common.init(); "
            "lines = {each: each.read_bytes() for each in pathlib.Path('/proc').glob('[0-9]*/cmdline')}; "
            "path = talweg._client.current().agent_socket.encode(); "
            "[agent] = [each for each, line in lines.items() if b'--socket_path=' + path in line]; "
            "told = agent.with_name('environ').read_bytes().split(b'\\0'); "
            "print(*sorted(each for each in told if each[:10] == b'TALWEG_SLI')); talweg.barrier()"
        )
        line = [*torchrun(), "--standalone", "--nproc-per-node=2", "--no-python", sys.executable]
        line += ["-P", "-c", program]
        output = self.run_line(line, BYTEPS_PARTITION_BYTES="65536", DMLC_NUM_SERVER="2")
        self.assertEqual(output.count("b'TALWEG_SLICE_BYTES_MAX=65536'"), 2, output)
        said = "DMLC_NUM_SERVER has no effect here: torchrun says who is in the job"
        self.assertEqual(output.count(said), 1, output)

    def test_a_program_that_starts_its_ranks_itself(self) -> None:
        """Without a launcher's variables ranks find each other's hosts in torch's store."""
        output = self.run_line([*BACKEND, "spawn", "2"])
        self.assertEqual(output.count("of 2: sum is right"), 2, output)
        self.require_nothing_left()

    def test_groups_of_all_ranks_that_have_other_ranks_later(self) -> None:
        """Each init_process_group() may have other ranks. The last ones stay in their job."""
        store = self.directory / "worlds"
        store.mkdir()
        lines = [[*backend(), "worlds", str(store), str(process)] for process in range(3)]
        output = self.finish(*map(self.start, lines))
        self.assertEqual(output.count("sums are right"), 3, output)
        self.require_nothing_left()

    def test_ranks_that_swap_their_numbers(self) -> None:
        """Some ranks swap their numbers. For others torchrun's variables stay right. All meet."""
        line = [*torchrun(), "--standalone", "--nproc-per-node=3", "--no-python"]
        output = self.run_line([*line, *backend(), "renumbered", str(self.directory)])
        self.assertEqual(output.count("sums are right"), 3, output)
        self.require_nothing_left()

    def test_torchrun_starts_the_ranks_again(self) -> None:
        """Each life of torchrun is a job of its own."""
        line = [
            *torchrun(),
            "--standalone",
            "--nproc-per-node=2",
            "--max-restarts=1",
            "--no-python",
        ]
        self.require_ranks(self.run_line([*line, *RANK, "fail_once"]), [2])
        self.require_nothing_left()

    def test_a_rank_that_comes_late(self) -> None:
        """init() returns when all ranks of the node have called it. A rank may call it again."""
        late = str(self.directory / "late")
        line = [
            *torchrun(),
            "--standalone",
            "--nproc-per-node=2",
            "--no-python",
            *RANK,
            "late",
            late,
        ]
        output = self.run_line(line)
        self.assertRegex(output, "told: .* 2 s: local rank 1 of .* has not called init")
        self.require_ranks(output, [2])
        self.require_nothing_left()

    def test_several_lives_in_one_process(self) -> None:
        line = [*torchrun(), "--standalone", "--nproc-per-node=2", "--no-python", *RANK, "again"]
        self.require_ranks(self.run_line(line), [2])
        self.require_nothing_left()

    def test_the_first_rank_dies(self) -> None:
        """The first rank, which has started the daemons, dies. Others get an error."""
        line = [*torchrun(), "--standalone", "--nproc-per-node=3", "--no-python", *RANK, "die", "0"]
        output = self.run_line(line, status=1)
        self.assertRegex(output, "told: JobFailed: .*rank 0")
        self.require_nothing_left()

    def test_the_keeper_dies(self) -> None:
        """The keeper's daemons end with it, and ranks get an error."""
        held = self._hold()
        [keeper] = self.keepers()
        os.kill(keeper, signal.SIGKILL)
        output = self.finish(held, status=1)
        self.assertRegex(output, "talweg.errors.(AgentLost|JobFailed)")
        left = self.processes()
        self.assertEqual([line for line in left.values() if "talweg-agent" in line], [])

    def test_a_signal_to_torchrun(self) -> None:
        held = self._hold()
        held.send_signal(signal.SIGTERM)
        self.finish(held, status=None)
        self.require_nothing_left()

    def test_everything_is_killed_but_the_keeper(self) -> None:
        held = self._hold()
        keepers = self.keepers()
        for pid, line in self.processes().items():
            if pid not in keepers and "talweg-agent" not in line:
                os.kill(pid, signal.SIGKILL)
        self.finish(held, status=None)
        self.require_nothing_left()

    def test_two_jobs_at_once(self) -> None:
        line = [*torchrun(), "--standalone", "--nproc-per-node=2", "--no-python", *RANK, "sum"]
        output = self.finish(self.start(line), self.start(line))
        self.require_ranks(output, [2], times=2)
        self.require_nothing_left()

    def _hold(self) -> subprocess.Popen[str]:
        """Starts a torchrun that tests may kill, and returns it when its ranks have summed."""
        stop = str(self.directory / "stop")
        line = [*TORCHRUN, "--standalone", "--nproc-per-node=2", "--no-python", *RANK, "hold", stop]
        started = self.start(line)
        assert started.stdout is not None
        held, end = 0, time.monotonic() + job.TIMEOUT_S
        while held < 2 and time.monotonic() < end:
            held += "holds" in started.stdout.readline()
        self.assertEqual(held, 2)
        return started


class OutlivedAgentTest(OutlivingTest):
    """Tests that the keeper starts an agent again for ranks that wait for it."""

    def _start(self, **variables: str) -> subprocess.Popen[str]:
        line = [*torchrun(), "--standalone", "--nproc-per-node=2", "--no-python", *self.program]
        started = self.start(line, **variables)
        self.go_on(2)
        return started

    def test_it_is_killed_and_then_hangs(self) -> None:
        started = self._start(TALWEG_SILENCE_MS="6000")
        for number in (signal.SIGKILL, signal.SIGSTOP):
            [agent] = self.agents()
            self.kill_agent(agent, number)
            self.go_on(2)
        self.stop()
        output = self.finish(started)
        self.assertEqual(output.count("talweg-agent was killed by signal 9"), 2, output)
        self.assertIn("this node's agent is started again, 2 of 3 times in 300 s", output)
        self.require_equal_ends(2)
        self.require_nothing_left()

    def test_it_is_killed_too_often(self) -> None:
        started = self._start(TALWEG_AGENT_RESTARTS="1")
        [agent] = self.agents()
        self.kill_agent(agent)
        self.go_on(2)
        [agent] = self.agents()
        os.kill(agent, signal.SIGKILL)
        output = self.finish(started, status=1)
        text = "started again: it was started again 1 time in 300 s, and TALWEG_AGENT_RESTARTS"
        self.assertIn(text, output)
        # torchrun ends the other rank when one has failed, perhaps before it has printed its error.
        last_lines = "\n".join(lines[-1] for lines in self.said().values())
        self.assertRegex(last_lines, f"error AgentLost: .*{text}")
        self.require_nothing_left()

    def test_a_bound_that_is_none(self) -> None:
        line = [*torchrun(), "--standalone", "--nproc-per-node=2", "--no-python", *RANK, "sum"]
        output = self.run_line(line, status=1, TALWEG_AGENT_RESTARTS="often")
        self.assertIn("TALWEG_AGENT_RESTARTS is 'often'; it must be a number from 0", output)


if __name__ == "__main__":
    unittest.main()
