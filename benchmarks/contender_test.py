# SPDX-License-Identifier: Apache-2.0
"""Tests how ./bench starts, orders and ends contenders. Workers are shell scripts or Python."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from contextlib import suppress
from pathlib import Path
from unittest import mock

from harness import contender as contender_module
from harness import processes
from harness.contender import Command, Contender, ContenderFailed
from harness.measure import Case, Effort, measure_beside
from harness.scratch import remove_left

# A worker that speaks the lines of benchmarks/peers/control.h. On "go" it does what its word says.
_WORKER = """
import os, socket, sys, time
rank, manner = sys.argv[1], sys.argv[2]
if manner == "never comes":
    time.sleep(600)
if manner == "ends at once":
    print("a reason on stderr", file=sys.stderr)
    sys.exit(3)
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["TALWEG_BENCH_CONTROL"])
lines = connection.makefile("rw")
def say(text):
    lines.write(text + "\\n")
    lines.flush()
say(f"hello {os.environ['TALWEG_BENCH_CONTENDER']} {rank} {os.getpid()}")
while (line := lines.readline().strip()) and line != "quit":
    _, dtype, warm_up, rounds, sizes = line.split()
    held = b"x" * (20 << 20) if manner == "holds memory" else b""
    say("ready")
    if lines.readline().strip() != "go":
        break
    if manner == "dies":
        os._exit(5)
    if manner == "fails":
        say("failed the sum is 2, not 3")
        break
    if manner == "hangs":
        time.sleep(600)
    if manner == "computes":
        begin = time.process_time()
        while time.process_time() - begin < 0.05:
            pass
    begin = (int(rank) + 1) * 1000000
    say(f"done {begin} {begin + 5000000} " + ",".join(["1000"] * int(rounds)))
"""


def contender(*manners: str, name: str = "fake") -> Contender:
    commands = [
        Command((sys.executable, "-c", _WORKER, str(rank), manner))
        for rank, manner in enumerate(manners)
    ]
    return Contender(name, len(manners), commands)


def runs(pid: int) -> bool:
    """Whether the process runs. One that has ended and was not waited for does not count."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


class ContenderTest(unittest.TestCase):
    def test_an_order_reaches_all_ranks_and_their_answers_are_put_together(self) -> None:
        with contender("well", "well") as running:
            batch = running.measure("f32", [4096], 1, 3, timeout_s=60)
        self.assertEqual(batch.rounds, 3)
        self.assertAlmostEqual(batch.elapsed_s, 0.006)  # From the first begin to the last end.
        self.assertEqual(batch.rounds_s, [1000 * 1e-9] * 6)
        self.assertEqual(batch.wire_bytes, [])
        for worker_s in batch.workers_s:
            self.assertAlmostEqual(worker_s, 0.005)

    def test_cpu_is_that_of_all_processes(self) -> None:
        with contender("computes", "computes") as running:
            batch = running.measure("f32", [4096], 1, 1, timeout_s=60)
        # Twice 50 ms, less one tick, because the kernel may not have counted the last tick yet.
        self.assertGreaterEqual(batch.cpu_s, 0.06)
        self.assertAlmostEqual(sum(batch.cpu_s_of_programs.values()), batch.cpu_s)
        self.assertIn(processes.program(os.getpid()), batch.cpu_s_of_programs)

    def test_daemons_cpu_is_theirs_alone(self) -> None:
        busy = Command(("sh", "-c", "while :; do :; done & wait"), is_daemon=True)
        worker = Command((sys.executable, "-c", _WORKER, "0", "computes"))
        with Contender("served", 1, [busy, worker]) as running:
            batch = running.measure("f32", [4096], 1, 1, timeout_s=60)
        self.assertGreater(batch.cpu_s_of_daemons, 0)  # A busy machine gives it little.
        # The worker takes 50 ms, less one tick.
        self.assertLess(batch.cpu_s_of_daemons, batch.cpu_s - 0.03)

    def test_what_a_daemon_leaves_behind_is_ended(self) -> None:
        script = 'sleep 600 & echo $! >"$0"; wait'
        with tempfile.TemporaryDirectory() as directory:
            left = Path(directory) / "pid"
            leaves = Command(("sh", "-c", script, str(left)), is_daemon=True)
            worker = Command((sys.executable, "-c", _WORKER, "0", "well"))
            with Contender("leaves", 1, [leaves, worker]) as running:
                running.measure("f32", [4096], 1, 1, timeout_s=60)
                deadline_s = time.monotonic() + 60
                while not (left.exists() and left.read_text().strip()):
                    self.assertLess(time.monotonic(), deadline_s)
                    os.sched_yield()
                pid = int(left.read_text())
            while runs(pid):
                self.assertLess(time.monotonic(), deadline_s)
                os.sched_yield()

    def test_idle_cores_are_those_of_the_busiest_process(self) -> None:
        busy = Command((sys.executable, "-c", "while True: pass"), is_daemon=True)
        worker = Command((sys.executable, "-c", _WORKER, "0", "well"))
        with Contender("spinning", 1, [busy, worker]) as running:
            cores = running.idle_cores(0.3)
        self.assertEqual(list(cores), [processes.program(os.getpid())])
        self.assertGreater(cores[processes.program(os.getpid())], 0.01)

    def test_memory_is_what_was_added(self) -> None:
        with contender("holds memory") as running:
            before = running.memory_held_bytes()
            running.measure("f32", [4096], 1, 1, timeout_s=60)
            added = running.memory_held_bytes() - before
        self.assertGreater(added, 15 << 20)
        self.assertLess(added, 60 << 20)

    def test_nothing_is_left(self) -> None:
        running = contender("well", "hangs")
        with running:
            roots = [process.pid for process in running._started]
            directory = Path(running._directory.name)
            self.assertEqual(len(processes.family(roots)), 2)
        self.assertEqual(processes.family(roots), [])
        self.assertFalse(directory.exists())

    def test_daemons_are_ended_last_and_asked_to(self) -> None:
        daemon = Command(
            ("sh", "-c", "sleep 600 & trap 'kill $!; exit 0' TERM; wait"), is_daemon=True
        )
        worker = Command((sys.executable, "-c", _WORKER, "0", "well"))
        with Contender("with a daemon", 1, [daemon, worker]) as running:
            roots = [process.pid for process in running._started]
            end_s = time.monotonic() + 60
            while len(processes.family(roots)) < 3:  # The shell has not started its sleep yet.
                self.assertLess(time.monotonic(), end_s)
                os.sched_yield()
        self.assertEqual(processes.family(roots), [])

    def test_what_does_not_listen_to_sigterm_is_killed(self) -> None:
        stubborn = Command(("sh", "-c", "trap '' TERM; sleep 600"))
        worker = Command((sys.executable, "-c", _WORKER, "0", "well"))
        with mock.patch.object(contender_module, "END_TIMEOUT_S", 0.1):
            with Contender("stubborn", 1, [stubborn, worker]) as running:
                roots = [process.pid for process in running._started]
            self.assertEqual(processes.family(roots), [])

    def test_failures_name_the_rank_and_show_the_output(self) -> None:
        expected = {"dies": "rank 1 is gone", "fails": "rank 1: the sum is 2, not 3"}
        for manner, text in expected.items():
            with contender("well", manner) as running:
                with self.assertRaisesRegex(ContenderFailed, text):
                    running.measure("f32", [4096], 1, 1, timeout_s=60)
        with contender("well", "hangs") as running:
            with self.assertRaisesRegex(ContenderFailed, "rank 1 has not answered in time"):
                running.measure("f32", [4096], 1, 1, timeout_s=1)
        with self.assertRaisesRegex(ContenderFailed, "(?s)status 3.*a reason on stderr"):
            contender("well", "ends at once").__enter__()
        with mock.patch.object(contender_module, "START_TIMEOUT_S", 0.5):
            with self.assertRaisesRegex(ContenderFailed, "did not start within"):
                contender("never comes").__enter__()


class MeasureTest(unittest.TestCase):
    def test_contenders_take_turns_and_a_failed_one_is_left_out(self) -> None:
        said: list[str] = []
        cases = [Case("4 KiB", (4096,)), Case("8 KiB", (4096, 4096))]
        with contender("well", name="a") as a, contender("fails", name="b") as b:
            with contender("well", name="c") as c:
                results = measure_beside(
                    "s", "one", [a, b, c], 1, cases, Effort(3, 1e-6), said.append
                )
        self.assertEqual([r.contender for r in results], ["a", "b", "c"] * 2)
        self.assertEqual([bool(r.failure) for r in results], [False, True, False] * 2)
        self.assertEqual(len(results[0].gigabytes_per_s), 3)
        self.assertEqual((results[3].tensor_count, results[3].total_bytes), (2, 8192))
        self.assertAlmostEqual(results[0].ratios["c"], 1)
        turns = [text.split(": ")[1] for text in said if "4 KiB" in text and " of 3" in text]
        self.assertEqual(
            turns, ["a, 1 of 3", "c, 1 of 3", "c, 2 of 3", "a, 2 of 3", "c, 3 of 3", "a, 3 of 3"]
        )

    def test_a_case_may_be_one_tensor_for_somebody(self) -> None:
        case = Case("three", (4, 8, 4096), merged_for=frozenset(["b"]))
        self.assertEqual(case.tensors_of("a"), (4, 8, 4096))
        self.assertEqual(case.tensors_of("b"), (4108,))


class ProcessesTest(unittest.TestCase):
    def test_a_family_has_children_of_children(self) -> None:
        script = "sh -c 'sh -c \"echo; exec sleep 600\" & wait' & wait"
        process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            self.assertEqual(len(processes.family([process.pid])), 3)
            self.assertNotIn(os.getpid(), processes.family([process.pid]))
        finally:
            for pid in processes.family([process.pid]):
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)
            process.communicate()

    def test_cpu_time_of_this_process(self) -> None:
        before_s = processes.cpu_s([os.getpid()])[os.getpid()]
        begin_s = time.process_time()
        while time.process_time() - begin_s < 0.02:
            pass
        self.assertGreaterEqual(processes.cpu_s([os.getpid()])[os.getpid()] - before_s, 0.02)
        self.assertEqual(processes.cpu_s([2**22 + 1]), {})
        self.assertEqual(processes.program(2**22 + 1), "")

    def test_loopback_is_an_interface(self) -> None:
        self.assertIn("lo", processes.interface_bytes(os.getpid()))


class ScratchTest(unittest.TestCase):
    def end_of(self, script: str) -> None:
        """Runs a bench that names a process and its scratch directory, until both are gone."""
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        line = [sys.executable, "-c", script]
        output = subprocess.run(
            line, stdout=subprocess.PIPE, text=True, check=False, timeout=60, env=environment
        ).stdout
        pid, directory = output.split()
        self.assertTrue(directory.startswith("/tmp/talweg-bench-"))
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            if not Path(directory).exists() and not processes.program(int(pid)):
                return
            time.sleep(0.01)
        self.fail(f"left behind: {directory}, or process {pid}")

    _BEGIN = (
        "import os, subprocess\n"
        "from harness.scratch import scratch\n"
        "with scratch() as directory:\n"
        "    shell = ('sh', '-c', 'sleep 600 & echo $!; wait')\n"
        "    (directory / 'file').write_text('x')\n"
        "    sleeper = subprocess.Popen(shell, stdout=subprocess.PIPE, start_new_session=True)\n"
        "    print(int(sleeper.stdout.readline()), directory, flush=True)\n"
    )

    def test_a_killed_bench_leaves_nothing(self) -> None:
        self.end_of(self._BEGIN + "    os.kill(os.getpid(), 9)")

    def test_what_a_bench_leaves_that_is_killed_with_its_cleaner_is_removed_later(self) -> None:
        script = (
            "import os, subprocess, sys\n"
            "from harness.scratch import scratch\n"
            "with scratch() as directory:\n"
            "    shared = os.environ['TALWEG_BENCH_SHARED_MEMORY']\n"
            "    (directory / 'file').write_text('x')\n"
            "    print(directory, shared, flush=True)\n"
            "    sys.stdin.read()\n"
        )
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        bench = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert bench.stdin is not None and bench.stdout is not None
        with bench, bench.stdin, bench.stdout:
            left = [Path(path) for path in bench.stdout.readline().split()]
            for directory in left:
                remove_left(str(directory.parent))
                self.assertTrue(directory.exists(), "the bench has not ended")
            children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children").read_text()
            [cleaner] = [int(pid) for pid in children.split()]
            descriptor = os.pidfd_open(cleaner)
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], 60)
            os.close(descriptor)
            bench.kill()
        self.assertEqual(len(left), 2)
        for directory in left:
            self.assertTrue(directory.exists())
            remove_left(str(directory.parent))
            self.assertFalse(directory.exists(), str(directory))

    def test_neither_does_one_that_ends(self) -> None:
        self.end_of(self._BEGIN)


if __name__ == "__main__":
    unittest.main()
