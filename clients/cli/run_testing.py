# SPDX-License-Identifier: Apache-2.0
"""Runs `talweg run` with shell scripts as daemons, and checks what its processes leave."""

import contextlib
import os
import pathlib
import selectors
import signal
import subprocess
import tempfile
import time
import unittest
import uuid
from collections.abc import Sequence

TOOL = pathlib.Path(os.environ["RUNFILES_DIR"], "talweg/clients/cli/talweg")
TIMEOUT_S = 60

DAEMON = """#!/bin/bash
echo "$@" >> "$TALWEG_TEST_LOG/$(basename "$0")"
[[ "$*" =~ --node_rank=([0-9]+) ]] && echo "${BASH_REMATCH[1]}" > "$TALWEG_TEST_PIDS/node.$$"
echo $$ >> "$TALWEG_TEST_PIDS/$(basename "$0")"
for argument in "$@"; do
  case $argument in --ready_fd=*) fd=${argument#*=} ;; esac
done
[ -z "$FAKE_DAEMON_FAILS" ] || [ "$(basename "$0")" != "$FAKE_DAEMON_FAILS" ] ||
  { echo "no luck" >&2; exit "${FAKE_FAILS_WITH:-9}"; }
# When it is started again, node 0's agent serves when the run has seen the end of rank 1.
if [ -n "$FAKE_AGENT_IS_LATE" ] && [[ "$*" == *--node_rank=0* ]] && ! mkdir "$TALWEG_TEST_LOG/once"; then
  until [ -e "$TALWEG_TEST_LOG/rank1" ]; do sleep 0.01; done
  while [ -e "/proc/$(cat "$TALWEG_TEST_LOG/rank1")" ]; do sleep 0.01; done
fi 2>/dev/null
if [ -n "$FAKE_AGENT_WAITS_FOR" ] && [[ "$*" == *"--node_rank=$FAKE_NODE_THAT_WAITS"* ]]; then
  until [ -e "$TALWEG_TEST_LOG/$FAKE_AGENT_WAITS_FOR" ]; do sleep 0.01; done
fi
[ "$(basename "$0")" = "$FAKE_DAEMON_SILENT" ] ||
  printf '{"pid":1,"addresses":{"listen":"127.0.0.1:4711","admin":"127.0.0.1:1"}}\\n' >&"$fd"
touch "$TALWEG_TEST_PIDS/serves.$$"
if [ -n "$FAKE_AGENT_ENDS_AFTER" ] && [ "$(basename "$0")" = talweg-agent ]; then
  until [ -e "$TALWEG_TEST_LOG/$FAKE_AGENT_ENDS_AFTER" ]; do sleep 0.01; done
  FAKE_AGENT_ENDS_WITH=5
fi
if [ -n "$FAKE_AGENT_ENDS_WITH" ] && [ "$(basename "$0")" = talweg-agent ]; then
  echo "agent ends" >&2
  exit "$FAKE_AGENT_ENDS_WITH"
fi
exec sleep 1000
"""


RUNS: list["Run"] = []


class Run:
    """One `talweg run`. A mark in their environment identifies its processes."""

    def __init__(self, *arguments: str, under: Sequence[str] = (), **environment: str) -> None:
        """`under` is what starts it."""
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
            [*under, TOOL, "run", *arguments],
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
        """Ends the processes that a failed test has left, and removes the files."""
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
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It has ended.
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
        """Waits for the end, checks that nothing is left; returns status, stdout and stderr."""
        try:
            output, errors = self.process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            for pid in self.marked():
                os.kill(pid, signal.SIGKILL)
            output, errors = self.process.communicate()
            raise AssertionError(f"hangs: {output.decode()} {errors.decode()}") from None
        # The outputs end when all processes that held them have ended. Others may take a moment
        # longer.
        deadline = time.monotonic() + TIMEOUT_S
        while (left := self.marked()) and time.monotonic() < deadline:
            os.sched_yield()
        # TSan's runtime has a file for a moment while a program starts. If the program is killed
        # just then, the file is left.
        files = [path for path in self.temporary.iterdir() if not path.name.startswith("tsan.")]
        assert not left, f"processes left: {left}"
        assert not files, f"files left: {files}"
        return self.process.returncode, output.decode(), errors.decode()

    def pids_of(self, daemon: str) -> list[int]:
        file = self.pids / daemon
        return [int(pid) for pid in file.read_text().split()] if file.exists() else []

    def until_started(self, daemon: str, count: int) -> None:
        """Waits until the daemon was started `count` times."""
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.pids_of(daemon)) < count:
            assert time.monotonic() < deadline, f"{daemon} was not started {count} times"
            time.sleep(0.01)

    def until_serving(self, pid: int) -> None:
        """Waits until the daemon has said that it serves."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (self.pids / f"serves.{pid}").exists():
            assert time.monotonic() < deadline, f"process {pid} does not serve"
            time.sleep(0.01)

    def node_of(self, agent: int) -> int:
        return int((self.pids / f"node.{agent}").read_text())

    @staticmethod
    def until_ended(pid: int) -> None:
        """Waits until the process has ended. Call it while its parent cannot wait for it."""
        deadline = time.monotonic() + TIMEOUT_S
        while pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline, f"process {pid} goes on"
            time.sleep(0.01)

    def arguments_of(self, daemon: str) -> list[str]:
        return sorted((self.log / daemon).read_text().splitlines())


def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
    return Run(*arguments, **environment).end()


class RunTestCase(unittest.TestCase):
    """Ends all processes that the test's runs have left."""

    def tearDown(self) -> None:
        while RUNS:
            RUNS.pop().remove()
