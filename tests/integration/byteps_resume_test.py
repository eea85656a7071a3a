# SPDX-License-Identifier: Apache-2.0
"""Tests suspend() and resume() of two workers of two ranks, with one worker and with both again."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import job
from byteps_commands import shared, start
from torch_forks import torch_forks

_PROGRAM = textwrap.dedent(
    """
    import hashlib, os, pathlib, sys, time
    import byteps.torch as bps
    import torch

    again = pathlib.Path(sys.argv[1])
    bps.init()
    own = bps.rank()
    torch.manual_seed(own)  # Others at every rank, until rank 0's are broadcast.
    model = torch.nn.Linear(20, 2)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters()
    )

    def train(phase):
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        bps.broadcast_optimizer_state(optimizer, root_rank=0)
        for step in range(5):
            optimizer.zero_grad()
            model(torch.full((4, 20), 0.1 * (bps.rank() + step))).square().mean().backward()
            optimizer.step()
        ranks = bps.push_pull(torch.ones(1), average=False, name="ranks").item()
        bits = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
        place = f"{bps.rank()} of {bps.size()} local {bps.local_rank()} of {bps.local_size()}"
        print(f"{phase} {place} sum {ranks:g} {hashlib.sha256(bits).hexdigest()[:16]}", flush=True)

    train("first")
    bps.suspend()
    if own < 2:  # Worker 0 goes on without the other.
        bps.resume(1, 1, own)
        train("alone")
        bps.suspend()
    while not again.exists():
        time.sleep(0.02)
    bps.resume(2, 1, own)
    train("again")
    bps.shutdown()
    """
)

_AT_ONCE = textwrap.dedent(
    """
    import byteps.torch as bps
    import torch

    bps.init()
    if bps.size() == 1:
        bps.suspend()
        bps.resume(2, 1, 0)
    ranks = bps.push_pull(torch.ones(1), average=False, name="ranks").item()
    print(f"rank {bps.rank()} of {bps.size()}: {ranks:g}", flush=True)
    bps.shutdown()
    """
)

_ONE_TOO_MANY = textwrap.dedent(
    """
    import pathlib, sys, time
    import byteps.torch as bps
    import talweg
    from talweg.byteps import _waiting, common

    bps.init()
    bps.suspend()
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.02)
    _waiting._SAY_AFTER_S = 0.5
    common._WAIT_S = 20.0
    try:
        bps.resume(2, 1, 0)
    except talweg.Timeout as error:
        print(f"Timeout: {error}", flush=True)
    """
)


def _forked(*line: Path) -> list[str]:
    """Returns the command of a program whose processes do not import torch each."""
    return [sys.executable, "-P", *torch_forks().prefix, *map(str, line)]


class ResumeTest(unittest.TestCase):
    def _others(self, given: dict[str, str]) -> list[subprocess.Popen[str]]:
        return [start(self, [], **given, DMLC_ROLE=role) for role in ("server", "scheduler")]

    def _end(self, processes: list[subprocess.Popen[str]]) -> str:
        outputs = []
        for process in processes:
            output, _ = process.communicate(timeout=job.TIMEOUT_S)
            self.assertEqual(process.returncode, 0, output)
            outputs.append(output)
        return "".join(outputs)

    def test_fewer_workers_and_all_again(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            program, again = Path(directory) / "program.py", Path(directory) / "again"
            program.write_text(_PROGRAM)
            given = shared(NVIDIA_VISIBLE_DEVICES="0,1")
            command = _forked(program, again)
            others = self._others(given)
            workers = [
                start(self, command, **given, DMLC_ROLE="worker", DMLC_WORKER_ID=str(worker))
                for worker in (0, 1)
            ]
            self._end(others)  # These end with the job, which all ranks have left.
            others = self._others(given)
            again.touch()
            output = self._end([*workers, *others])
        lines = re.findall(r"(\w+) (\d) of (\d) local (\d) of (\d) sum (\d) (\w{16})", output)
        for phase, size in (("first", 4), ("alone", 2), ("again", 4)):
            found = sorted(line[1:] for line in lines if line[0] == phase)
            places = [(str(r), str(size), str(r % 2), "2", str(size)) for r in range(size)]
            self.assertEqual([line[:5] for line in found], places, output)
            self.assertEqual(len({line[5] for line in found}), 1, output)
        self.assertEqual(len({line[6] for line in lines}), 3, output)

    def test_resume_while_the_scheduler_before_ends(self) -> None:
        """The earlier scheduler may let the node in, and end. A job of two cannot begin there."""
        given = shared(
            NVIDIA_VISIBLE_DEVICES="0", DMLC_NUM_WORKER="1", BYTEPS_FORCE_DISTRIBUTED="1"
        )
        with tempfile.TemporaryDirectory() as directory:
            program = Path(directory) / "program.py"
            program.write_text(_AT_ONCE)
            command = _forked(program)
            others = self._others(given)
            workers = [start(self, command, **given, DMLC_ROLE="worker", DMLC_WORKER_ID="0")]
            self._end(others)
            given["DMLC_NUM_WORKER"] = "2"
            others = self._others(given)
            workers.append(start(self, command, **given, DMLC_ROLE="worker", DMLC_WORKER_ID="1"))
            output = self._end([*workers, *others])
        self.assertIn("rank 0 of 2: 2", output)
        self.assertIn("rank 1 of 2: 2", output)

    def test_a_worker_that_never_comes(self) -> None:
        given = shared(
            NVIDIA_VISIBLE_DEVICES="0", DMLC_NUM_WORKER="1", BYTEPS_FORCE_DISTRIBUTED="1"
        )
        with tempfile.TemporaryDirectory() as directory:
            program, again = Path(directory) / "program.py", Path(directory) / "again"
            program.write_text(_ONE_TOO_MANY)
            command = _forked(program, again)
            others = self._others(given)
            worker = start(self, command, **given, DMLC_ROLE="worker", DMLC_WORKER_ID="0")
            self._end(others)
            self._others(given)
            again.touch()
            output = self._end([worker])
        waits_for = "workers: 1 of 2 (DMLC_NUM_WORKER, or num_workers of resume()) is there"
        waits_for += "; DMLC_WORKER_ID 1 is missing"
        self.assertIn(f"W byteps] waiting for {waits_for}\n", output)
        self.assertRegex(output, rf"Timeout: .*; it has waited for {re.escape(waits_for)}\n")


if __name__ == "__main__":
    unittest.main()
