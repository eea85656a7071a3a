# SPDX-License-Identifier: Apache-2.0
"""Tests batches in proportion to speed: programs/balanced.py and programs/balanced_numpy.py."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import unittest
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from catching_up import Job, require_no_open_round
from cluster import DEADLINE_S, PROGRAMS, RUNFILES, TOOL, Cluster, Rank

_STEP = re.compile(r"step (\d+) of (\d+) ranks shares (\S+) epoch (\d+) took (\S*)")
_SLOW = 1  # The node.
# Those of programs/balanced.py.
_SAMPLES, _BATCH, _RATE = 960, 16, 0.05


class _Step(NamedTuple):
    number: int
    shares: list[int]
    epoch: int
    took: list[int]


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")] if text else []


def _steps(rank: Rank) -> list[_Step]:
    """Returns the steps that the rank has ended."""
    found = filter(None, map(_STEP.match, rank.seen))
    return [_Step(int(m[1]), _numbers(m[3]), int(m[4]), _numbers(m[5])) for m in found]


def _wait_until_balanced(ranks: Sequence[Rank]) -> None:
    """Returns when rank 1, of two, has clearly less than rank 0, and 40 steps later."""
    for rank in ranks:
        end, shares = time.monotonic() + DEADLINE_S, [1, 1]
        while 3 * shares[1] > 2 * shares[0]:
            assert time.monotonic() < end, rank.seen[-20:]
            shares = _numbers(rank.wait_for("of 2 ranks shares").split()[6])
        rank.goes_on(40)


class BalancedTest(unittest.TestCase):
    def _check_alike(self, ranks: Sequence[Rank]) -> None:
        """Checks that ranks had the same shares in each step, and took as many samples."""
        by_step = [{step.number: step for step in _steps(rank)} for rank in ranks]
        common = set.intersection(*(set(steps) for steps in by_step))
        self.assertGreater(len(common), 60)
        for number in common:
            [shares] = {tuple(steps[number].shares) for steps in by_step}
            self.assertEqual(sum(shares), _BATCH * len(shares))
            taken = [len(steps[number].took) for steps in by_step]
            # The last step of an epoch may have fewer.
            if sum(taken) == sum(shares):
                self.assertEqual(taken, list(shares))

    def test_as_one_process_that_takes_all_samples_of_a_step(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, [f"--slow={_SLOW}"], program="balanced.py", begin_together=True)
            _wait_until_balanced(job.ranks)
            job.end(self, [0, 1])
            self._check_alike(job.ranks)
            weights = torch.zeros(3).double()
            inputs = torch.randn(_SAMPLES, 3, generator=torch.Generator().manual_seed(2)).double()
            epochs: dict[int, Counter[int]] = defaultdict(Counter)
            for one, other in zip(*map(_steps, job.ranks)):
                self.assertEqual((one.number, one.epoch), (other.number, other.epoch))
                batch = inputs[one.took + other.took]
                weights -= _RATE * (2 * (batch @ weights - 1)[:, None] * batch).mean(0)
                epochs[one.epoch].update(one.took + other.took)
            del epochs[max(epochs)]  # It was stopped in that one.
            self.assertTrue(epochs)
            for taken in epochs.values():
                self.assertEqual(taken, Counter(range(_SAMPLES)))
            for rank in job.ranks:
                [line] = [each for each in rank.seen if each.startswith("model ")]
                model = torch.tensor([float(each) for each in line.split()[1].split(",")])
                torch.testing.assert_close(model.double(), weights, rtol=1e-6, atol=1e-9)

    def test_a_loss_and_a_joiner(self) -> None:
        with Cluster(with_torch=True) as cluster:
            job = Job(cluster, [f"--slow={_SLOW}"], program="balanced.py", begin_together=True)
            _wait_until_balanced(job.ranks)
            job.agents[_SLOW].kill()
            job.ranks[_SLOW].process.kill()
            job.ranks[_SLOW].process.wait(DEADLINE_S)
            survivor = job.ranks[0]
            survivor.wait_for(f"of 1 ranks shares {_BATCH} ")
            joiner = job.add(_SLOW)
            # It has caught up beside the others' steps.
            self.assertTrue(joiner.wait_for("begins ").endswith(": True None"))
            both = (survivor, joiner)
            for rank in both:  # Nobody knows the joiner's speed at first.
                rank.wait_for(f"of 2 ranks shares {_BATCH},{_BATCH} ")
            _wait_until_balanced(both)
            require_no_open_round(self, job.agents)
            job.end(self, [0, 2])
            self._check_alike(both)
            self._check_samples(job.ranks, last_epoch=_steps(survivor)[-1].epoch)

    def _check_samples(self, ranks: Sequence[Rank], last_epoch: int) -> None:
        missing = 0
        for epoch in range(last_epoch):
            taken = Counter(
                sample
                for rank in ranks
                for step in _steps(rank)
                if step.epoch == epoch
                for sample in step.took
            )
            self.assertLessEqual(max(taken.values()), 1, f"epoch {epoch}")
            missing += _SAMPLES - len(taken)
        # The lost rank may have ended a step without reporting it.
        self.assertLessEqual(missing, 2 * _BATCH)

    def _run(self, options: Sequence[str], program: Sequence[str]) -> list[str]:
        """Runs a job, and returns its lines of output."""
        done = subprocess.run(
            [str(TOOL), "run", *options, "--", sys.executable, "-P", *program],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.splitlines()

    def test_the_example_measures(self) -> None:
        program = [str(RUNFILES / "examples" / "balance.py")]
        program += ["--turns=1", "--steps=5", "--batch-size=4"]
        equal, balanced, least = self._run(["--nodes=2"], program)
        self.assertRegex(equal, r"equal batches: \S+ ms a step .* batches of \[4, 4\]")
        self.assertRegex(balanced, r"in proportion: \S+ ms a step")
        self.assertRegex(least, "the least: 5.3 ms")

    def test_without_a_framework(self) -> None:
        for options in (
            ["--nodes=1", "--ranks-per-node=4"],
            ["--nodes=2", "--ranks-per-node=2"],
            ["--nodes=2", "--ranks-per-node=2", "--loss-policy=continue"],
        ):
            with self.subTest(options=options):
                lines_of_all = self._run(options, [str(PROGRAMS / "balanced_numpy.py"), "2"])
                told: dict[str, list[str]] = defaultdict(list)
                for line in lines_of_all:
                    rank, _, text = line.partition(" ")
                    told[rank].append(text)
                off = [float(lines.pop(-2).split()[1]) for lines in told.values()]
                self.assertLess(max(off), 1e-12)
                self.assertEqual(len(told), 4)
                self.assertEqual(len({tuple(lines) for lines in told.values()}), 1, told)
                [first, *_, last, _] = told["[0]"]
                self.assertEqual(first, "shares 8,8,8,8")
                shares = _numbers(last.split()[1])
                self.assertEqual(sum(shares), 32)
                self.assertLessEqual(3 * shares[2], 2 * max(shares))


if __name__ == "__main__":
    unittest.main()
