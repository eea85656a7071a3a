# SPDX-License-Identifier: Apache-2.0
"""Tests collectives and process sets that lose a member: programs/lost_member.py."""

from __future__ import annotations

import subprocess
import sys
import unittest

from cluster import DEADLINE_S, PROGRAMS, TOOL

_NODES = 4


class LostMembersTest(unittest.TestCase):
    def test_of_each_place(self) -> None:
        # After the loss of node 0 all other ranks have other numbers.
        for victim in (0, _NODES - 1):
            with self.subTest(victim=victim):
                done = subprocess.run(
                    [
                        str(TOOL),
                        "run",
                        f"--nodes={_NODES}",
                        "--loss-policy=continue",
                        "--",
                        *[sys.executable, "-P", str(PROGRAMS / "lost_member.py"), str(victim)],
                    ],
                    capture_output=True,
                    text=True,
                    timeout=DEADLINE_S,
                    check=False,
                )
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual(done.stdout.count("has ended well"), _NODES - 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
