# SPDX-License-Identifier: Apache-2.0
"""Our declarations of XLA's foreign function interface are those of the jaxlib that is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import jax

_ROOT = Path(os.environ["RUNFILES_DIR"]) / "talweg"


class XlaFfiTest(unittest.TestCase):
    def compile(self, root: Path) -> subprocess.CompletedProcess[str]:
        line = ["g++", "-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof"]
        line += [f"-I{root}", "-isystem", jax.ffi.include_dir()]
        line += [str(_ROOT / "clients" / "jax" / "xla_ffi_test.cc")]
        return subprocess.run(line, capture_output=True, text=True)

    def test_every_struct_is_that_of_jaxlib(self) -> None:
        compiled = self.compile(_ROOT)
        self.assertEqual(compiled.returncode, 0, compiled.stderr)

    def test_another_layout_is_found(self) -> None:
        header = (_ROOT / "clients" / "jax" / "xla_ffi.h").read_text()
        last = "  Future* future;\n};\ninline"
        moved = header.replace(last, f"  int one_more;\n{last}")
        self.assertNotEqual(moved, header)
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as root:
            place = Path(root) / "clients" / "jax"
            place.mkdir(parents=True)
            (place / "xla_ffi.h").write_text(moved)
            compiled = self.compile(Path(root))
        self.assertIn("static assertion failed", compiled.stderr)


if __name__ == "__main__":
    if shutil.which("g++") is None:
        print("SKIPPED: there is no g++")
    else:
        unittest.main()
