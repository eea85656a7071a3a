# SPDX-License-Identifier: Apache-2.0
"""A site for each test of launchers. Nothing may be left there at the end."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid
from collections.abc import Sequence
from pathlib import Path

import job
from torch_forks import torch_forks

PROGRAMS = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "tests" / "launchers" / "programs"
RANK = [sys.executable, "-P", str(PROGRAMS / "rank.py")]
# A rank that names Talweg's backend to torch.distributed, and does nothing else.
BACKEND = [sys.executable, "-P", str(PROGRAMS / "backend.py")]
_TORCHRUN_MODULE = "torch.distributed.run"
TORCHRUN = [sys.executable, "-P", "-m", _TORCHRUN_MODULE]
# A variable that all processes of one site have, and no others.
_MARK = "TALWEG_TEST_SITE"
_OTHERS = re.compile("(TALWEG|SLURM|PMIX?|OMPI|HYDR?A?|TORCHELASTIC|BYTEPS|DMLC|HOROVOD)_")
_TORCHS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def in_fork(program: Sequence[str]) -> list[str]:
    """Returns a command that runs `python PROGRAM...` in a process that need not import torch.

    A signal reaches the fork only if it is SIGKILL.
    """
    return [sys.executable, "-P", *torch_forks(_TORCHRUN_MODULE).prefix, *program]


def torchrun() -> list[str]:
    """Returns TORCHRUN in a fork."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    return in_fork([str(Path(torch.origin).parent / "distributed" / "run.py")])


def backend() -> list[str]:
    """Returns BACKEND in a fork."""
    return in_fork(BACKEND[2:])


def rank_with_torch() -> list[str]:
    """Returns RANK in a fork. Ranks need torch where nodes meet through torch's store."""
    return in_fork(RANK[2:])


class SiteTest(unittest.TestCase):
    """A test with a directory of its own. All its processes end with the test."""

    def setUp(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="talweg.", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.directory, True)
        self.mark = uuid.uuid4().hex
        self.addCleanup(self._kill_all)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not _OTHERS.match(name) and name not in (*_TORCHS, "XDG_RUNTIME_DIR")
        }
        self.environment = {
            **kept,
            _MARK: self.mark,
            "TMPDIR": str(self.directory),
            "HOME": str(self.directory),
            "OMP_NUM_THREADS": "1",
            # Open MPI needs it in a container whose user is root.
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    def processes(self) -> dict[int, str]:
        """Returns the processes of this site, with their command lines."""
        found = {}
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                environment = (directory / "environ").read_bytes().split(b"\0")
                if f"{_MARK}={self.mark}".encode() in environment:
                    line = (directory / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(directory.name)] = line.decode(errors="replace")
            except OSError:  # The process has ended, or is another user's.
                continue
        return {pid: line for pid, line in found.items() if line}

    def keepers(self) -> list[int]:
        return [pid for pid, line in self.processes().items() if "import keeper" in line]

    def _kill_all(self) -> None:
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def require_nothing_left(self) -> None:
        """Checks that soon after the launcher's end no process and no job's directory is left."""
        end = time.monotonic() + job.TIMEOUT_S
        while True:
            left = self.processes()
            files = [str(path) for path in self.directory.glob("talweg-*/*")]
            if not left and not files:
                return
            if time.monotonic() > end:
                self.fail(f"left: {left} {files}")
            time.sleep(0.05)

    def start(self, line: Sequence[str], **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            list(line),
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.addCleanup(process.stdout.close if process.stdout else int)
        return process

    def finish(self, *processes: subprocess.Popen[str], status: int | None = 0) -> str:
        """Waits for the processes, and returns their outputs together.

        All must end with `status`; with None they must not end with 0.
        """
        output = ""
        for process in processes:
            try:
                text, _ = process.communicate(timeout=job.TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._kill_all()
                text, _ = process.communicate()
                self.fail(f"no end of {process.args!r}:\n{text[-8000:]}")
            output += text
        for process in processes:
            wrong = process.returncode == 0 if status is None else process.returncode != status
            if wrong:
                self.fail(f"exit {process.returncode}: {process.args!r}\n{output[-8000:]}")
        return output

    def run_line(self, line: Sequence[str], status: int | None = 0, **variables: str) -> str:
        return self.finish(self.start(line, **variables), status=status)

    def require_ranks(self, output: str, nodes: Sequence[int], times: int = 1) -> None:
        """Checks that each rank has said `times` times that its sum is right."""
        size = sum(nodes)
        wanted: list[str] = []
        for count in nodes:
            for local in range(count):
                rank = len(wanted)
                wanted.append(f"rank {rank} of {size}, local {local} of {count}: sum is right")
        found = re.findall(r"rank \d+ of \d+, local .*: sum is right", output)
        self.assertEqual(sorted(found), sorted(wanted * times), output)

    def require_ranks_of_torch(self, output: str, size: int) -> None:
        """Checks that each of `size` ranks of torch.distributed has said that its sum is right."""
        found = re.findall(r"rank (\d+) of (\d+): sum is right", output)
        wanted = [(str(rank), str(size)) for rank in range(size)]
        self.assertEqual(sorted(found), wanted, output)
