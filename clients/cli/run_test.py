# SPDX-License-Identifier: Apache-2.0
"""`talweg run` with shell scripts as daemons and ranks: what it starts, passes on, reports and leaves."""

import contextlib
import os
import pathlib
import re
import selectors
import signal
import subprocess
import tempfile
import time
import unittest
import uuid

TOOL = pathlib.Path(os.environ["RUNFILES_DIR"], "talweg/clients/cli/talweg")
TIMEOUT_S = 60

DAEMON = """#!/bin/bash
echo "$@" >> "$TALWEG_TEST_LOG/$(basename "$0")"
echo $$ >> "$TALWEG_TEST_PIDS/$(basename "$0")"
for argument in "$@"; do
  case $argument in --ready_fd=*) fd=${argument#*=} ;; esac
done
[ -z "$FAKE_DAEMON_FAILS" ] || [ "$(basename "$0")" != "$FAKE_DAEMON_FAILS" ] || { echo "no luck" >&2; exit 9; }
# When it is started again, node 0's agent serves when the run has seen the end of rank 1.
if [ -n "$FAKE_AGENT_IS_LATE" ] && [[ "$*" == *--node_rank=0* ]] && ! mkdir "$TALWEG_TEST_LOG/once"; then
  until [ -e "$TALWEG_TEST_LOG/rank1" ]; do sleep 0.01; done
  while [ -e "/proc/$(cat "$TALWEG_TEST_LOG/rank1")" ]; do sleep 0.01; done
fi 2>/dev/null
[ "$(basename "$0")" = "$FAKE_DAEMON_SILENT" ] ||
  printf '{"pid":1,"addresses":{"listen":"127.0.0.1:4711","admin":"127.0.0.1:1"}}\\n' >&"$fd"
if [ -n "$FAKE_AGENT_ENDS_WITH" ] && [ "$(basename "$0")" = talweg-agent ]; then
  echo "agent ends" >&2
  exit "$FAKE_AGENT_ENDS_WITH"
fi
exec sleep 1000
"""


RUNS: list["Run"] = []


class Run:
    """One `talweg run`, whose processes are known by a mark in their environment."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        self.directory = tempfile.TemporaryDirectory(dir="/tmp", prefix="trt-")
        root = pathlib.Path(self.directory.name)
        self.temporary = root / "tmp"
        self.log = root / "log"
        daemons = root / "bin"
        self.pids = root / "pids"
        for each in (self.temporary, self.log, self.pids, daemons):
            each.mkdir()
        for name in ("talweg-scheduler", "talweg-aggregator", "talweg-agent"):
            (daemons / name).write_text(DAEMON)
            (daemons / name).chmod(0o755)
        inherited = {k: v for k, v in os.environ.items() if k not in ("XDG_RUNTIME_DIR",)}
        self.process = subprocess.Popen(
            [TOOL, "run", *arguments],
            env=inherited
            | {
                "TALWEG_DAEMON_DIR": str(daemons),
                "TALWEG_TEST_LOG": str(self.log),
                "TALWEG_TEST_PIDS": str(self.pids),
                "TALWEG_TEST_MARK": self.mark,
                "TMPDIR": str(self.temporary),
            }
            | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self.output = self.process.stdout
        self.errors = self.process.stderr
        RUNS.append(self)

    def remove(self) -> None:
        """Ends what a failed test has left."""
        while left := self.marked():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.output, self.errors):
            pipe.close()
        self.directory.cleanup()

    def marked(self) -> list[int]:
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                environment = pathlib.Path("/proc", entry, "environ").read_bytes()
            except OSError:
                continue
            if self.mark.encode() in environment:
                found.append(int(entry))
        return found

    def supervisor(self) -> int:
        children = []
        for pid in self.marked():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It has just ended.
                stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
                if int(stat.rpartition(")")[2].split()[1]) == self.process.pid:
                    children.append(pid)
        assert len(children) == 1, children
        return children[0]

    def until_output(self, text: str) -> str:
        """Reads stdout until it holds `text`."""
        seen = b""
        selector = selectors.DefaultSelector()
        selector.register(self.output, selectors.EVENT_READ)
        deadline = time.monotonic() + TIMEOUT_S
        while text.encode() not in seen:
            assert selector.select(deadline - time.monotonic()), f"no '{text}' in {seen!r}"
            piece = os.read(self.output.fileno(), 65536)
            assert piece, f"output ended without '{text}': {seen!r}, {self.errors.read()!r}"
            seen += piece
        return seen.decode()

    def end(self) -> tuple[int, str, str]:
        """Waits for the end; the status, stdout and stderr. Nothing may be left."""
        try:
            output, errors = self.process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            for pid in self.marked():
                os.kill(pid, signal.SIGKILL)
            output, errors = self.process.communicate()
            raise AssertionError(f"hangs: {output.decode()} {errors.decode()}") from None
        # The outputs' end means that all who held them have gone; who did not hold them may take a moment.
        deadline = time.monotonic() + TIMEOUT_S
        while (left := self.marked()) and time.monotonic() < deadline:
            os.sched_yield()
        # TSan's runtime has a file for a moment when a program starts; who is killed just then leaves it.
        files = [path for path in self.temporary.iterdir() if not path.name.startswith("tsan.")]
        assert not left, f"processes left: {left}"
        assert not files, f"files left: {files}"
        return self.process.returncode, output.decode(), errors.decode()

    def pids_of(self, daemon: str) -> list[int]:
        return [int(pid) for pid in (self.pids / daemon).read_text().split()]

    def until_started(self, daemon: str, count: int) -> None:
        """Returns when the daemon has been started as often."""
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.pids_of(daemon)) < count:
            assert time.monotonic() < deadline, f"{daemon} was not started {count} times"
            time.sleep(0.01)

    def arguments_of(self, daemon: str) -> list[str]:
        return sorted((self.log / daemon).read_text().splitlines())


def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
    return Run(*arguments, **environment).end()


class RunTest(unittest.TestCase):
    def tearDown(self) -> None:
        while RUNS:
            RUNS.pop().remove()

    def test_ranks_get_their_variables_and_output_its_prefix(self) -> None:
        run = Run(
            "--nodes", "2", "--ranks-per-node", "2,1", "--aggregators=2", "--",
            "sh", "-c",
            'echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR ${MASTER_PORT:+port} '
            '$(basename $TALWEG_AGENT_SOCKET); printf partial >&2',
        )  # fmt: skip
        run.process.wait(TIMEOUT_S)
        scheduler, aggregators, agents = map(
            run.arguments_of, ("talweg-scheduler", "talweg-aggregator", "talweg-agent")
        )
        status, output, errors = run.end()
        self.assertEqual(status, 0, errors)
        self.assertEqual(
            sorted(output.splitlines()),
            [
                "[0] 0/3 0/2 127.0.0.1 port 0.sock",
                "[1] 1/3 1/2 127.0.0.1 port 0.sock",
                "[2] 2/3 0/1 127.0.0.1 port 1.sock",
            ],
        )
        self.assertEqual(sorted(errors.splitlines()), ["[0] partial", "[1] partial", "[2] partial"])
        self.assertEqual(len(scheduler), 1)
        # Nothing listens on a port; sockets lie in the run's directory, and the secret beside them.
        directory = rf"{re.escape(str(run.temporary))}/talweg-run-\w+"
        for lines in (scheduler, aggregators, agents):
            for line in lines:
                self.assertRegex(line, rf"listen=unix:{directory}/[\w-]+\.sock")
                self.assertRegex(line, rf"--secret_file={directory}/secret")
                self.assertNotIn("127.0.0.1:0", line)
        self.assertEqual(len(aggregators), 2)
        self.assertIn("--scheduler=127.0.0.1:4711 --name=1", aggregators[1])
        self.assertEqual(len(agents), 2)
        self.assertIn("--node_rank=1 --rank_count=1 --min_members=2 --max_members=2", agents[1])

    def test_one_node_needs_only_its_agent(self) -> None:
        run = Run("--ranks-per-node=2", "--", "true")
        run.process.wait(TIMEOUT_S)
        self.assertEqual([each.name for each in run.log.iterdir()], ["talweg-agent"])
        self.assertIn("--standalone", run.arguments_of("talweg-agent")[0])
        self.assertEqual(run.end()[0], 0)
        run = Run("--force-distributed", "true")
        run.process.wait(TIMEOUT_S)
        self.assertEqual(len(list(run.log.iterdir())), 3)
        self.assertNotIn("--standalone", run.arguments_of("talweg-agent")[0])
        self.assertIn("--listen=127.0.0.1:0", run.arguments_of("talweg-scheduler")[0])
        status, _, errors = run.end()
        self.assertEqual(status, 0)
        self.assertIn("--force-distributed asks for the network: TCP ports", errors)
        self.assertIn("talweg-scheduler 127.0.0.1:4711 (listen), ", errors)
        self.assertIn("talweg-agent of node 0 127.0.0.1:1 (admin)", errors)

    def test_why_a_port_is_opened(self) -> None:
        for options, environment in (
            (["--provider=tcp"], {}),
            ([], {"TALWEG_LOCAL_TRANSPORT": "false"}),
            ([], {"TALWEG_FORCE_DISTRIBUTED": "1"}),
        ):
            reason = options[0].partition("=")[0] if options else next(iter(environment))
            status, _, errors = run("--nodes=2", *options, "true", **environment)
            self.assertEqual(status, 0, errors)
            self.assertIn(f"talweg: run: {reason} asks for the network", errors)

    def test_one_node_where_nodes_come_and_go(self) -> None:
        run = Run(
            "--scheduler=127.0.0.1:7447", "--max-nodes=4", "--ranks-per-node=2", "--node-rank=7",
            "--aggregators=1", "--", "sh", "-c",
            "echo ${RANK-none} ${WORLD_SIZE-none} $GROUP_RANK $LOCAL_RANK/$LOCAL_WORLD_SIZE",
            RANK="3", WORLD_SIZE="9",
        )  # fmt: skip
        run.process.wait(TIMEOUT_S)
        self.assertEqual(
            sorted(each.name for each in run.log.iterdir()), ["talweg-agent", "talweg-aggregator"]
        )
        agent = run.arguments_of("talweg-agent")[0]
        aggregator = run.arguments_of("talweg-aggregator")[0]
        status, output, errors = run.end()
        self.assertEqual((status, errors), (0, ""))
        self.assertIn("--node_rank=7 --rank_count=2 --min_members=1 --max_members=4", agent)
        self.assertIn("--loss_policy=continue --gather_ms=3000", agent)
        self.assertNotIn("--begin_members", agent)
        self.assertIn("--name=node-7-0 --provider=tcp --listen=127.0.0.1:0", aggregator)
        self.assertIn("--admin_listen=unix:/", aggregator)
        self.assertEqual(
            sorted(output.splitlines()), ["[7.0] none none 7 0/2", "[7.1] none none 7 1/2"]
        )

    def test_a_job_whose_nodes_come_and_go_begins_with_some(self) -> None:
        run = Run(
            "--scheduler=127.0.0.1:7447", "--max-nodes=4", "--nodes=2", "--node-rank=3", "--",
            "true",
        )  # fmt: skip
        run.process.wait(TIMEOUT_S)
        agent = run.arguments_of("talweg-agent")[0]
        status, _, errors = run.end()
        self.assertEqual((status, errors), (0, ""))
        self.assertIn("--rank_count=1 --min_members=1 --max_members=4", agent)
        self.assertIn("--gather_ms=30000 --begin_members=2", agent)

    def test_one_machine_of_several(self) -> None:
        run = Run(
            "--scheduler=10.0.0.7:7447", "--nodes=3", "--ranks-per-node=1,2,1", "--node-rank=1",
            "--", "sh", "-c", "echo $RANK $MASTER_ADDR:$MASTER_PORT",
        )  # fmt: skip
        run.process.wait(TIMEOUT_S)
        self.assertEqual([each.name for each in run.log.iterdir()], ["talweg-agent"])
        agent = run.arguments_of("talweg-agent")[0]
        status, output, errors = run.end()
        self.assertEqual((status, errors), (0, ""))
        self.assertIn("--scheduler=10.0.0.7:7447", agent)
        # The user's own secret, if there is one, is the agent's to find.
        self.assertNotIn("--secret_file", agent)
        self.assertIn("--admin_listen=unix:/", agent)
        self.assertEqual(
            sorted(output.splitlines()), ["[1] 1 10.0.0.7:29500", "[2] 2 10.0.0.7:29500"]
        )

    def test_first_failure_decides_and_is_reported(self) -> None:
        script = "echo up; if [ $RANK = 1 ]; then echo broken >&2; exit 7; fi; sleep 1000"
        status, _, errors = run("--nodes=2", "--ranks-per-node=2", "--", "sh", "-c", script)
        self.assertEqual(status, 7)
        self.assertRegex(errors, r"talweg: run: rank 1 \(pid \d+\) failed first: exit status 7")
        self.assertIn("rank 1's last lines:\n    broken\n", errors)

    def test_the_others_go_on_without_a_node(self) -> None:
        # Rank 0 sees the end of both ranks of the other node, of which one fails.
        script = """
            echo $$ > $TALWEG_TEST_LOG/$RANK.pid.new
            mv $TALWEG_TEST_LOG/$RANK.pid.new $TALWEG_TEST_LOG/$RANK.pid
            until [ -e $TALWEG_TEST_LOG/1.pid -a -e $TALWEG_TEST_LOG/2.pid ]; do sleep 0.01; done
            [ $RANK = 1 ] && { echo broken >&2; exit 7; }
            [ $RANK = 2 ] && exec sleep 1000
            for rank in 1 2; do
              while kill -0 $(cat $TALWEG_TEST_LOG/$rank.pid) 2>/dev/null; do sleep 0.01; done
            done
            echo done
        """
        shape = ["--nodes=2", "--ranks-per-node=1,2", "--loss-policy=continue"]
        run = Run(*shape, "--", "bash", "-c", script)
        run.until_output("[0] done")
        agents = run.arguments_of("talweg-agent")
        status, _, errors = run.end()
        self.assertEqual(status, 0, errors)
        failure = r"rank 1 \(pid \d+\) failed: exit status 7"
        self.assertRegex(errors, "talweg: run: node 1 is lost, the others go on: " + failure)
        self.assertRegex(errors, "talweg: run: the run has ended well without node 1: " + failure)
        self.assertIn("rank 1's last lines:\n    broken\n", errors)
        self.assertIn("--min_members=1 --max_members=2", agents[0])
        self.assertIn("--loss_policy=continue", agents[0])

    def test_ranks_that_end_at_once(self) -> None:
        # Both have ended when the supervisor hears of the first, which has ended well.
        script = """
            echo $$ > $TALWEG_TEST_LOG/$RANK.pid
            until [ -e $TALWEG_TEST_LOG/go ]; do sleep 0.01; done
            exit $((RANK == 0 ? 7 : 0))
        """
        for policy, expected in (("fail_job", 7), ("continue", 0)):
            run = Run("--nodes=2", f"--loss-policy={policy}", "--", "bash", "-c", script)
            pids = [run.log / f"{rank}.pid" for rank in range(2)]
            deadline = time.monotonic() + TIMEOUT_S
            while not all(pid.exists() and pid.read_text() for pid in pids):
                assert time.monotonic() < deadline
                os.sched_yield()
            supervisor = run.supervisor()
            os.kill(supervisor, signal.SIGSTOP)
            (run.log / "go").touch()
            stats = [pathlib.Path(f"/proc/{pid.read_text().strip()}/stat") for pid in pids]
            while not all(") Z " in stat.read_text() for stat in stats):
                assert time.monotonic() < deadline
                os.sched_yield()
            os.kill(supervisor, signal.SIGCONT)
            status, _, errors = run.end()
            self.assertEqual(status, expected, errors)
            self.assertIn("rank 0", errors)

    def test_no_node_is_left(self) -> None:
        shape = ["--nodes=2", "--loss-policy=continue", "--min-nodes=2"]
        run = Run(*shape, "--", "sh", "-c", "exit 7")
        run.process.wait(TIMEOUT_S)
        self.assertIn("--min_members=2 --max_members=2", run.arguments_of("talweg-agent")[0])
        status, _, errors = run.end()
        self.assertEqual(status, 7)
        self.assertIn("failed: exit status 7; no node is left", errors)

    def test_a_signal_that_kills_a_rank_is_the_status(self) -> None:
        script = "[ $RANK = 0 ] && kill -9 $$; sleep 1000"
        status, _, errors = run("--ranks-per-node=2", "--", "sh", "-c", script)
        self.assertEqual(status, 128 + signal.SIGKILL)
        self.assertIn("killed by signal 9 (Killed)", errors)

    def test_ranks_that_ignore_sigterm_are_killed(self) -> None:
        script = "trap '' TERM; echo up; [ $RANK = 1 ] && exit 3; sleep 1000; sleep 1000"
        status, _, _ = run("--ranks-per-node=2", "--grace-ms=100", "--", "sh", "-c", script)
        self.assertEqual(status, 3)

    def test_background_children_of_ranks_do_not_stay(self) -> None:
        script = "(setsid sleep 1000 &) ; (sleep 1000 &) ; exit 0"
        self.assertEqual(run("--ranks-per-node=2", "--", "sh", "-c", script)[0], 0)

    def test_a_stopped_rank_is_ended(self) -> None:
        script = "if [ $RANK = 0 ]; then kill -STOP $$; fi; sleep 0.2; exit 4"
        self.assertEqual(run("--ranks-per-node=2", "--", "sh", "-c", script)[0], 4)

    def test_a_program_that_does_not_exist(self) -> None:
        status, _, errors = run("--", "/does/not/exist")
        self.assertEqual(status, 127)
        self.assertIn("'/does/not/exist': No such file or directory", errors)

    def test_a_daemon_that_fails(self) -> None:
        for daemon in ("talweg-scheduler", "talweg-aggregator", "talweg-agent"):
            status, output, errors = run("--nodes=2", "--", "echo", "x", FAKE_DAEMON_FAILS=daemon)
            self.assertEqual((status, output), (9, ""), errors)
            self.assertRegex(errors, rf"{daemon}.* ended before its ranks: exit status 9")
            self.assertIn("    no luck\n", errors)

    def test_a_daemon_that_never_serves(self) -> None:
        # Long enough for the others to serve on a busy machine.
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
            # The first one may choose its port, the others have its address, and all its store.
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
        # It has time enough to get one.
        run = Run("--", "sleep", "2", FAKE_AGENT_ENDS_WITH="0")
        run.process.wait(TIMEOUT_S)
        self.assertEqual(len(run.arguments_of("talweg-agent")), 1)
        self.assertEqual(run.end()[0], 0)

    # Rank 1 fails until its node has been started again twice.
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
        self.assertEqual(re.findall(r"up 0\.\d", seen), ["up 0.0"])  # Node 0 works on.
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

    def test_where_all_are_needed_all_are_started_again(self) -> None:
        run, seen = self._restarted("--restarts=2")
        status, output, errors = run.end()
        self.assertEqual(status, 0, errors)
        self.assertEqual(len(re.findall(r"up 1\.", seen + output)), 3)
        for rank in range(3):
            self.assertIn(f"done {rank}.2", seen + output)
        self.assertEqual(errors.count("all nodes are started again"), 2)

    def test_where_all_are_needed_the_last_to_start_again_is_waited_for(self) -> None:
        """The other node's rank has ended well before that."""
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
        status, _, errors = run("--", "sleep", "1000", FAKE_AGENT_ENDS_WITH="5")
        self.assertEqual(status, 5)
        self.assertIn("talweg-agent of node 0", errors)
        self.assertIn("    agent ends\n", errors)

    def test_interrupt_at_any_moment(self) -> None:
        # Before anything, while daemons start, while ranks run. Whatever the moments turn out to be, the
        # outcome is the same.
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
            os.kill(pid, signal.SIGSTOP)  # Neither hears of the other's end.
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        run.process.wait(TIMEOUT_S)
        [left] = run.temporary.iterdir()
        # It takes nothing from a run that lives.
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

    def test_lines_are_never_torn(self) -> None:
        script = (
            "i=0; while [ $i -lt 300 ]; do printf 'a%.0s' 1 2 3; printf '%05d' $RANK; "
            "printf 'z%.0s' 1 2 3; echo; i=$((i+1)); done; printf 'one\\rtwo\\r\\nend'"
        )
        status, output, _ = run("--ranks-per-node=4", "--", "sh", "-c", script)
        self.assertEqual(status, 0)
        lines = output.replace("\r\n", "\n").replace("\r", "\n").splitlines()
        self.assertEqual(len(lines), 4 * 303)
        for line in lines:
            self.assertRegex(line, r"^\[(\d)\] (aaa0000\1zzz|one|two|end)$")

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
        run.process.wait(TIMEOUT_S)  # Without reading anything.
        self.assertEqual(run.end()[0], 130)


class UsageTest(unittest.TestCase):
    def check(self, *arguments: str, expected: str) -> None:
        done = subprocess.run(
            [TOOL, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "" if arguments else done.stdout)
        self.assertIn(expected, done.stderr if arguments else done.stdout)

    def test_bad_options(self) -> None:
        self.check(expected="Commands:")
        self.check("rnu", expected="unknown command 'rnu'; did you mean run?")
        self.check("run", expected="no program")
        self.check("run", "--node", "2", expected="did you mean --nodes?")
        self.check("run", "--nodes", expected="option --nodes has no value")
        self.check("run", "--nodes=0", "x", expected="--nodes: '0' is no number from 1 to 1024")
        self.check("run", "--nodes=x", "x", expected="--nodes: 'x' is no number")
        self.check("run", "--nodes=3", "--ranks-per-node=1,2", "x", expected="has 2 numbers")
        self.check("run", "--no-prefix=1", "x", expected="takes no value")
        self.check("run", "--scheduler=a:1", "x", expected="--node-rank is missing")
        self.check("run", "--max-nodes=2", "x", expected="--max-nodes needs hosts that come and go")
        one = ["run", "--scheduler=a:1", "--node-rank=0", "--max-nodes=2"]
        self.check(*one, "--nodes=3", "x", expected="--nodes: '3' is no number from 1 to 2")
        self.check(*one, "--min-nodes=3", "x", expected="--min-nodes: '3' is no number from 1")
        self.check(*one, "--ranks-per-node=1,2", "x", expected="'1,2' has 2 numbers; with --max-n")
        self.check(*one, "--loss-policy=fail_job", "x", expected="is for --loss-policy=continue")

    def test_hosts_that_come_and_go(self) -> None:
        hosts = ["run", "--hosts=a"]
        self.check("run", "--min-ranks=2", "x", expected="nobody says where the hosts stand")
        self.check(*hosts, "--hostfile=b", "x", expected="give one of --hosts, --hostfile, --host-")
        self.check(*hosts, expected="no program; write it after --")
        self.check(
            *hosts, "--scheduler=a:1", "x", expected="--scheduler is not for hosts that come"
        )
        self.check(*hosts, "--loss-policy=fail_job", "x", expected="has continue; leave it out")
        self.check(*hosts, "--hosts-wait-s=x", "x", expected="--hosts-wait-s: 'x' is no number")
        self.check(*hosts, "--nodes=2", "--max-ranks=2", "x", expected="give one or the other")
        self.check(*hosts, "--ranks=2", "--min-ranks=3", "x", expected="=3 is above --ranks=2")
        self.check(*hosts, "--nodes=3", "--max-nodes=2", "x", expected="--nodes=3 is above --max-n")
        self.check(*hosts, "--host-cooldown-s=9,3", "x", expected="'9,3' is not MIN,MAX")
        self.check(*hosts, "--ranks-per-node=1,2", "x", expected="'1,2' is more than one number")
        run = Run("--hosts=a", "x", TALWEG_PYTHON="/no/python")
        status, _, errors = run.end()
        self.assertEqual(status, 1)
        self.assertIn("'/no/python', which starts nodes on hosts, cannot be started: No", errors)
        self.check(
            "run", "--scheduler=a", "--node-rank=0", "--nodes=2", "x", expected="has no port"
        )
        self.check(
            "run", "--scheduler=a:1", "--node-rank=2", "--nodes=2", "x", expected="from 0 to 1"
        )
        goes_on = "--loss-policy=continue"
        self.check("run", "--loss-policy=both", "x", expected="'both' is neither 'fail_job' nor")
        self.check("run", "--min-nodes=1", "x", expected=f"--min-nodes is for {goes_on}")
        self.check(
            "run",
            "--nodes=2",
            goes_on,
            "--min-nodes=3",
            "x",
            expected="'3' is no number from 1 to 2",
        )
        self.check("version", "x", expected="argument 'x' is no option")

    def test_daemons_that_are_not_there(self) -> None:
        done = subprocess.run(
            [TOOL, "run", "true"],
            env={"TALWEG_DAEMON_DIR": "/does/not/exist"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("program talweg-agent is not in /does/not/exist", done.stderr)

    def test_help_of_every_command(self) -> None:
        def help_of(*arguments: str) -> str:
            return subprocess.run(
                [TOOL, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
            ).stdout

        commands = [
            line.split()[0]
            for line in help_of("--help").split("Commands:\n")[1].splitlines()
            if line.startswith("  ")
        ]
        self.assertIn("run", commands)
        for command in commands:
            self.assertRegex(help_of(command, "--help"), "Usage: talweg", command)
            self.assertEqual(help_of(command, "--help"), help_of("help", command))


if __name__ == "__main__":
    unittest.main()
