# SPDX-License-Identifier: Apache-2.0
"""Tests `talweg run` when daemons and ranks die: what it starts again, and what ends the run."""

import os
import pathlib
import re
import signal
import unittest

from run_testing import TIMEOUT_S, Run, RunTestCase, run


class RunDeathsTest(RunTestCase):
    def test_a_daemon_that_fails(self) -> None:
        for daemon in ("talweg-scheduler", "talweg-aggregator", "talweg-agent"):
            shape = ["--force-distributed", "--", "echo", "x"]
            status, output, errors = run(*shape, FAKE_DAEMON_FAILS=daemon)
            self.assertEqual((status, output), (9, ""), errors)
            self.assertRegex(
                errors,
                rf"{daemon}.* ended before its ranks: exit status 9; the run was ended; its last "
                "lines are above\n$",
            )
            self.assertEqual(errors.count("no luck"), 1, errors)

    def test_a_daemon_that_fails_before_others_write(self) -> None:
        """What it has written is far above, so it is shown once more."""
        script = """
            trap "echo too >&2; exit 1" TERM
            echo up
            for _ in $(seq 6000); do sleep 0.01; done
        """
        run = Run("--", "bash", "-c", script, FAKE_AGENT_ENDS_AFTER="go")
        run.until_output("up")
        (run.log / "go").touch()
        status, _, errors = run.end()
        self.assertEqual(status, 5, errors)
        self.assertIn("\ntalweg-agent of node 0's last lines:\n    agent ends\n", errors)

    def test_a_daemon_that_is_killed_has_written_nothing(self) -> None:
        run = Run("--", "echo", "x", FAKE_AGENT_WAITS_FOR="go")
        run.until_started("talweg-agent", 1)
        [agent] = run.pids_of("talweg-agent")
        os.kill(agent, signal.SIGKILL)
        status, output, errors = run.end()
        self.assertEqual((status, output), (128 + signal.SIGKILL, ""), errors)
        self.assertIn(
            f"talweg-agent of node 0 (pid {agent}) ended before its ranks: killed by signal 9 "
            "(Killed); the run was ended; it has written nothing (its log comes here; "
            "TALWEG_LOG_LEVEL=info makes it longer)",
            errors,
        )

    def test_a_daemon_that_never_serves(self) -> None:
        # The others have enough time to serve, even on a busy machine.
        status, _, errors = run(
            "--nodes=2", "--ready-timeout-ms=5000", "--", "true", FAKE_DAEMON_SILENT="talweg-agent"
        )
        self.assertEqual(status, 1)
        self.assertIn("talweg-agent of node 0, talweg-agent of node 1 did not serve", errors)

    def test_a_daemon_that_dies_with_ranks_at_work(self) -> None:
        run = Run("--nodes=2", "--", "sh", "-c", "echo up; sleep 1000")
        run.until_output("[1] up")
        os.kill(run.pids_of("talweg-aggregator")[0], signal.SIGKILL)
        status, _, errors = run.end()
        self.assertEqual(status, 128 + signal.SIGKILL)
        self.assertIn("ended before its ranks: killed by signal 9", errors)

    def test_a_daemon_that_dies_before_the_ranks_have_started(self) -> None:
        for daemon in ("talweg-scheduler", "talweg-aggregator"):
            run = Run(
                *["--nodes=2", "--restarts=1", "--", "echo", "done"], FAKE_AGENT_WAITS_FOR="go"
            )
            run.until_started("talweg-agent", 2)
            os.kill(run.pids_of(daemon)[0], signal.SIGKILL)
            run.until_started(daemon, 2)
            (run.log / "go").touch()
            status, output, errors = run.end()
            self.assertEqual((status, output.count("done")), (0, 2), errors)
            self.assertRegex(
                errors, rf"{daemon}.* killed by signal 9 \(Killed\); it is started again\n"
            )

    def test_an_agent_that_dies_before_the_ranks_have_started(self) -> None:
        """It serves, or does not serve yet. The ranks wait for the agent that takes its place."""
        for dies in (0, 1):
            run = Run(
                *["--nodes=2", "--restarts=1", "--restart-pause-ms=1", "--"],
                *["echo", "done"],
                FAKE_AGENT_WAITS_FOR="go",
                FAKE_NODE_THAT_WAITS="1",
            )
            run.until_started("talweg-agent", 2)
            [pid] = [pid for pid in run.pids_of("talweg-agent") if run.node_of(pid) == dies]
            if dies == 0:
                run.until_serving(pid)
            os.kill(pid, signal.SIGKILL)
            run.until_started("talweg-agent", 3)
            (run.log / "go").touch()
            status, output, errors = run.end()
            self.assertEqual((status, output.count("done")), (0, 2), errors)
            self.assertEqual(len(run.pids_of("talweg-agent")), 3)
            self.assertIn(
                f"talweg: run: the agent of node {dies} is started again (1 of 1 times in 300 s): "
                f"talweg-agent of node {dies} (pid {pid}) ended before its ranks: killed by signal "
                "9 (Killed)\n",
                errors,
            )

    def test_an_agent_that_never_serves_is_started_again_as_often_as_it_may_be(self) -> None:
        status, output, errors = run(
            *["--restarts=2", "--restart-pause-ms=1", "--", "echo", "x"],
            FAKE_DAEMON_FAILS="talweg-agent",
        )
        self.assertEqual((status, output), (9, ""), errors)
        self.assertEqual(errors.count("the agent of node 0 is started again"), 2, errors)
        self.assertEqual(errors.count("no luck"), 3, errors)
        self.assertIn("exit status 9; the run was ended; its last lines are above\n", errors)

    def test_an_agent_that_refuses_its_options_is_not_started_again(self) -> None:
        status, _, errors = run(
            *["--restarts=2", "--restart-pause-ms=1", "--", "echo", "x"],
            FAKE_DAEMON_FAILS="talweg-agent",
            FAKE_FAILS_WITH="2",
        )
        self.assertEqual(status, 2, errors)
        self.assertNotIn("started again", errors)

    # A node of a job that may have finished: its agents must not begin another one.
    _LATE = (
        "--scheduler=127.0.0.1:7447", "--max-nodes=4", "--node-rank=3", "--not-after-finish",
        "--restarts=1", "--restart-pause-ms=1", "--",
    )  # fmt: skip

    def _are_late(self, run: Run) -> list[bool]:
        """Returns of the first two agents whether they begin no other job."""
        lines = (run.log / "talweg-agent").read_text().splitlines()
        return ["--not_after_finish" in line for line in lines[:2]]

    def test_a_late_node_that_starts_again_is_late_still(self) -> None:
        """Its ranks know nothing of a job, whatever the first ones have said."""
        run = Run(
            *self._LATE, "bash", "-c",
            "[ $TALWEG_RUN_RESTARTS = 1 ] || { echo begun > $TALWEG_RUN_OUTLIVES; exit 7; }",
        )  # fmt: skip
        status, _, errors = run.end()
        self.assertEqual(status, 0, errors)
        self.assertEqual(self._are_late(run), [True, True])

    def test_a_late_node_whose_ranks_outlive_their_agent(self) -> None:
        """They may begin another job only if they have been in one."""
        for word in ("", "begun"):
            script = (
                f"printf '{word}' > $TALWEG_RUN_OUTLIVES; echo up; "
                "until [ -e $TALWEG_TEST_LOG/go ]; do sleep 0.01; done"
            )
            run = Run(*self._LATE, "bash", "-c", script)
            run.until_output("up")
            os.kill(run.pids_of("talweg-agent")[0], signal.SIGKILL)
            run.until_started("talweg-agent", 2)
            (run.log / "go").touch()
            status, _, errors = run.end()
            self.assertEqual(status, 0, errors)
            self.assertEqual(self._are_late(run), [True, not word])

    def test_a_late_node_whose_ranks_have_left_their_job(self) -> None:
        script = "touch $TALWEG_RUN_NEEDS; until [ -e $TALWEG_TEST_LOG/go ]; do sleep 0.01; done"
        run = Run(*self._LATE, "bash", "-c", script, FAKE_AGENT_ENDS_WITH="0")
        run.until_started("talweg-agent", 2)
        (run.log / "go").touch()
        self.assertEqual(run.end()[0], 0)
        self.assertEqual(self._are_late(run), [True, False])

    def test_an_aggregator_that_dies_before_the_ranks_have_started_without_restarts(self) -> None:
        run = Run("--nodes=2", "--", "echo", "done", FAKE_AGENT_WAITS_FOR="go")
        run.until_started("talweg-agent", 2)
        os.kill(run.pids_of("talweg-aggregator")[0], signal.SIGKILL)
        status, output, errors = run.end()
        self.assertEqual((status, output), (128 + signal.SIGKILL, ""), errors)
        self.assertIn("killed by signal 9 (Killed); the run was ended", errors)

    def test_a_killed_rank_was_first_of_ranks_that_end_at_once(self) -> None:
        script = """
            echo $$ > $TALWEG_TEST_LOG/new$RANK; mv $TALWEG_TEST_LOG/{new,rank}$RANK; echo up
            [ $RANK = 0 ] && exec sleep 1000
            until [ -e $TALWEG_TEST_LOG/go ]; do sleep 0.01; done
            exit 1
        """
        run = Run("--ranks-per-node=2", "--", "bash", "-c", script)
        if "[0] up" not in run.until_output("[1] up"):
            run.until_output("[0] up")
        pids = [int((run.log / f"rank{rank}").read_text()) for rank in range(2)]
        supervisor = run.supervisor()
        os.kill(supervisor, signal.SIGSTOP)  # When it goes on, it sees both ends at once.
        os.kill(pids[0], signal.SIGKILL)
        (run.log / "go").touch()
        for pid in pids:
            run.until_ended(pid)
        os.kill(supervisor, signal.SIGCONT)
        status, _, errors = run.end()
        self.assertEqual(status, 128 + signal.SIGKILL, errors)
        self.assertIn(f"rank 0 (pid {pids[0]}) failed first: killed by signal 9", errors)

    def test_a_scheduler_that_dies_is_started_again_where_it_was(self) -> None:
        script = "echo up; until [ -e $TALWEG_TEST_LOG/go ]; do sleep 0.01; done; echo done"
        for options in ([], ["--force-distributed"]):
            run = Run("--nodes=2", *options, "--", "bash", "-c", script)
            run.until_output("[1] up")
            for count in (2, 3):
                os.kill(run.pids_of("talweg-scheduler")[-1], signal.SIGKILL)
                run.until_started("talweg-scheduler", count)
            started = run.arguments_of("talweg-scheduler")
            (run.log / "go").touch()
            status, output, errors = run.end()
            self.assertEqual((status, output.count("done")), (0, 2), errors)
            self.assertIn("killed by signal 9 (Killed); it is started again, steps go on", errors)
            # The first scheduler may choose its port. The others get its address, and its store.
            listens = {re.sub(".*--listen=([^ ]*).*", r"\1", line) for line in started}
            self.assertEqual(listens, {"127.0.0.1:0", "127.0.0.1:4711"} if options else {*listens})
            [store] = {re.sub(".*--store_path=([^ ]*).*", r"\1", line) for line in started}
            self.assertTrue(store.endswith("/scheduler.db"), store)

    def test_a_scheduler_that_dies_again_and_again_ends_the_run(self) -> None:
        run = Run("--nodes=2", "--", "bash", "-c", "echo up; sleep 1000")
        run.until_output("[1] up")
        (run.directory.name / pathlib.Path("bin/talweg-scheduler")).write_text("#!/bin/sh\nexit 4")
        os.kill(run.pids_of("talweg-scheduler")[0], signal.SIGKILL)
        status, _, errors = run.end()
        self.assertEqual(status, 4, errors)
        self.assertEqual(errors.count("it is started again"), 10)
        self.assertIn("ended before its ranks: exit status 4; the run was ended", errors)

    def test_ranks_that_outlive_their_job_get_another_agent(self) -> None:
        script = "touch $TALWEG_RUN_NEEDS; echo up; until [ -e $TALWEG_TEST_LOG/go ]; do sleep 0.01; done"
        run = Run("--", "bash", "-c", script, FAKE_AGENT_ENDS_WITH="0")
        run.until_output("up")
        run.until_started("talweg-agent", 3)
        (run.log / "go").touch()
        status, _, errors = run.end()
        self.assertEqual((status, errors.count("is started again")), (0, 0), errors)

    def test_a_rank_that_is_slow_to_end_gets_no_other_agent(self) -> None:
        # Two seconds would be enough to get another agent.
        run = Run("--", "sleep", "2", FAKE_AGENT_ENDS_WITH="0")
        run.process.wait(TIMEOUT_S)
        self.assertEqual(len(run.arguments_of("talweg-agent")), 1)
        self.assertEqual(run.end()[0], 0)

    # Rank 0 says first that it fails. Rank 1 says it later, but ends first.
    _ENDS_LATER = """
        own=$TALWEG_RUN_FAILS
        if [ $RANK = 0 ]; then
          until [ -s $TALWEG_TEST_LOG/rank1 ]; do sleep 0.01; done
          touch $own
          while [ -e /proc/$(cat $TALWEG_TEST_LOG/rank1) ]; do sleep 0.01; done
          %s
          exit 7
        fi
        echo $$ > $TALWEG_TEST_LOG/rank1
        first=${own%%.1.fails}.0.fails
        until [ -e $first ]; do sleep 0.01; done
        until [ $own -nt $first ]; do touch $own; done
        exit 3
    """

    def test_the_rank_that_has_failed_first_is_named(self) -> None:
        """The other rank fails because of it, but ends before it."""
        shape = ["--ranks-per-node=2", "--"]
        for then, named, status in (("", "rank 0", 7), ("sleep 1000", "rank 1", 3)):
            run = Run(*shape, "bash", "-c", self._ENDS_LATER % then)
            found, _, errors = run.end()
            self.assertEqual(found, status, errors)
            self.assertRegex(errors, rf"{named} \(pid \d+\) failed first: exit status {status}")

    # Rank 1 fails until its node was started again twice.
    _FAILS_TWICE = """
        echo "up $RANK.$TALWEG_RUN_RESTARTS"
        [ $RANK = 1 -a $TALWEG_RUN_RESTARTS -lt 2 ] && exit 7
        until [ -e $TALWEG_TEST_LOG/go ]; do sleep 0.01; done
        echo "done $RANK.$TALWEG_RUN_RESTARTS"
    """

    def _restarted(self, *options: str) -> tuple[Run, str]:
        shape = ["--nodes=2", "--ranks-per-node=1,2", "--restart-pause-ms=1", *options]
        run = Run(*shape, "--", "bash", "-c", self._FAILS_TWICE)
        seen = run.until_output("up 1.2") if "--restarts=1" not in options else ""
        (run.log / "go").touch()
        return run, seen

    def test_a_node_that_fails_is_started_again(self) -> None:
        run, seen = self._restarted("--restarts=2", "--loss-policy=continue")
        started = len(run.pids_of("talweg-agent"))
        status, output, errors = run.end()
        self.assertEqual(status, 0, errors)
        self.assertEqual(started, 4)
        self.assertEqual(re.findall(r"up 0\.\d", seen), ["up 0.0"])  # Node 0 was not started again.
        self.assertIn("done 0.0", seen + output)
        self.assertIn("done 1.2", seen + output)
        self.assertIn("done 2.2", seen + output)
        for time_ in (1, 2):
            text = rf"node 1 is started again \({time_} of 2 times in 300 s\): rank 1 \(pid \d+\)"
            self.assertRegex(errors, text + " failed: exit status 7")
        self.assertNotIn("lost", errors)

    def test_a_node_that_fails_too_often_is_lost(self) -> None:
        run, _ = self._restarted("--restarts=1", "--loss-policy=continue")
        status, output, errors = run.end()
        self.assertEqual(status, 0, errors)
        self.assertIn("done 0.0", output)
        self.assertIn("started again (1 of 1", errors)
        self.assertIn("the run has ended well without node 1", errors)

    # Rank 1 dies once, and looks for a job from then on. Rank 0 ends when it has seen that.
    _COMES_BACK_LATE = """
        if [ $RANK.$TALWEG_RUN_RESTARTS = 1.0 ]; then exit 7; fi
        if [ $RANK = 1 ]; then %s echo back; exec sleep 1000; fi
        until [ -e $TALWEG_TEST_LOG/go ]; do sleep 0.01; done
        echo done
    """

    def test_a_node_that_is_back_when_the_others_have_ended_is_not_waited_for(self) -> None:
        shape = ["--nodes=2", "--loss-policy=continue", "--restarts=1", "--restart-pause-ms=1"]
        for at_once in (True, False):
            looks = "touch $TALWEG_RUN_NEEDS;"
            later = "while kill -0 $(cat $TALWEG_TEST_LOG/rank0) 2>/dev/null; do sleep 0.01; done;"
            script = self._COMES_BACK_LATE % (looks if at_once else "echo back;" + later + looks)
            run = Run(
                *[*shape, "--", "bash", "-c", "echo $$ >> $TALWEG_TEST_LOG/rank$RANK;" + script]
            )
            run.until_output("back")
            (run.log / "go").touch()
            status, output, errors = run.end()
            self.assertEqual(status, 0, errors)
            self.assertIn("done", output)
            self.assertIn(
                "the run has ended well without node 1; the others had ended before node 1 was "
                "back",
                errors,
            )

    def test_what_a_node_has_left_does_not_run_beside_its_next_life(self) -> None:
        script = """
            if [ $RANK.$TALWEG_RUN_RESTARTS = 1.0 ]; then
              setsid sleep 1000 & echo $! > $TALWEG_TEST_LOG/left
              exit 7
            fi
            if [ $RANK = 1 ]; then
              exec 2>/dev/null
              # What has been killed may take a moment to end.
              for _ in $(seq 1000); do
                state=$(cut -d ' ' -f 3 /proc/$(cat $TALWEG_TEST_LOG/left)/stat)
                [ "${state:-Z}" = Z ] && break
                sleep 0.01
              done
              echo "left $state"
              exit
            fi
            until [ -e $TALWEG_TEST_LOG/go ]; do sleep 0.01; done
        """
        shape = ["--nodes=2", "--loss-policy=continue", "--restarts=1", "--restart-pause-ms=1"]
        run = Run(*shape, "--", "bash", "-c", script)
        seen = run.until_output("left")
        left = pathlib.Path("/proc", (run.log / "left").read_text().strip(), "stat")
        (run.log / "go").touch()
        status, output, errors = run.end()
        self.assertEqual(status, 0, errors)
        self.assertRegex(seen + output, r"left Z?\n")
        self.assertFalse(left.exists())
        self.assertIn("node 1 had left a process of local rank 0, killed", errors)

    def test_where_all_are_needed_all_are_started_again(self) -> None:
        run, seen = self._restarted("--restarts=2")
        status, output, errors = run.end()
        self.assertEqual(status, 0, errors)
        self.assertEqual(len(re.findall(r"up 1\.", seen + output)), 3)
        for rank in range(3):
            self.assertIn(f"done {rank}.2", seen + output)
        self.assertEqual(errors.count("all nodes are started again"), 2)

    def test_where_all_are_needed_the_last_to_start_again_is_waited_for(self) -> None:
        """The other node's rank ends well before node 0's agent serves again."""
        script = """
            [ $RANK.$TALWEG_RUN_RESTARTS = 0.0 ] && exec sleep 1000
            [ $RANK.$TALWEG_RUN_RESTARTS = 1.0 ] && exit 7
            [ $RANK = 0 ] && echo done
            [ $RANK = 0 ] || { echo $$ > $TALWEG_TEST_LOG/new; mv $TALWEG_TEST_LOG/{new,rank1}; }
        """
        shape = ["--nodes=2", "--restarts=1", "--restart-pause-ms=1"]
        status, output, errors = run(*shape, "--", "bash", "-c", script, FAKE_AGENT_IS_LATE="1")
        self.assertEqual(status, 0, errors)
        self.assertIn("[0] done", output)

    def test_where_all_are_needed_one_that_fails_too_often_ends_the_run(self) -> None:
        script = "[ $RANK = 1 ] && exit 7; sleep 1000"
        status, _, errors = run(
            *["--nodes=2", "--restarts=1", "--restart-pause-ms=1", "--", "bash", "-c", script]
        )
        self.assertEqual(status, 7, errors)
        self.assertEqual(errors.count("all nodes are started again"), 1)
        self.assertIn("failed: exit status 7; all other ranks were ended", errors)

    def test_an_aggregator_is_started_again_where_others_serve(self) -> None:
        script = "echo up; until [ -e $TALWEG_TEST_LOG/go ]; do sleep 0.01; done"
        shape = ["--nodes=2", "--aggregators=2", "--loss-policy=continue"]
        run = Run(*shape, "--", "bash", "-c", script)
        run.until_output("[1] up")
        first = run.arguments_of("talweg-aggregator")
        os.kill(run.pids_of("talweg-aggregator")[0], signal.SIGKILL)
        run.until_started("talweg-aggregator", 3)
        again = run.arguments_of("talweg-aggregator")
        (run.log / "go").touch()
        status, _, errors = run.end()
        self.assertEqual(status, 0, errors)
        self.assertIn("it is started again, the others serve on", errors)
        plain = [re.sub(" --ready_fd=.*", "", line) for line in again]
        self.assertEqual({*plain}, {re.sub(" --ready_fd=.*", "", line) for line in first})

    def test_an_agent_may_end_well_before_its_ranks(self) -> None:
        status, output, errors = run(
            "--", "sh", "-c", "sleep 0.1; echo x", FAKE_AGENT_ENDS_WITH="0"
        )
        self.assertEqual((status, output), (0, "[0] x\n"), errors)

    def test_an_agent_that_ends_with_its_rank_is_not_blamed(self) -> None:
        status, _, errors = run("--", "sh", "-c", "sleep 0.1; exit 7", FAKE_AGENT_ENDS_WITH="1")
        self.assertEqual(status, 7)
        self.assertIn("rank 0", errors)
        # This rank has said that it fails, and ends later than the agent.
        script = "touch $TALWEG_RUN_FAILS; sleep 3; exit 7"
        status, _, errors = run("--", "sh", "-c", script, FAKE_AGENT_ENDS_WITH="1")
        self.assertEqual(status, 7, errors)
        # The process of this one does not end in time. Its output says why the agent has ended.
        script = "echo my own error >&2; touch $TALWEG_RUN_FAILS; exec sleep 1000"
        status, _, errors = run("--", "sh", "-c", script, FAKE_AGENT_ENDS_WITH="5")
        self.assertEqual(status, 5, errors)
        self.assertRegex(
            errors,
            r"talweg-agent of node 0 \(pid \d+\) ended before its ranks: exit status 5, after the "
            r"program of rank 0 \(pid \d+\) had ended; the run was ended\n"
            r"rank 0's last lines:\n    my own error\n",
        )
        # The run ends with that rank's status: its process has it in the end, or its mark says it.
        script = "trap 'exit 7' TERM; touch $TALWEG_RUN_FAILS; sleep 1000 & wait"
        status, _, errors = run("--", "sh", "-c", script, FAKE_AGENT_ENDS_WITH="5")
        self.assertEqual(status, 7, errors)
        script = "echo 3 > $TALWEG_RUN_FAILS; exec sleep 1000"
        status, _, errors = run("--", "sh", "-c", script, FAKE_AGENT_ENDS_WITH="5")
        self.assertEqual(status, 3, errors)
        status, _, errors = run("--", "sleep", "1000", FAKE_AGENT_ENDS_WITH="5")
        self.assertEqual(status, 5)
        self.assertIn("talweg-agent of node 0", errors)
        self.assertEqual(errors.count("agent ends"), 1, errors)


if __name__ == "__main__":
    unittest.main()
