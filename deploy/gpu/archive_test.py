# SPDX-License-Identifier: Apache-2.0
"""The archive for machines with a GPU is small enough, and has all that its commands need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

_ARCHIVE = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "deploy" / "gpu" / "talweg-gpu.tar.xz"
_BYTES_MAX = 60_000_000
_TIMEOUT_S = 300.0


class ArchiveTest(unittest.TestCase):
    scratch: tempfile.TemporaryDirectory[str]
    root: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        with tarfile.open(_ARCHIVE) as archive:
            archive.extractall(cls.scratch.name)
        cls.root = Path(cls.scratch.name) / "talweg"

    def run_it(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Calls its `run` with the environment of a stranger's shell."""
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        environment["PYTHON"] = os.environ["TALWEG_ARCHIVE_PYTHON"]
        return subprocess.run(
            [str(self.root / "run"), *arguments],
            cwd="/",
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    def test_is_small(self) -> None:
        self.assertLess(_ARCHIVE.stat().st_size, _BYTES_MAX)

    def test_holds_no_link_and_nothing_of_the_machine_that_built_it(self) -> None:
        with tarfile.open(_ARCHIVE) as archive:
            for entry in archive.getmembers():
                self.assertTrue(entry.isfile(), entry.name)
                self.assertTrue(entry.name.startswith("talweg/"), entry.name)

    def test_its_tests_count_and_are_skipped_aloud_without_a_gpu(self) -> None:
        if Path("/dev/nvidiactl").exists():
            return  # There they run: ./test --gpu.
        done = self.run_it("test")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("SKIPPED: libs/gpu/cuda/conformance_test: ", done.stdout)
        self.assertIn("SKIPPED: tests/gpu/torch_on_gpu_test: torch 2", done.stdout)
        self.assertIn("passed: tests/gpu/kernel_bits_test", done.stdout)
        self.assertRegex(done.stdout, r"\n\d+ passed, 0 failed, [1-9]\d* skipped\n$")

    def test_a_failing_test_fails_it(self) -> None:
        program = self.root / "broken"
        program.write_text("#!/bin/sh\necho oh no\nexit 3\n")
        program.chmod(0o755)
        listing = self.root / "programs.txt"
        kept = listing.read_text()
        listing.write_text("broken\n")
        try:
            done = self.run_it("test")
        finally:
            listing.write_text(kept)
        self.assertEqual(done.returncode, 1)
        self.assertIn(
            "FAILED: broken (exit 3)\n  oh no\n0 passed, 1 failed, 0 skipped", done.stdout
        )

    def test_measures(self) -> None:
        done = self.run_it("bench", "--smoke", "--scenario=gpu_device,gpu_push_pull")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        results = json.loads((self.root / "results" / "results.json").read_text())
        self.assertIn("Fake GPU", results["data"]["gpu_device"]["gpu"])
        self.assertGreater(results["data"]["gpu_push_pull"]["peer_bytes_per_s"], 0)
        (stream,) = results["data"]["gpu_push_pull"]["streams"]
        for name in ("alone_s", "beside_s", "latency_s"):
            self.assertGreater(stream[name], 0, name)

    def test_its_tool_runs(self) -> None:
        done = self.run_it("talweg", "doctor")
        self.assertIn("GPU", done.stdout, done.stdout + done.stderr)

    def test_says_what_it_can_do(self) -> None:
        done = self.run_it()
        self.assertEqual(done.returncode, 2)
        self.assertIn("./run bench", done.stdout)


if __name__ == "__main__":
    if os.environ.get("TALWEG_SANITIZER"):
        print("SKIPPED: what is packed for other machines is built without a sanitizer")
        sys.exit(0)
    # The workspace's own interpreter: the archive asks for one that has torch.
    os.environ.setdefault("TALWEG_ARCHIVE_PYTHON", sys.executable)
    unittest.main()
