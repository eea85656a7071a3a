# SPDX-License-Identifier: Apache-2.0
"""The wheel installs into an empty directory and is all that a job needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

_WHEEL_DIR = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "deploy" / "wheel"

# With the options of BytePS's tutorial, as far as the time of a test allows.
_BENCHMARK = (
    "--model resnet18 --batch-size 2 --image-size 32 --num-iters 1 --num-batches-per-iter 1"
)

_PROGRAM = """
import numpy as np, talweg
talweg.init()
total = talweg.push_pull(np.full(5, talweg.rank() + 1, np.float32), op=talweg.Op.SUM, name="x")
assert (total == 3).all(), total
assert "site" in talweg.__file__, talweg.__file__
print("sum is right")
"""

_RANKS = "import byteps.common as b; b.init(); print(f'rank {b.rank()} of {b.size()}')"

# torch knows the backend by the wheel's entry point.
_BACKEND_PROGRAM = """
import sys
import torch, torch.distributed as dist
assert "talweg.torch" not in sys.modules
dist.init_process_group("talweg")
total = torch.full((5,), float(dist.get_rank() + 1))
dist.all_reduce(total)
assert total.tolist() == [3] * 5, total
print("sum is right")
dist.destroy_process_group()
"""

# Ubuntu 22.04 has this one.
_NEWEST_GLIBC = (2, 35)


def glibc_of(library: Path) -> tuple[int, ...]:
    """The newest version of glibc whose symbols the library asks for."""
    dump = ["objdump", "--dynamic-syms", str(library)]
    symbols = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
    versions = re.findall(r"\bGLIBC_(\d+)\.(\d+)", symbols)
    return max((int(major), int(minor)) for major, minor in versions)


class WheelTest(unittest.TestCase):
    @unittest.skipIf("TALWEG_SANITIZER" in os.environ, "sanitizers bring libraries of their own")
    def test_runs_on_older_systems(self) -> None:
        wheel = next(_WHEEL_DIR.glob("talweg-*.whl"))
        with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if "/bin/" in name or "/lib/" in name]
            self.assertGreater(len(names), 5)
            for name in names:
                glibc = glibc_of(Path(archive.extract(name, directory)))
                self.assertLessEqual(glibc, _NEWEST_GLIBC, name)
            # Two C++ runtimes in one program would not know each other's exceptions.
            self.assertNotIn("talweg/lib/libstdc++.so.6", names)

    def test_installs_and_runs_a_job(self) -> None:
        wheel = next(_WHEEL_DIR.glob("talweg-*.whl"))
        with tempfile.TemporaryDirectory() as directory:
            site = Path(directory) / "site"
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
            subprocess.run([*pip, f"--target={site}", str(wheel)], check=True, timeout=300)
            environment = {k: v for k, v in os.environ.items() if not k.startswith("TALWEG_")}
            environment["PYTHONPATH"] = str(site)
            tool = [sys.executable, "-c", "from talweg._cli import main; main()"]
            for text in (_PROGRAM, _BACKEND_PROGRAM):
                program = Path(directory) / "program.py"
                program.write_text(text)
                line = [*tool, "run", "--nodes=2", "--", sys.executable, str(program)]
                done = subprocess.run(
                    line, env=environment, capture_output=True, text=True, timeout=240, check=False
                )
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual(done.stdout.count("sum is right"), 2, done.stdout)

    def test_torchs_launcher_runs_a_program_that_only_names_the_backend(self) -> None:
        """The entry point makes the name known, and the ranks start the daemons that they need."""
        wheel = next(_WHEEL_DIR.glob("talweg-*.whl"))
        # A Unix socket has a short path.
        with tempfile.TemporaryDirectory(prefix="talweg.", dir="/tmp") as directory:
            site = Path(directory) / "site"
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
            subprocess.run([*pip, f"--target={site}", str(wheel)], check=True, timeout=300)
            program = Path(directory) / "program.py"
            program.write_text(_BACKEND_PROGRAM)
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            line = [*launcher, "--nproc-per-node=2", str(program)]
            kept = {k: v for k, v in os.environ.items() if not k.startswith("TALWEG_")}
            environment = {**kept, "PYTHONPATH": str(site), "TMPDIR": directory}
            environment["OMP_NUM_THREADS"] = "1"
            for autoload, count in (("1", 2), ("0", 0)):
                environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = autoload
                done = subprocess.run(
                    line, env=environment, capture_output=True, text=True, timeout=240, check=False
                )
                self.assertEqual(done.stdout.count("sum is right"), count, done.stderr)
                self.assertEqual(done.returncode == 0, count > 0, done.stdout + done.stderr)
            self.assertRegex(done.stderr, "(?i)unknown .*backend.*talweg|invalid backend.*talweg")

    def test_other_systems_programs_run(self) -> None:
        """The names, the launcher and the examples stand where BytePS's documents have them."""
        wheels = sorted(str(wheel) for wheel in _WHEEL_DIR.glob("*.whl"))
        self.assertEqual(len(wheels), 3)
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
            line = [*pip, "--no-warn-script-location", f"--prefix={root}", *wheels]
            subprocess.run(line, check=True, timeout=300)
            environment = {k: v for k, v in os.environ.items() if not k.startswith("TALWEG_")}
            environment["PYTHONPATH"] = str(next(root.glob("lib*/python3*/site-packages")))
            environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
            environment["EVAL_TYPE"] = "benchmark"
            start = str(root / "byteps/example/pytorch/start_pytorch_byteps.sh")
            benchmark = [start, *_BENCHMARK.split(), "--num-warmup-batches", "1"]
            ranks = [sys.executable, "-c", _RANKS]
            for line, devices, wanted in (
                (
                    [sys.executable, str(root / "byteps/launcher/launch.py"), *benchmark],
                    "0",
                    "on 1",
                ),
                ([str(root / "bin/bpslaunch"), *ranks], "0,1", "rank 1 of 2"),
                ([str(root / "bin/horovodrun"), "-np", "2", *ranks], "0", "rank 1 of 2"),
            ):
                done = subprocess.run(
                    line,
                    env={**environment, "NVIDIA_VISIBLE_DEVICES": devices},
                    capture_output=True,
                    text=True,
                    timeout=240,
                    check=False,
                )
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn(wanted, done.stdout)
            program = "import horovod.torch as hvd; hvd.init(); print(hvd.rank(), hvd.size())"
            done = subprocess.run(
                [sys.executable, "-c", program],
                env=environment,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            self.assertEqual(done.stdout, "0 1\n", done.stderr)


if __name__ == "__main__":
    unittest.main()
