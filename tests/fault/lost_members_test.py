# SPDX-License-Identifier: Apache-2.0
"""Tests collectives and process sets that lose members: programs/lost_member.py and others."""

from __future__ import annotations

import random
import secrets
import subprocess
import sys
import unittest
from collections.abc import Sequence

from cluster import DEADLINE_S, PROGRAMS, TOOL
from torch_forks import torch_forks

_NODES = 4


class LostMembersTest(unittest.TestCase):
    def test_the_first_or_the_last_is_lost(self) -> None:
        # After the loss of node 0 all other ranks have other numbers.
        for victim in (0, _NODES - 1):
            with self.subTest(victim=victim):
                self._run("lost_member.py", [str(victim)], _NODES - 1, torch_forks().prefix)

    def test_gathers_go_on_in_the_middle_of_losses(self) -> None:
        for _ in range(3):
            seed = secrets.randbelow(1 << 32)
            with self.subTest(seed=seed):
                randomly = random.Random(seed)
                first, second = randomly.sample(range(_NODES), 2)
                how = randomly.choice(("", ":between"))
                dies = (
                    f"{first}:{randomly.randint(2, 8)}",
                    f"{second}:{randomly.randint(2, 14)}{how}",
                )
                self._run("gather_on.py", [str(seed), *dies], _NODES - 2)

    def test_a_gather_leaves_out_the_rows_of_a_rank_that_is_lost_between_its_rounds(self) -> None:
        self._run("gather_on.py", ["1", "1:2", "2:9:between"], _NODES - 2)

    def test_sparse_sums_go_on_in_the_middle_of_losses(self) -> None:
        for way in ("gathered", "dealt", "dealt"):
            seed = secrets.randbelow(1 << 32)
            with self.subTest(seed=seed, way=way):
                randomly = random.Random(seed)
                first, second = randomly.sample(range(_NODES), 2)
                dies = (f"{first}:{randomly.randint(2, 8)}", f"{second}:{randomly.randint(2, 14)}")
                self._run("sparse_goes_on.py", [str(seed), way, *dies], _NODES - 2)

    def test_training_with_adasum_goes_on(self) -> None:
        for delay_s in (0.0, secrets.randbelow(5000) / 1e6):
            with self.subTest(delay_s=delay_s):
                victim = str(secrets.randbelow(_NODES))
                arguments = [victim, str(delay_s)]
                forks = torch_forks().prefix
                self._run("adasum_goes_on.py", arguments, _NODES - 1, forks)

    def _run(
        self, program: str, arguments: list[str], ended: int, forks: Sequence[str] = ()
    ) -> None:
        """Runs a job whose ranks run `program`. `ended` of them end well."""
        done = subprocess.run(
            [
                str(TOOL),
                "run",
                f"--nodes={_NODES}",
                "--loss-policy=continue",
                "--",
                *[sys.executable, "-P", *forks, str(PROGRAMS / program), *arguments],
            ],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("has ended well"), ended, done.stderr)


if __name__ == "__main__":
    unittest.main()
