# SPDX-License-Identifier: Apache-2.0
"""Tests that `talweg run` leaves nothing behind when a signal, a kill or a lost reader ends it."""

import os
import select
import signal
import time
import unittest

from run_testing import TIMEOUT_S, Run, RunTestCase


class RunEndTest(RunTestCase):
    def test_interrupt_at_any_moment(self) -> None:
        # The signal comes before anything starts, while daemons start, or while ranks run. The
        # outcome is the same in every case.
        for wait_s in (0, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08):
            run = Run("--nodes=2", "--ranks-per-node=2", "--", "sh", "-c", "echo up; sleep 1000")
            time.sleep(wait_s)
            run.process.send_signal(signal.SIGINT)
            status, _, errors = run.end()
            self.assertIn(status, (130, -signal.SIGINT), (wait_s, errors))

    def test_interrupt_reaches_the_ranks(self) -> None:
        script = "trap 'echo interrupted; exit 5' INT; echo up; sleep 1000 & wait"
        run = Run("--", "bash", "-c", script)
        run.until_output("up")
        run.process.send_signal(signal.SIGINT)
        status, output, _ = run.end()
        self.assertEqual(status, 130)
        self.assertIn("[0] interrupted", output)

    def test_a_second_interrupt_does_not_wait(self) -> None:
        script = "trap 'echo no' INT; echo up; while :; do sleep 1000; done"
        run = Run("--grace-ms=3600000", "--", "bash", "-c", script)
        run.until_output("up")
        run.process.send_signal(signal.SIGINT)
        run.until_output("no")
        run.process.send_signal(signal.SIGINT)
        self.assertEqual(run.end()[0], 130)

    def test_a_signal_to_all_processes_is_one(self) -> None:
        """systemd and batch systems signal each process. The ranks get their time all the same."""
        script = "trap 'sleep 2; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
        run = Run("--", "bash", "-c", script)
        run.until_output("up")
        supervisor = run.supervisor()
        os.kill(supervisor, signal.SIGTERM)
        run.process.send_signal(signal.SIGTERM)
        status, output, errors = run.end()
        self.assertEqual(status, 128 + signal.SIGTERM, errors)
        self.assertIn("saved", output)

    def test_killing_talweg_run_leaves_nothing(self) -> None:
        script = "(setsid sleep 1000 &); echo up; sleep 1000"
        run = Run("--nodes=2", "--grace-ms=100", "--", "bash", "-c", script)
        run.until_output("[1] up")
        run.process.kill()
        self.assertEqual(run.end()[0], -signal.SIGKILL)

    def test_killing_the_supervisor_leaves_nothing(self) -> None:
        run = Run("--nodes=2", "--", "bash", "-c", "(setsid sleep 1000 &); echo up; sleep 1000")
        run.until_output("[1] up")
        os.kill(run.supervisor(), signal.SIGKILL)
        status, _, errors = run.end()
        self.assertEqual(status, 128 + signal.SIGKILL)
        self.assertIn("the supervisor was killed by signal 9", errors)

    def test_what_is_left_when_both_are_killed_the_next_run_removes(self) -> None:
        run = Run("--", "bash", "-c", "echo up; sleep 1000")
        run.until_output("up")
        # The supervisor goes first: when its parent ends, the kernel continues its stopped group.
        pids = [run.supervisor(), run.process.pid]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)  # A stopped process does not learn of the other's end.
        supervisor = os.pidfd_open(pids[0])
        self.addCleanup(os.close, supervisor)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        run.process.wait(TIMEOUT_S)
        # While it lives, what it holds is not left. It is not a child of this process.
        self.assertTrue(select.select([supervisor], [], [], TIMEOUT_S)[0])
        [left] = run.temporary.iterdir()
        # The next run takes nothing from a run that still lives.
        beside = Run("--", "bash", "-c", "echo up; sleep 1000", TMPDIR=str(run.temporary))
        beside.until_output("up")
        [alive] = run.temporary.iterdir()
        self.assertNotEqual(alive, left)
        status, _, errors = Run("--", "true", TMPDIR=str(run.temporary)).end()
        self.assertEqual(status, 0, errors)
        self.assertEqual(list(run.temporary.iterdir()), [alive])
        beside.process.send_signal(signal.SIGTERM)
        beside.end()
        self.assertEqual(list(run.temporary.iterdir()), [])

    def test_what_nohup_has_started_outlives_the_terminal(self) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGHUP, before)
        script = "kill -HUP $$; for ((i = 0; ; i++)); do echo tick $i; sleep 0.01; done"
        run = Run("--", "bash", "-c", script)
        run.until_output("tick")
        for pid in (run.process.pid, run.supervisor()):
            os.kill(pid, signal.SIGHUP)
        seen = int(run.until_output("tick").rpartition("tick ")[2].split()[0])
        run.until_output(f"tick {seen + 50}\n")
        run.process.send_signal(signal.SIGTERM)
        self.assertEqual(run.end()[0], 128 + signal.SIGTERM)

    def test_a_terminal_that_goes_ends_the_run(self) -> None:
        run = Run("--", "sh", "-c", "echo up; sleep 1000")
        run.until_output("up")
        run.process.send_signal(signal.SIGHUP)
        self.assertEqual(run.end()[0], 128 + signal.SIGHUP)

    def test_a_reader_that_goes_ends_the_run(self) -> None:
        run = Run("--", "sh", "-c", "while :; do echo line; done")
        run.until_output("line")
        run.output.close()
        run.process.stdout = open(os.devnull, "rb")
        self.assertEqual(run.end()[0], 128 + signal.SIGPIPE)

    def test_an_interrupt_while_nobody_reads(self) -> None:
        run = Run("--grace-ms=500", "--", "sh", "-c", "while :; do echo line; done")
        run.until_output("line")
        run.process.send_signal(signal.SIGINT)
        run.process.wait(TIMEOUT_S)  # Nobody reads the output meanwhile.
        self.assertEqual(run.end()[0], 130)


if __name__ == "__main__":
    unittest.main()
