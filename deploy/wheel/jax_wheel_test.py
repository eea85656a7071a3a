# SPDX-License-Identifier: Apache-2.0
"""The wheel, installed by pip, brings talweg.jax with what XLA calls."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

_WHEEL_DIR = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "deploy" / "wheel"
_PROGRAM = """
import jax
import talweg
import talweg.jax as tw

tw.init()
total = jax.jit(lambda x: tw.push_pull(x, "x", tw.Op.SUM))(jax.numpy.full(3, tw.rank() + 1.0))
assert total.tolist() == [3.0] * 3, total
print("sum is right of", talweg.__file__)
"""


class JaxWheelTest(unittest.TestCase):
    def test_installs_and_runs_a_job(self) -> None:
        wheel = next(_WHEEL_DIR.glob("talweg-*.whl"))
        with tempfile.TemporaryDirectory() as directory:
            site = Path(directory) / "site"
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
            subprocess.run([*pip, f"--target={site}", str(wheel)], check=True, timeout=300)
            environment = {k: v for k, v in os.environ.items() if not k.startswith("TALWEG_")}
            environment["PYTHONPATH"] = str(site)
            program = Path(directory) / "program.py"
            program.write_text(_PROGRAM)
            tool = [sys.executable, "-c", "from talweg._cli import main; main()"]
            done = subprocess.run(
                [*tool, "run", "--nodes=2", "--", sys.executable, str(program)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count(f"sum is right of {site}"), 2, done.stdout)


if __name__ == "__main__":
    unittest.main()
