# SPDX-License-Identifier: Apache-2.0
"""The wheel installs into an empty directory and is all that a job needs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

_WHEEL_DIR = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "deploy" / "wheel"

_PROGRAM = """
import numpy as np, talweg
talweg.init()
total = talweg.push_pull(np.full(5, talweg.rank() + 1, np.float32), op=talweg.Op.SUM, name="x")
assert (total == 3).all(), total
assert "site" in talweg.__file__, talweg.__file__
print("sum is right")
"""


class WheelTest(unittest.TestCase):
    def test_installs_and_runs_a_job(self) -> None:
        wheel = next(_WHEEL_DIR.glob("*.whl"))
        with tempfile.TemporaryDirectory() as directory:
            site = Path(directory) / "site"
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
            subprocess.run([*pip, f"--target={site}", str(wheel)], check=True, timeout=300)
            program = Path(directory) / "program.py"
            program.write_text(_PROGRAM)
            environment = {k: v for k, v in os.environ.items() if not k.startswith("TALWEG_")}
            environment["PYTHONPATH"] = str(site)
            tool = [sys.executable, "-c", "from talweg._cli import main; main()"]
            line = [*tool, "run", "--nodes=2", "--", sys.executable, str(program)]
            done = subprocess.run(
                line, env=environment, capture_output=True, text=True, timeout=240, check=False
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("sum is right"), 2, done.stdout)


if __name__ == "__main__":
    unittest.main()
