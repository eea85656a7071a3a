# SPDX-License-Identifier: Apache-2.0
"""Tests that a program in a fork behaves as in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar

from torch_forks import Fork, TorchForks

_DEADLINE_S = 60.0


class ForksTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks(("numpy",))
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def _program(self, text: str) -> str:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = Path(directory.name) / "program.py"
        path.write_text(text)
        return str(path)

    def _start(self, text: str, *arguments: str, **variables: str) -> Fork:
        kept = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
        fork = self.forks.start([self._program(text), *arguments], {**kept, **variables})
        self.addCleanup(fork.stdin.close)
        self.addCleanup(fork.stdout.close)
        self.addCleanup(fork.wait, _DEADLINE_S)
        self.addCleanup(fork.kill)
        return fork

    def test_how_it_ends(self) -> None:
        for text, status in (
            ("pass", 0),
            ("import sys; sys.exit(3)", 3),
            ("raise ValueError", 1),
            ("import os; os.abort()", -signal.SIGABRT),
            ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ):
            with self.subTest(text=text):
                self.assertEqual(self._start(text).wait(_DEADLINE_S), status)

    def test_it_reads_and_writes(self) -> None:
        fork = self._start("import sys\nprint(sys.argv[1:], input())\nprint(input())", "a", "b")
        fork.stdin.write("one\n")
        fork.stdin.flush()
        self.assertEqual(fork.stdout.readline(), "['a', 'b'] one\n")
        self.assertIsNone(fork.poll())
        fork.stdin.write("two\n")
        fork.stdin.flush()
        self.assertEqual(fork.stdout.readline(), "two\n")
        self.assertEqual(fork.wait(_DEADLINE_S), 0)

    def test_it_is_on_the_host_of_its_starter(self) -> None:
        program = self._program(
            "import os, socket\nprint(socket.gethostname(), socket.if_nameindex())"
        )
        script = 'hostname elsewhere; exec "$@"'
        line = ["unshare", "--net", "--uts", "sh", "-c", script, "sh"]
        allowed = subprocess.run([*line, "true"], check=False, capture_output=True, text=True)
        if allowed.returncode != 0:
            print(f"SKIPPED: no network namespaces: {allowed.stderr}")
            self.skipTest("no network namespaces")
        starter = [sys.executable, "-P", *self.forks.prefix, program]
        done = subprocess.run(
            [*line, *starter], check=True, capture_output=True, text=True, timeout=_DEADLINE_S
        )
        self.assertEqual(done.stdout, "elsewhere [(1, 'lo')]\n")

    def test_it_is_stopped_and_killed(self) -> None:
        fork = self._start(
            "import os, signal\nprint(os.getpid(), flush=True)\n"
            "os.kill(os.getpid(), signal.SIGSTOP)\nprint('goes on', flush=True)\nsignal.pause()"
        )
        self.assertEqual(fork.stdout.readline(), f"{fork.pid}\n")
        with self.assertRaises(subprocess.TimeoutExpired):
            fork.wait(0)
        state = ""
        while state != "T":  # The test's timeout ends a hang.
            state = Path(f"/proc/{fork.pid}/stat").read_text().rpartition(")")[2].split()[0]
        fork.send_signal(signal.SIGCONT)
        self.assertEqual(fork.stdout.readline(), "goes on\n")
        fork.kill()
        self.assertEqual(fork.wait(_DEADLINE_S), -signal.SIGKILL)
        fork.kill()  # The fork has ended already.

    def test_its_end_waits_and_calls_as_an_interpreters_does(self) -> None:
        """Modules that were imported before the fork exist until the end."""
        fork = self._start(
            "import atexit, ctypes, numpy, sys, threading\n"
            "class Kept:\n"
            "    def __del__(self): print('gone')\n"
            "kept = Kept()\n"
            "go = threading.Event()\n"
            "def work():\n"
            "    go.wait()\n"
            "    print('thread')\n"
            "atexit.register(lambda: print('atexit', 'numpy' in sys.modules, numpy.ones(1)))\n"
            "threading.Thread(target=work).start()\n"
            "ctypes.CDLL(None).printf(b'of C\\n')\n"
            "print('end')\n"
            "go.set()\n"
            "sys.exit(5)\n"
        )
        lines = fork.stdout.read().splitlines()
        self.assertEqual(fork.wait(_DEADLINE_S), 5)
        self.assertEqual(sorted(lines), ["atexit True [1.]", "end", "gone", "of C", "thread"])
        self.assertLess(lines.index("thread"), lines.index("atexit True [1.]"))
        self.assertLess(lines.index("atexit True [1.]"), lines.index("gone"))

    def test_its_temporary_files_go_with_the_forks(self) -> None:
        text = "import tempfile; print(tempfile.mkstemp()[1])"
        with TorchForks(("json",)) as forks:
            fork = forks.start([self._program(text)], {"PATH": os.environ["PATH"]})
            left = Path(fork.stdout.readline().strip())
            self.assertEqual(fork.wait(_DEADLINE_S), 0)
            self.assertTrue(left.exists())
            fork.stdin.close()
            fork.stdout.close()
        self.assertFalse(left.exists())
        with tempfile.TemporaryDirectory() as told:
            line = self._start(text, TMPDIR=told).stdout.readline()
            self.assertEqual(str(Path(line).parent), told)

    def test_one_that_a_launcher_starts(self) -> None:
        program = self._program("import os, sys\nprint(os.getpid(), flush=True)\nsys.exit(input())")
        for end, status in (("go", 1), ("kill", 128 + signal.SIGKILL)):
            with self.subTest(end=end):
                line = [sys.executable, "-P", *self.forks.prefix, program]
                with subprocess.Popen(
                    line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                ) as starter:
                    self.addCleanup(starter.kill)
                    assert starter.stdin is not None and starter.stdout is not None
                    rank = int(starter.stdout.readline())
                    self.assertEqual(self.forks.rank_of(starter.pid), rank)
                    self.assertEqual(self.forks.starter_of(rank), starter.pid)
                    if end == "kill":
                        os.kill(rank, signal.SIGKILL)
                    else:
                        starter.stdin.write("1\n")
                        starter.stdin.flush()
                    self.assertEqual(starter.wait(_DEADLINE_S), status)
                self.assertIsNone(self.forks.rank_of(starter.pid))

    def test_it_ends_with_its_starter(self) -> None:
        program = self._program("import signal\nprint(flush=True)\nsignal.pause()")
        line = [sys.executable, "-P", *self.forks.prefix, program]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as starter:
            assert starter.stdout is not None
            self.assertEqual(starter.stdout.readline(), "\n")
            starter.kill()
            self.assertEqual(starter.stdout.read(), "")  # No process has the pipe's other end.


if __name__ == "__main__":
    unittest.main()
