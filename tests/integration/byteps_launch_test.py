# SPDX-License-Identifier: Apache-2.0
"""Tests the launcher with the commands of BytePS's documents, with ranks on CPUs."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path
from typing import Any

import job
from byteps_commands import IMPORT_SERVER, LAUNCH, environment, free_port, run, shared, start
from talweg.byteps import _job, launcher

# The rank needs no torch, because it asks the package only for numbers.
_PROGRAM = """
import os, pathlib, sys
import numpy as np
import talweg
from talweg.byteps import common as bps
bps.init()
total = talweg.push_pull(np.full(4, bps.rank(), np.float32), op=talweg.Op.SUM, name="x")
assert (total == bps.size() * (bps.size() - 1) // 2).all()
line = f"rank {bps.rank()} of {bps.size()}, local {bps.local_rank()} of {bps.local_size()}"
print(line, sys.argv[1:], os.environ.get("BYTEPS_LOCAL_RANK"), flush=True)
talweg.barrier()
"""


# A process that is the only worker of several jobs in turn, and starts their schedulers and
# servers.
_JOBS = """
import os, subprocess, sys
import numpy as np
import talweg
from talweg.byteps import common as bps
port, *launch = sys.argv[1:]
os.environ |= {"DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "1", "DMLC_PS_ROOT_URI": "127.0.0.1"}
os.environ |= {"DMLC_PS_ROOT_PORT": port, "BYTEPS_PARTITION_BYTES": "2147483647"}
others = [{**os.environ, "DMLC_ROLE": role} for role in ("scheduler", "server")]
os.environ |= {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": "0", "BYTEPS_FORCE_DISTRIBUTED": "1"}
os.environ |= {"BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": "1"}
for length in (5, 20_000_000):
    started = [subprocess.Popen(launch, env=each) for each in others]
    bps.init()
    ones = np.ones(length, np.float32)
    assert (talweg.push_pull(ones, op=talweg.Op.SUM, name="x") == 1).all()
    bps.shutdown()
    print("job is over:", *[each.wait() for each in started], flush=True)
"""


# A scheduler that finds no job secret warns so, whatever PS_VERBOSE says.
_NO_SECRET = re.compile(
    r" W talweg-scheduler\[\w+\] there is no job secret: anybody who reaches 127\.0\.0\.1:\d+, every "
    "user of this machine included, may join jobs"
)


class CommandsTest(unittest.TestCase):
    """Tests the tutorial's commands, with ranks on CPUs."""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.program = self.directory / "a program.py"
        self.program.write_text(_PROGRAM)
        self.python = [sys.executable, str(self.program)]

    def test_one_worker_needs_nobody_else(self) -> None:
        """One worker runs alone, whatever the addresses are. Its command keeps its quotes."""
        done = run(
            [*self.python, "two words", "$HOME"],
            NVIDIA_VISIBLE_DEVICES="0,1",
            DMLC_WORKER_ID="0",
            DMLC_NUM_WORKER="1",
            DMLC_ROLE="worker",
            DMLC_NUM_SERVER="1",
            DMLC_PS_ROOT_URI="10.0.0.1",
            DMLC_PS_ROOT_PORT="1234",
            BYTEPS_MULTITHREADED_CPU="0",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("BYTEPS_MULTITHREADED_CPU", done.stderr)  # Ranks know who has honoured it.
        lines = sorted(done.stdout.splitlines())
        self.assertEqual(lines[0], "rank 0 of 2, local 0 of 2 ['two words', '$HOME'] 0")
        self.assertEqual(lines[1], "rank 1 of 2, local 1 of 2 ['two words', '$HOME'] 1")
        if not launcher.gpu_count():
            self.assertEqual(done.stderr.count("2 ranks on CPUs"), 1)
        for role in ("server", "scheduler"):
            done = run([], DMLC_ROLE=role, DMLC_NUM_WORKER="1")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("needs no " + role, done.stderr)
        done = run(self.python, DMLC_ROLE="joint", DMLC_WORKER_ID="0", DMLC_NUM_WORKER="1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rank 0 of 1", done.stdout)

    def test_the_agent_runs_on_the_cores_of_its_ranks(self) -> None:
        program = (
            "import os; daemons = os.environ['TALWEG_RUN_DAEMONS'].split(','); "
            "print(*(sorted(os.sched_getaffinity(int(each))) for each in ['0', *daemons]), sep=';')"
        )
        first, *others = sorted(os.sched_getaffinity(0))
        one = [sys.executable, "-c", program]
        done = run(one, BYTEPS_VISIBLE_CPU_CORES=f"{first}")
        self.assertEqual(done.stdout, f"{[first]};{[first]}\n", done.stderr)
        if not others:
            print("SKIPPED: there is one core: none can be left out")
            return
        done = run(one, BYTEPS_CPU_BLACKLIST=f"{first}", BYTEPS_MULTITHREADED_CPU="0")
        found = done.stdout.partition(";")[2]
        self.assertEqual(found, f"{others}\n", done.stderr)

    def test_a_job_of_two_workers_in_any_order(self) -> None:
        """Workers, server and scheduler start in any order, and all end by themselves.

        The server is started by the import, and not by a launcher.
        """
        given = shared(NVIDIA_VISIBLE_DEVICES="0,1", XDG_CONFIG_HOME=str(self.directory))
        workers = [
            start(self, self.python, **given, DMLC_ROLE="worker", DMLC_WORKER_ID=str(worker))
            for worker in (1, 0)
        ]
        alone = {"DMLC_ROLE": "server", "MXNET_OMP_MAX_THREADS": "4"}
        server = start(self, [], launch=IMPORT_SERVER, **given, **alone)
        scheduler = start(self, [], **given, DMLC_ROLE="scheduler")
        lines = []
        for process in (*workers, server, scheduler):
            output, _ = process.communicate(timeout=job.TIMEOUT_S)
            self.assertEqual(process.returncode, 0, output)
            self.assertEqual(len(_NO_SECRET.findall(output)), int(process is scheduler), output)
            # An agent's log lines about ranks that it waits for do not count.
            lines += re.findall(r"rank \d+ of \d+, .*", output)
        places = [f"rank {rank} of 4, local {rank % 2} of 2 [] {rank % 2}" for rank in range(4)]
        self.assertEqual(sorted(lines), places)

    def test_workers_with_servers_of_their_own(self) -> None:
        """All end by themselves, also when a rank fails. Ranks see no role but their own."""
        self.program.write_text(
            _PROGRAM
            + "assert os.environ['DMLC_ROLE'] == 'worker'\n"
            + "sys.exit(int(sys.argv[1]) if bps.rank() == 1 else 0)\n"
        )
        for code in (0, 5):
            given = shared(DMLC_NUM_SERVER="2")
            line = [*self.python, str(code)]
            joint = [
                start(self, line, **given, DMLC_ROLE="joint", DMLC_WORKER_ID=str(worker))
                for worker in (0, 1)
            ]
            scheduler = start(self, [], **given, DMLC_ROLE="scheduler")
            ended = [each.communicate(timeout=job.TIMEOUT_S)[0] for each in (*joint, scheduler)]
            codes = [each.returncode for each in (*joint, scheduler)]
            if code == 0:
                self.assertEqual(codes, [0, 0, 0], ended)
            else:
                self.assertEqual(codes[1], code, ended)
            for rank in (0, 1):
                self.assertIn(f"rank {rank} of 2, local 0 of 1", ended[rank])

    def test_one_worker_that_is_forced_to_use_a_server(self) -> None:
        given = shared(DMLC_NUM_WORKER="1", BYTEPS_FORCE_DISTRIBUTED="1")
        given["DMLC_USE_KUBERNETES"] = "1"  # Daemons bind all addresses, and tell one of them.
        worker = start(self, self.python, **given, DMLC_ROLE="worker", DMLC_WORKER_ID="0")
        scheduler = start(self, [], **given, DMLC_ROLE="scheduler")
        server = start(self, [], **given, DMLC_ROLE="server", DMLC_PORT="0")
        for process in (worker, server, scheduler):
            output, _ = process.communicate(timeout=job.TIMEOUT_S)
            self.assertEqual(process.returncode, 0, output)

    def test_what_the_daemons_say(self) -> None:
        """PS_VERBOSE chooses what daemons log: nothing, who comes and goes, or each message."""
        for verbose, says_info, says_messages in (
            ("0", False, False),
            ("1", True, False),
            ("2", True, True),
        ):
            given = shared(DMLC_NUM_WORKER="1", BYTEPS_FORCE_DISTRIBUTED="1", PS_VERBOSE=verbose)
            given["XDG_CONFIG_HOME"] = str(self.directory)  # There is no job secret.
            worker = start(self, self.python, **given, DMLC_ROLE="worker", DMLC_WORKER_ID="0")
            scheduler = start(self, [], **given, DMLC_ROLE="scheduler")
            server = start(self, [], **given, DMLC_ROLE="server", DMLC_PORT="0")
            for process, daemon in (
                (worker, "agent"),
                (server, "aggregator"),
                (scheduler, "scheduler"),
            ):
                output, _ = process.communicate(timeout=job.TIMEOUT_S)
                self.assertEqual(process.returncode, 0, output)
                self.assertEqual(f" I talweg-{daemon}[" in output, says_info, output)
                warns = daemon == "scheduler"
                self.assertEqual(len(_NO_SECRET.findall(output)), int(warns), output)
                if daemon != "scheduler":
                    message = rf" D talweg-{daemon}\[\w+\] received \w+ of \d+ bytes"
                    self.assertEqual(bool(re.search(message, output)), says_messages, output)

    def test_a_process_that_starts_job_after_job(self) -> None:
        """A process joins several jobs in turn, as BytePS's unit tests do.

        Scheduler and server do not get BYTEPS_FORCE_DISTRIBUTED. The job does not cut its tensors,
        and sets its variables after the import.
        """
        self.program.write_text(_JOBS)
        port = free_port()
        done = subprocess.run(
            [*self.python, port, *LAUNCH],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=job.TIMEOUT_S,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("job is over: 0 0"), 2, done.stdout + done.stderr)

    def test_a_worker_that_does_without_them(self) -> None:
        """Scheduler and server end if a job's only worker does not come."""
        impatient = (
            "import sys; from talweg.byteps import launcher; launcher._LONE_WORKER_S = 0.1; "
        )
        given = shared(DMLC_NUM_WORKER="1")
        for role in ("scheduler", "server"):
            done = subprocess.run(
                [sys.executable, "-c", impatient + "sys.exit(launcher.main())"],
                env=environment(**given, DMLC_ROLE=role),
                capture_output=True,
                text=True,
                timeout=job.TIMEOUT_S,
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("set BYTEPS_FORCE_DISTRIBUTED=1 for it", done.stderr)

    def test_a_rank_comes_back_while_another_one_is_still_there(self) -> None:
        """The rank's second agent finds no job, because the launchers' job is over."""
        given = shared()
        leave, end = self.directory / "leave", self.directory / "end"
        self.program.write_text(
            _PROGRAM
            + textwrap.dedent(
                """
                import os, pathlib, threading, time
                leave, end = map(pathlib.Path, sys.argv[1:])
                comes_back = bps.rank() == 0
                while not comes_back and not leave.exists():
                    time.sleep(0.05)
                bps.shutdown()
                if comes_back:
                    threading.Thread(target=bps.init, daemon=True).start()
                while not end.exists():
                    time.sleep(0.05)
                os._exit(0)
                """
            )
        )
        command = [*self.python, str(leave), str(end)]
        workers = [
            start(self, command, **given, DMLC_ROLE="worker", DMLC_WORKER_ID=str(worker))
            for worker in (0, 1)
        ]
        others = [start(self, [], **given, DMLC_ROLE=role) for role in ("scheduler", "server")]
        assert workers[0].stdout is not None
        for line in workers[0].stdout:
            if "not let in yet" in line:
                break
        leave.touch()
        for process in others:
            output, _ = process.communicate(timeout=job.TIMEOUT_S)
            self.assertEqual(process.returncode, 0, output)
        end.touch()
        for process in workers:
            output, _ = process.communicate(timeout=job.TIMEOUT_S)
            self.assertEqual(process.returncode, 0, output)

    def test_a_worker_that_fails_ends_the_job(self) -> None:
        given = shared()
        self.program.write_text(_PROGRAM + "if bps.rank() == 1: sys.exit(7)\ntalweg.barrier()\n")
        workers = [
            start(self, self.python, **given, DMLC_ROLE="worker", DMLC_WORKER_ID=str(worker))
            for worker in (0, 1)
        ]
        scheduler = start(self, [], **given, DMLC_ROLE="scheduler")
        server = start(self, [], **given, DMLC_ROLE="server")
        codes = []
        for process in (*workers, scheduler, server):
            process.communicate(timeout=job.TIMEOUT_S)
            codes.append(process.returncode)
        self.assertEqual(codes[1], 7)
        self.assertTrue(all(code != 0 for code in codes), codes)

    def test_ctrl_c_ends_a_scheduler(self) -> None:
        given = shared()
        scheduler = start(self, [], **given, DMLC_ROLE="scheduler")
        of_scheduler = _job.job_of(given, "scheduler", 1)
        _job.await_servers(dataclasses.replace(of_scheduler, servers=0), print)
        scheduler.send_signal(signal.SIGTERM)
        scheduler.communicate(timeout=job.TIMEOUT_S)
        self.assertEqual(scheduler.returncode, 130)

    def test_without_a_launcher(self) -> None:
        """Local rank 0 starts the node's agent, and another one after suspend().

        Rank 1 comes back while rank 0's first agent still runs, and waits for the second.
        """
        self.program.write_text(
            _PROGRAM
            + textwrap.dedent(
                """
                import pathlib, time
                before = bps.rank()
                left = pathlib.Path(sys.argv[0]).with_name("left")
                while before == 0 and not left.exists():
                    time.sleep(0.01)
                bps.suspend()
                left.touch()
                bps.resume(1, 1, before)
                talweg.push_pull(np.ones(3, np.float32), name="again")
                print(f"again {bps.rank()} of {bps.size()}", flush=True)
                """
            )
        )
        with tempfile.TemporaryDirectory(dir="/tmp") as sockets:
            ranks = [
                subprocess.Popen(
                    self.python,
                    env=environment(
                        DMLC_WORKER_ID="0",
                        BYTEPS_LOCAL_RANK=str(rank),
                        BYTEPS_LOCAL_SIZE="2",
                        BYTEPS_SOCKET_PATH=sockets,
                        BYTEPS_MULTITHREADED_CPU="0",
                    ),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                for rank in (1, 0)
            ]
            outputs = [rank.communicate(timeout=job.TIMEOUT_S)[0] for rank in ranks]
        self.assertIn("rank 1 of 2, local 1 of 2", outputs[0])
        self.assertIn("again 1 of 2", outputs[0])
        self.assertIn("again 0 of 2", outputs[1])
        # The node's first rank says once, though it joins twice, what bpslaunch would have done.
        text = "BYTEPS_MULTITHREADED_CPU has no effect here: only bpslaunch"
        self.assertEqual([output.count(text) for output in outputs], [0, 1], outputs)

    def test_a_trace(self) -> None:
        """Each round has a total, and two stages for each key. The agent's timeline lies beside."""
        self.program.write_text(
            _PROGRAM
            + textwrap.dedent(
                """
                directory = os.environ["BYTEPS_TRACE_DIR"]
                file = pathlib.Path(directory, str(bps.local_rank()), "comm.json")
                written = []
                for _ in range(9):
                    talweg.push_pull(np.ones(2000, np.float32), name="often")
                    written.append(int(file.exists()))
                print("written", *written, os.environ["TALWEG_TENSORFLOW_OPS"], flush=True)
                """
            )
        )
        directory = self.directory / "traces"
        done = run(
            self.python,
            BYTEPS_TRACE_ON="1",
            BYTEPS_TRACE_START_STEP="2",
            BYTEPS_TRACE_END_STEP="4",
            BYTEPS_TRACE_DIR=str(directory),
            BYTEPS_PARTITION_BYTES="4096",
            NVIDIA_VISIBLE_DEVICES="0,1",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        # Each rank writes it after the last traced round. TensorFlow's kernel knows no pushes.
        self.assertEqual(done.stdout.count("written 0 0 0 1 1 1 1 1 1 python"), 2, done.stdout)
        self.assertEqual(done.stdout.count("the trace is in"), 2, done.stdout)
        for local_rank in "01":
            self.check_trace(json.loads((directory / local_rank / "comm.json").read_text()))
        agents = json.loads((directory / "agent_0.json").read_text())["traceEvents"]
        seen = [event["args"]["round"] for event in agents if event["ph"] == "X"]
        self.assertLessEqual({2, 3, 4}, set(seen))
        self.assertLessEqual(max(seen), 4)

    def test_a_trace_goes_on_after_resume(self) -> None:
        self.program.write_text(
            _PROGRAM
            + textwrap.dedent(
                """
                def push(name, rounds):
                    for _ in range(rounds):
                        talweg.push_pull(np.ones(3, np.float32), name=name)

                push("first", 3)
                bps.suspend()
                bps.resume(1, 1, 0)
                push("second", 2)
                push("first", 2)
                """
            )
        )
        directory = self.directory / "traces"
        done = subprocess.run(
            self.python,
            env=environment(
                BYTEPS_TRACE_ON="1",
                BYTEPS_TRACE_START_STEP="2",
                BYTEPS_TRACE_END_STEP="4",
                BYTEPS_TRACE_DIR=str(directory),
            ),
            capture_output=True,
            text=True,
            timeout=job.TIMEOUT_S,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        events = json.loads((directory / "0" / "comm.json").read_text())["traceEvents"]
        totals = [event["name"] for event in events if event["tid"] == "total"]
        # Rounds of a tensor count on.
        self.assertEqual(totals, ["Comm.first"] * 2 + ["Comm.second", "Comm.first"])

    def check_trace(self, trace: dict[str, Any]) -> None:
        self.assertEqual(trace["displayTimeUnit"], "ms")
        rounds = [trace["traceEvents"][at : at + 5] for at in (0, 5, 10)]
        self.assertEqual(len(trace["traceEvents"]), 15)
        for events in rounds:
            self.assertEqual(
                [(event["tid"], event["name"]) for event in events],
                [
                    ("total", "Comm.often"),
                    *[("65536", f"Comm.often.{stage}") for stage in ("PUSH", "PULL")],
                    *[("65537", f"Comm.often.{stage}") for stage in ("PUSH", "PULL")],
                ],
            )
            for event in events:
                self.assertEqual((event["ph"], event["cat"]), ("X", "Comm"))
                self.assertEqual(event["pid"], "Comm.often")
            total, push, pull = events[:3]
            self.assertEqual(push["ts"], total["ts"])
            self.assertAlmostEqual(pull["ts"], push["ts"] + push["dur"], delta=1)
            self.assertAlmostEqual(push["dur"] + pull["dur"], total["dur"], delta=1)

    def test_a_directory_for_traces_that_cannot_be_made(self) -> None:
        self.program.write_text(_PROGRAM)
        file = self.directory / "file"
        file.touch()
        done = run(self.python, BYTEPS_TRACE_ON="1", BYTEPS_TRACE_DIR=str(file / "traces"))
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"BYTEPS_TRACE_DIR is '{file}/traces', which cannot be made", done.stderr)

    def test_samples_of_a_tensor(self) -> None:
        """Logs the second slice of the second tensor in both of its rounds."""
        self.program.write_text(
            _PROGRAM
            + textwrap.dedent(
                """
                for _ in range(2):
                    values = np.arange(2000, dtype=np.float32) + bps.rank()
                    talweg.push_pull(values, op=talweg.Op.SUM, name="sampled")
                """
            )
        )
        variables = {
            "NVIDIA_VISIBLE_DEVICES": "0,1",
            "BYTEPS_DEBUG_SAMPLE_TENSOR": "0x10001",
            "BYTEPS_PARTITION_BYTES": "4096",
        }
        done = run(self.python, **variables, BYTEPS_LOG_LEVEL="DEBUG")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("tensor 'sampled' has the keys 65536 to 65537", done.stderr)
        for rank in range(2):
            pushed = f"input[0]={1024 + rank}\tinput[-1]={1999 + rank}\t"
            for ends, stage in (
                (f"output[0]={1024 + rank}\toutput[-1]={1999 + rank}", "PUSH"),
                ("output[0]=2049\toutput[-1]=3999", "PULL"),
            ):
                line = f"Sampled key=65537\trank={rank}\t{pushed}{ends}\tafter stage: {stage}\n"
                self.assertEqual(done.stderr.count(line), 2, done.stderr)
        self.assertEqual(done.stderr.count("Sampled"), 8, done.stderr)
        quiet = run(self.python, **variables).stderr
        self.assertNotIn("Sampled", quiet)
        self.assertEqual(quiet.count("logs at level DEBUG alone: set BYTEPS_LOG_LEVEL=DEBUG"), 1)

    def test_the_backtrace_of_a_crash(self) -> None:
        """A script runs a program that kills itself in a call. The backtrace names that call."""
        if shutil.which("gdb") is None:
            print("SKIPPED: no gdb; bazel/prepare --for=test installs it")
            return
        script = self.directory / "script"
        script.write_text('#!/bin/sh\nexec "$@"\n')
        script.chmod(0o755)
        variables = {"BYTEPS_ENABLE_GDB": "1", "DMLC_ROLE": "worker"}
        for program, status, text in (
            (
                "import os; os.abort()",
                255,
                r"received signal SIGABRT[\s\S]*#\d+ .* in (__GI_)?abort",
            ),
            ("import sys; print('it has run'); sys.exit(7)", 7, "it has run"),
        ):
            done = run([str(script), sys.executable, "-c", program], **variables)
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
            self.assertRegex(done.stdout + done.stderr, text)

    def test_what_is_wrong_is_said(self) -> None:
        for variables, text in (
            ({"DMLC_ROLE": "Worker"}, "DMLC_ROLE is 'Worker'; it must be worker, server, s"),
            (
                {"DMLC_ROLE": "scheduler", "DMLC_NUM_WORKER": "2"},
                "DMLC_NUM_SERVER and DMLC_PS_ROOT",
            ),
            ({"DMLC_NUM_WORKER": "2"}, "DMLC_NUM_SERVER and DMLC_PS_ROOT_URI"),
            (
                shared(DMLC_NUM_SERVER=""),
                "DMLC_NUM_SERVER must be set: a worker needs it, unless its job has only one worker",
            ),
            (shared(), "DMLC_WORKER_ID must be set"),
            (shared(DMLC_WORKER_ID="2"), "DMLC_WORKER_ID is 2; .* must be 0 to 1"),
            (
                shared(BYTEPS_GLOBAL_RANK="2"),
                r"BYTEPS_GLOBAL_RANK, the global_rank of resume\(\), is 2; .* must be 0 to 1",
            ),
            ({"BYTEPS_ENABLE_ASYNC": "2"}, "BYTEPS_ENABLE_ASYNC is '2'; it must be 0 or 1"),
            ({"BYTEPS_PARTITION_BYTES": "100"}, "BYTEPS_PARTITION_BYTES is '100'; .* 4096 to"),
            ({"DMLC_ENABLE_RDMA": "ucx"}, "DMLC_ENABLE_RDMA=ucx is not offered"),
        ):
            with self.subTest(variables):
                done = run(["true"], **variables)
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr, text)
        done = run([])
        self.assertEqual(done.returncode, 1)
        self.assertIn("a worker needs a command", done.stderr)
        done = run(["--help"])
        self.assertEqual(done.returncode, 1)
        self.assertIn("'--help' is not a command, and bpslaunch has no options", done.stderr)
        done = run([], DMLC_ROLE="joint")
        self.assertEqual(done.returncode, 1)
        self.assertIn("need a command", done.stderr)
        for role in ("server", "joint"):  # Only bpslaunch starts these roles.
            given = environment(DMLC_ROLE=role)
            alone = subprocess.run(self.python, env=given, capture_output=True, text=True)
            self.assertNotEqual(alone.returncode, 0)
            self.assertIn(f"DMLC_ROLE is '{role}'", alone.stderr)
        self.assertEqual(run(["exit 3"]).returncode, 3)  # One argument is a line of shell.


if __name__ == "__main__":
    unittest.main()
