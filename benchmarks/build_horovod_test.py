# SPDX-License-Identifier: Apache-2.0
"""Tests benchmarks/build_horovod with an environment that is whole, half made or without its torch.

The packages are stand-ins of a few lines. "pip" writes a Horovod that imports torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from harness.contenders import Missing
from harness.scenarios.training_step_hosts import horovod_python

# The stand-in for `.venv/bin/python`. Its environments have a pip that fetches nothing.
_PYTHON = """#!/bin/bash
if [ "$1 $2" != "-m venv" ]; then PYTHONPATH="$PACKAGES" exec "$REAL" "$@"; fi
echo made >>"$LOG"
"$REAL" -m venv --without-pip "$3"
[ ! -L "$3/bin/python" ] || mv "$3/bin/python" "$3/bin/real-python"
cat >"$3/bin/python" <<'INNER'
#!/bin/bash
here=$(dirname "${BASH_SOURCE[0]}")
[ "$1 $2" = "-m pip" ] || exec -a "$here/real-python" "$here/real-python" "$@"
case "$3" in
  download) mkdir horovod-0.28.1 && echo "set(CMAKE_CXX_STANDARD 14)" >horovod-0.28.1/CMakeLists.txt
    tar czf horovod-0.28.1.tar.gz horovod-0.28.1 ;;
  install)
    [ "${!#}" != . ] && exit 0
    place=$("$here/real-python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
    mkdir "$place/horovod" && touch "$place/horovod/__init__.py"
    printf 'import torch\\ndef gloo_built(): return True\\n' >"$place/horovod/torch.py" ;;
esac
INNER
chmod +x "$3/bin/python"
"""


class BuildHorovodTest(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self._place = Path(place.name)
        self._log = self._place / "log"
        # Two checkouts that share .venv and .cache by links, and the one that owns both.
        self._owner = self._checkout("owner")
        packages = self._owner / ".venv" / "packages"
        packages.mkdir(parents=True)
        (packages / "torch").mkdir()
        (packages / "torch" / "__init__.py").touch()
        (self._owner / ".venv" / "bin").mkdir()
        python = self._owner / ".venv" / "bin" / "python"
        python.write_text(_PYTHON)
        python.chmod(0o755)
        (self._owner / ".cache").mkdir()

    def _checkout(self, name: str, owner: Path | None = None) -> Path:
        root = self._place / name
        (root / "benchmarks").mkdir(parents=True)
        shutil.copy("benchmarks/build_horovod", root / "benchmarks")
        if owner:
            for shared in (".venv", ".cache"):
                (root / shared).symlink_to(owner / shared)
        return root

    def _build(self, root: Path) -> str:
        variables = {
            "LOG": str(self._log),
            "REAL": os.path.realpath(sys.executable),
            "PACKAGES": str(root / ".venv" / "packages"),
        }
        done = subprocess.run(
            [str(root / "benchmarks" / "build_horovod")],
            env={"PATH": os.environ["PATH"], "TMPDIR": str(self._place), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def _made(self) -> int:
        return len(self._log.read_text().splitlines()) if self._log.exists() else 0

    def test_what_is_there_is_not_made_again(self) -> None:
        self.assertIn("Horovod 0.28.1 is in", self._build(self._owner))
        self.assertIn("has it already", self._build(self._owner))
        self.assertEqual(self._made(), 1)
        horovod_python(self._owner)

    def test_it_outlives_the_checkout_that_built_it(self) -> None:
        self._build(linked := self._checkout("linked", self._owner))
        shutil.rmtree(linked)
        self.assertIn("has it already", self._build(self._owner))

    def test_torch_is_found_again(self) -> None:
        self._build(self._owner)
        [link] = (self._owner / ".cache").glob("venv-horovod/lib/*/site-packages/*.pth")
        link.write_text("/no/such/place\n")
        with self.assertRaisesRegex(Missing, "is broken .*No module named 'torch'"):
            horovod_python(self._owner)
        self.assertIn("has found its torch again", self._build(self._owner))
        self.assertEqual(self._made(), 1)
        horovod_python(self._owner)

    def test_what_is_half_made_is_made_anew(self) -> None:
        self._build(self._owner)
        venv = self._owner / ".cache" / "venv-horovod"
        [package] = venv.glob("lib/*/site-packages/horovod")
        (package / "torch.py").unlink()
        (venv / "left_over").touch()
        with self.assertRaisesRegex(Missing, "is broken .*build_horovod makes it anew"):
            horovod_python(self._owner)
        self.assertIn("Horovod 0.28.1 is in", self._build(self._owner))
        self.assertEqual(self._made(), 2)
        self.assertFalse((venv / "left_over").exists())
        shutil.rmtree(venv)
        with self.assertRaisesRegex(Missing, "there is no Horovod"):
            horovod_python(self._owner)


if __name__ == "__main__":
    unittest.main()
