# SPDX-License-Identifier: Apache-2.0
"""Tests what `talweg run` starts, passes on and reports, with scripts as daemons and ranks."""

import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

from run_testing import TIMEOUT_S, TOOL, Run, RunTestCase, run


class RunTest(RunTestCase):
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
        # Nothing listens on a port. The sockets and the secret lie in the run's directory.
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

    def test_what_stands_in_front_of_lines(self) -> None:
        shell = ["sh", "-c", "echo a; echo b >&2"]
        for options, before in (
            (["--no-prefix"], ("", "")),
            (["--line-prefix=%r%%r%%%s: "], ("0%r%stdout: ", "0%r%stderr: ")),
        ):
            status, output, errors = run(*options, "--", *shell)
            self.assertEqual((status, output, errors), (0, f"{before[0]}a\n", f"{before[1]}b\n"))
        begin = int(time.time())
        _, output, _ = run("--line-prefix=%%%t|", "--", *shell)
        percent, moment, text = output[0], *output[1:].split("|")
        self.assertTrue(begin <= time.mktime(time.strptime(moment)) <= time.time(), moment)
        self.assertEqual((percent, text), ("%", "a\n"))

    def test_output_is_kept(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            kept = pathlib.Path(directory, "a", "b")
            job = ["--nodes=2", "--ranks-per-node=6", f"--output-dir={kept}"]
            script = 'printf "$RANK\\rx"; echo b >&2'
            status, output, errors = run(*job, "--no-prefix", "--", "sh", "-c", script)
            self.assertEqual((status, errors), (0, 12 * "b\n"))
            names = [f"rank.{rank:02}" for rank in range(12)]
            self.assertEqual(sorted(each.name for each in kept.iterdir()), names)
            for rank, name in enumerate(names):
                self.assertEqual((kept / name / "stdout").read_bytes(), f"{rank}\rx".encode())
                self.assertEqual((kept / name / "stderr").read_bytes(), b"b\n")
            self.assertEqual(output.count("x\n"), 12)  # The output is shown, too.
            self.assertEqual(run(*job, "true")[0], 0)  # This run begins the files anew.
            self.assertEqual((kept / names[0] / "stdout").read_bytes(), b"")

    def test_output_of_a_rank_that_has_failed_is_kept(self) -> None:
        with tempfile.TemporaryDirectory() as kept:
            script = "echo life $TALWEG_RUN_RESTARTS; exit $((1 - TALWEG_RUN_RESTARTS))"
            options = [f"--output-dir={kept}", "--restarts=1", "--restart-pause-ms=0"]
            self.assertEqual(run(*options, "--", "sh", "-c", script)[0], 0)
            self.assertEqual(pathlib.Path(kept, "rank.0/stdout").read_text(), "life 0\nlife 1\n")

    def test_files_of_ranks_that_have_ended_are_closed(self) -> None:
        few = ["bash", "-c", 'ulimit -n 96; exec "$@"', "-"]
        script = "exit $((TALWEG_RUN_RESTARTS < 5))"
        with tempfile.TemporaryDirectory() as kept:
            options = [f"--output-dir={kept}", "--restarts=5", "--restart-pause-ms=1"]
            ended = Run(*options, "--ranks-per-node=8", "--", "sh", "-c", script, under=few).end()
            self.assertEqual(ended[0], 0, ended)

    def test_a_disk_that_is_full(self) -> None:
        """`talweg run` reports the loss where it still can. The ranks go on."""
        for redirection, said in (
            (">/dev/full", "what is written to stdout is lost, the run goes on: No space left"),
            ("2>/dev/full", ""),
        ):
            line = f"{TOOL} run -- sh -c 'echo a; echo b >&2' {redirection}; echo status $? >&3"
            status, output, errors = run("--no-prefix", "--", "sh", "-c", f"({line}) 3>&1")
            self.assertEqual((status, output.splitlines()[-1]), (0, "status 0"), errors)
            self.assertIn(said, errors)

    def test_a_directory_for_temporary_files_is_an_absolute_one(self) -> None:
        status, output, errors = run("--", "sh", "-c", 'echo "$TALWEG_AGENT_SOCKET"', TMPDIR=".")
        self.assertEqual((status, errors), (0, ""))
        self.assertTrue(output.startswith("[0] /tmp/talweg-run-"), output)

    def test_it_is_not_one_in_which_others_may_replace_what_is_made_there(self) -> None:
        with tempfile.TemporaryDirectory(dir="/tmp") as shared:
            for mode, place in ((0o777, "/tmp"), (0o1777, shared)):
                os.chmod(shared, mode)
                line = ("--", "sh", "-c", 'echo "$TALWEG_AGENT_SOCKET"')
                status, output, errors = run(*line, TMPDIR=shared)
                self.assertEqual((status, errors), (0, ""))
                self.assertTrue(output.startswith(f"[0] {place}/talweg-run-"), output)

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

    def test_a_machine_whose_loopback_has_ipv6_alone(self) -> None:
        own_network = ["unshare", "--user", "--map-root-user", "--net"]
        alone = "ip link set lo up && ip address del 127.0.0.1/8 dev lo"
        if subprocess.run([*own_network, "sh", "-c", alone], stderr=subprocess.DEVNULL).returncode:
            print("SKIPPED: no network namespaces of one's own here")
            return
        under = [*own_network, "sh", "-c", alone + ' && exec "$@"', "sh"]
        for options in ([], ["--force-distributed"]):
            run = Run(*options, "--", "sh", "-c", "echo $MASTER_ADDR", under=under)
            run.process.wait(TIMEOUT_S)
            agent = run.arguments_of("talweg-agent")[0]
            status, output, errors = run.end()
            self.assertEqual((status, output), (0, "[0] ::1\n"), errors)
            self.assertEqual("--admin_listen=[::1]:0" in agent, bool(options), agent)

    @unittest.skipIf(
        os.environ.get("TALWEG_SANITIZER") == "tsan",
        "ThreadSanitizer writes a file of its own when a process begins",
    )
    def test_a_directory_that_is_full(self) -> None:
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            # No file of this process may have a byte, as where a disk is full.
            script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" run --nodes=2 true"
            line = ["sh", "-c", script, str(TOOL)]
            environment = {**os.environ, "TMPDIR": directory, "XDG_RUNTIME_DIR": ""}
            done = subprocess.run(
                line,
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            self.assertEqual(os.listdir(directory), [])
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(
            done.stderr,
            rf"talweg: write secret file '{directory}/talweg-run-\w+/secret': File too large "
            r"\(make room there, or let TMPDIR name another directory\)\n",
        )

    def test_an_output_directory_that_cannot_be_made(self) -> None:
        status, _, errors = run("--output-dir=/proc/nothing", "true")
        self.assertEqual(status, 126, errors)  # 127 would say that the program is not there.
        self.assertIn("option --output-dir: make /proc/nothing/rank.0/stdout: No such", errors)

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
            "--scheduler=127.0.0.1:7447", "--max-nodes=4", "--nodes=2", "--node-rank=3",
            "--not-after-finish", "--", "true",
        )  # fmt: skip
        run.process.wait(TIMEOUT_S)
        agent = run.arguments_of("talweg-agent")[0]
        status, _, errors = run.end()
        self.assertEqual((status, errors), (0, ""))
        self.assertIn("--rank_count=1 --min_members=1 --max_members=4", agent)
        self.assertIn("--gather_ms=30000 --begin_members=2 --not_after_finish", agent)

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
        # The agent itself finds the user's secret, if there is one.
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
        # Rank 0 ends after both ranks of the other node. One of these fails.
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
        # Both ranks have ended when the supervisor first looks, and it may see the good end first.
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

    def test_the_only_node_of_this_machine_has_ended(self) -> None:
        shape = ["--scheduler=127.0.0.1:7447", "--nodes=2", "--node-rank=1"]
        run = Run(*shape, "--loss-policy=continue", "--", "sh", "-c", "exit 7")
        run.process.wait(TIMEOUT_S)
        status, _, errors = run.end()
        self.assertEqual(status, 7)
        self.assertIn("exit status 7; node 1 has ended, others may go on", errors)

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


class UsageTest(unittest.TestCase):
    def check(self, *arguments: str, expected: str) -> None:
        done = subprocess.run(
            [TOOL, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "" if arguments else done.stdout)
        self.assertIn(expected, done.stderr if arguments else done.stdout)

    def test_a_certificate_is_revoked_by_its_directory(self) -> None:
        with tempfile.TemporaryDirectory() as pki:
            for line in (["viewer"], [f"--revoke={pki}/viewer"]):
                done = subprocess.run(
                    [TOOL, "certs", pki, *line], capture_output=True, text=True, check=False
                )
                self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"{pki}/ca/ca.crl  revokes {pki}/viewer/tls.crt\n", done.stdout)

    def test_bad_options(self) -> None:
        self.check(expected="Commands:")
        self.check("rnu", expected="unknown command 'rnu'; did you mean run?")
        self.check("run", expected="no program")
        self.check("run", "--node", "2", expected="did you mean --nodes?")
        self.check("run", "--nodes", expected="option --nodes has no value")
        self.check("run", "--nodes=0", "x", expected="--nodes: '0' is not a number from 1 to 1024")
        self.check("run", "--nodes=x", "x", expected="--nodes: 'x' is not a number")
        self.check("run", "--nodes=3", "--ranks-per-node=1,2", "x", expected="has 2 numbers")
        self.check("run", "--no-prefix=1", "x", expected="takes no value")
        self.check(
            "run", "--line-prefix=%q", "x", expected="--line-prefix: '%q' has a % before 'q'"
        )
        self.check("run", "--line-prefix=%", "x", expected="--line-prefix: '%' has a % before ''")
        self.check("run", "--scheduler=a:1", "x", expected="--node-rank is missing")
        self.check("run", "--max-nodes=2", "x", expected="--max-nodes needs hosts that come and go")
        one = ["run", "--scheduler=a:1", "--node-rank=0", "--max-nodes=2"]
        self.check(*one, "--nodes=3", "x", expected="--nodes: '3' is not a number from 1 to 2")
        self.check(*one, "--min-nodes=3", "x", expected="--min-nodes: '3' is not a number from 1")
        self.check(*one, "--ranks-per-node=1,2", "x", expected="'1,2' has 2 numbers; with --max-n")
        self.check(*one, "--loss-policy=fail_job", "x", expected="is for --loss-policy=continue")

    def test_hosts_that_come_and_go(self) -> None:
        hosts = ["run", "--hosts=a"]
        self.check("run", "--min-ranks=2", "x", expected="no option names the hosts")
        self.check(
            *["run", "--nodes=2", "--ranks=2", "x"],
            expected="say --nodes and --ranks-per-node in place of --ranks\n",
        )
        self.check(*hosts, "--hostfile=b", "x", expected="give one of --hosts, --hostfile, --host-")
        self.check(*hosts, expected="no program; write it after --")
        self.check(
            *hosts, "--scheduler=a:1", "x", expected="--scheduler is not for hosts that come"
        )
        self.check(*hosts, "--loss-policy=fail_job", "x", expected="has continue; leave it out")
        for wrong in ("a:x", "b:2,", "-a", "a b", "a:1:2"):
            self.check("run", f"--hosts={wrong}", "x", expected="write host or host:slots, as in")
        self.check(*hosts, "--hosts-wait-s=x", "x", expected="--hosts-wait-s: 'x' is not a number")
        self.check(*hosts, "--line-prefix=%q", "x", expected="'%q' has a % before 'q'")
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
            expected="'3' is not a number from 1 to 2",
        )
        self.check("version", "x", expected="argument 'x' is not an option")

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
