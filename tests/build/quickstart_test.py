# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at any moment of ./quickstart leaves no process, socket, segment or temporary file.

It runs in a copy of the tree, with a Bazel server of its own, on a terminal of its own. A process of it is
known by a mark in its environment, or by naming the directory that only this test uses. Moments before the
build are tried always, all others with --full, since they need the build.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import pwd
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from tests.lint import source_tree

# Ends a hang. A build from nothing takes the most of it.
_DEADLINE_S = 3000.0
_POLL_S = 0.02
_FULL = unittest.skipUnless(
    os.environ.get("TALWEG_TEST_FULL"), "needs a whole build: ./test --full"
)
_COPIED = (
    ".bazelrc",
    "BUILD.bazel",
    "LICENSE",
    "WORKSPACE",
    "bazel",
    "clients",
    "examples",
    "libs",
    "proto",
    "quickstart",
    "services",
    "tests/netns",
)


class Copy:
    """A tree of its own, with all that its programs may leave somewhere in one directory."""

    def __init__(self, root: Path) -> None:
        self.tree = root / "tree"
        self.temporary = root / "tmp"
        self.home = root / "home"
        self.output = self.tree / "build" / "quickstart"
        self.mark = uuid.uuid4().hex
        for directory in (self.tree, self.temporary, self.home):
            directory.mkdir()
        source = source_tree.root()
        for name in _COPIED:
            if (source / name).is_dir():
                shutil.copytree(source / name, self.tree / name, symlinks=True)
            else:
                shutil.copy(source / name, self.tree / name)
        # Its server and outputs end with this test; a cache that the user has set up is used.
        rc = f"startup --output_user_root={root / 'bazel'} --host_jvm_args=-Xmx900m\n"
        users_rc = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".bazelrc"
        if users_rc.exists():
            rc += f"try-import {users_rc}\n"
        (self.tree / "user.bazelrc").write_text(rc)
        self.root = root

    def use_the_venv(self) -> None:
        """The one that this test runs in: nothing is left to prepare."""
        venv = self.tree / ".venv"
        if not venv.is_symlink():
            shutil.rmtree(venv, ignore_errors=True)
            venv.symlink_to(source_tree.root() / ".venv")

    def processes(self) -> dict[int, str]:
        """Those that run for this copy."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            directory = Path("/proc", name)
            with contextlib.suppress(OSError):
                line = (directory / "cmdline").read_bytes()
                words = line + b"\0" + (directory / "environ").read_bytes()
                if int(name) != os.getpid() and (
                    self.mark.encode() in words or os.fsencode(self.root) in words
                ):
                    found[int(name)] = line.replace(b"\0", b" ").decode(errors="replace")
        return found

    def left(self) -> list[str]:
        """What there should not be when ./quickstart has ended."""
        left = [f"process {pid}: {line}" for pid, line in self.processes().items()]
        left += [f"file {path}" for path in self.temporary.rglob("*")]
        left += [
            f"socket {path}" for path in self.tree.rglob("*") if path.is_socket() or path.is_fifo()
        ]
        return left


class Terminal:
    """./quickstart in the foreground of a terminal."""

    def __init__(self, copy: Copy) -> None:
        self.master, slave = pty.openpty()
        environment = {
            "HOME": str(copy.home),
            "PATH": f"{_venv_python().parent}:/usr/local/bin:/usr/bin:/bin",
            "TERM": "xterm",
            "TMPDIR": str(copy.temporary),
            "TALWEG_TEST_MARK": copy.mark,
            "USER": pwd.getpwuid(os.geteuid()).pw_name,
        }
        self.process = subprocess.Popen(
            ["./quickstart", "--epochs=20"],
            cwd=copy.tree,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.text = ""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.master, selectors.EVENT_READ)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + _DEADLINE_S
        while not condition():
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"the moment did not come:\n{self.text[-4000:]}")
            self._read()

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")  # The kernel sends SIGINT to the foreground group.

    def wait(self) -> int:
        end = time.monotonic() + _DEADLINE_S
        while self.process.poll() is None:
            if time.monotonic() > end:
                raise AssertionError(f"it does not end:\n{self.text[-4000:]}")
            self._read()
        self._read()
        return self.process.returncode

    def _read(self) -> None:
        if self._selector.select(_POLL_S):
            with contextlib.suppress(OSError):  # Nobody has the other end any more.
                self.text += os.read(self.master, 65536).decode(errors="replace")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._selector.close()
        os.close(self.master)


def _venv_python() -> Path:
    """The python3 that .venv was made with, or bazel/prepare would make another."""
    stamp = (source_tree.root() / ".venv" / "talweg-prepared").read_text()
    return Path(stamp.splitlines()[0].split()[0])


class QuickstartTest(unittest.TestCase):
    copy: ClassVar[Copy]

    @classmethod
    def setUpClass(cls) -> None:
        # Unix sockets lie in it: a short path.
        directory = tempfile.mkdtemp(prefix="tqs.", dir="/tmp")
        cls.addClassCleanup(_remove, directory)
        cls.copy = Copy(Path(directory))

    @contextlib.contextmanager
    def _quickstart(self) -> Iterator[Terminal]:
        segments = set(os.listdir("/dev/shm"))
        terminal = Terminal(self.copy)
        try:
            yield terminal
            left = self.copy.left()
            # Others may be at work there, but not with these names.
            left += [
                f"segment {name}"
                for name in set(os.listdir("/dev/shm")) - segments
                if any(word in name for word in ("talweg", "torch", "psm_", "sem.mp"))
            ]
            self.assertEqual(left, [], terminal.text[-4000:])
        finally:
            terminal.close()
            for pid in self.copy.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for path in self.copy.temporary.iterdir():
                shutil.rmtree(path, ignore_errors=True)

    def _interrupt(self, moment: Callable[[Terminal], bool], processes_min: int = 2) -> None:
        with self._quickstart() as terminal:
            self._interrupt_at(terminal, moment, processes_min)

    def _interrupt_at(
        self, terminal: Terminal, moment: Callable[[Terminal], bool], processes_min: int = 2
    ) -> None:
        terminal.wait_until(lambda: moment(terminal))
        # Else there would be nothing to leave, or nothing that this test can see.
        self.assertGreaterEqual(len(self.copy.processes()), processes_min)
        terminal.press_ctrl_c()
        self.assertIn(terminal.wait(), (130, -signal.SIGINT), terminal.text[-4000:])

    def test_1_while_it_prepares(self) -> None:
        self._interrupt(lambda _: (self.copy.tree / ".venv" / "bin").exists())

    def test_2_while_bazel_starts(self) -> None:
        self.copy.use_the_venv()
        self._interrupt(lambda _: any("--output_base" in p for p in self.copy.processes().values()))

    @_FULL
    def test_3_while_it_builds(self) -> None:
        self.copy.use_the_venv()
        self._interrupt(lambda terminal: "build [#" in terminal.text, 3)

    def _run_after_the_build(self) -> contextlib.AbstractContextManager[Terminal]:
        self.copy.use_the_venv()
        # What the run before has left there is no sign of this one.
        shutil.rmtree(self.copy.output, ignore_errors=True)
        return self._quickstart()

    def _interrupt_after_the_build(self, moment: Callable[[Terminal], bool]) -> None:
        with self._run_after_the_build() as terminal:
            self._interrupt_at(terminal, moment)

    def _runs(self, program: str) -> bool:
        return any(f"/{program} " in line for line in self.copy.processes().values())

    def _wrote(self, name: str) -> bool:
        return (self.copy.output / name).exists()

    @_FULL
    def test_4_while_the_scheduler_starts(self) -> None:
        self._interrupt_after_the_build(lambda _: self._runs("talweg-scheduler"))

    @_FULL
    def test_4_while_the_agents_start(self) -> None:
        self._interrupt_after_the_build(lambda _: self._runs("talweg-agent"))

    @_FULL
    def test_4_while_the_ranks_start(self) -> None:
        self._interrupt_after_the_build(
            lambda terminal: "train over Talweg" in terminal.text and self._runs("digits.py")
        )

    @_FULL
    def test_4_while_the_ranks_train(self) -> None:
        self._interrupt_after_the_build(lambda terminal: "train over Talweg [#" in terminal.text)

    @_FULL
    def test_4_while_the_ranks_end(self) -> None:
        self._interrupt_after_the_build(lambda _: self._wrote("job/rank0.json"))

    @_FULL
    def test_4_while_the_one_process_starts(self) -> None:
        self._interrupt_after_the_build(lambda terminal: "train in one process" in terminal.text)

    @_FULL
    def test_4_while_the_one_process_trains(self) -> None:
        self._interrupt_after_the_build(lambda terminal: "train in one process [#" in terminal.text)

    @_FULL
    def test_4_while_it_draws(self) -> None:
        self._interrupt_after_the_build(lambda _: self._wrote("single/rank0.json"))

    @_FULL
    def test_4_twice(self) -> None:
        with self._run_after_the_build() as terminal:
            terminal.wait_until(lambda: "train over Talweg [#" in terminal.text)
            terminal.press_ctrl_c()
            terminal.press_ctrl_c()
            self.assertEqual(terminal.wait(), 130, terminal.text[-4000:])

    @_FULL
    def test_4_while_bazels_server_ends(self) -> None:
        with self._run_after_the_build() as terminal:
            terminal.wait_until(lambda: "timeline:" in terminal.text)
            terminal.press_ctrl_c()
            self.assertIn(terminal.wait(), (0, 130), terminal.text[-4000:])

    @_FULL
    def test_4_never(self) -> None:
        with self._run_after_the_build() as terminal:
            self.assertEqual(terminal.wait(), 0, terminal.text[-4000:])


def _remove(directory: str) -> None:
    """Bazel takes the right to write away from what it has made."""
    subprocess.run(["chmod", "-R", "u+w", directory], check=False)
    shutil.rmtree(directory)


if __name__ == "__main__":
    if not shutil.which("bazel"):
        print("SKIPPED: there is no bazel on PATH")
        sys.exit(0)
    unittest.main()
