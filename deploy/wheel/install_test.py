# SPDX-License-Identifier: Apache-2.0
"""`pip install .` and `python setup.py install` of a checkout, in a virtual environment of their own.

They run in a copy of the tree. Bazel has built the wheels for this test already, so what stands on
PATH as bazel there puts these into place; with --full it is Bazel itself that builds them again.
"""

from __future__ import annotations

import contextlib
import os
import pty
import pwd
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

# Ends a hang. A build from nothing takes the most of it.
_DEADLINE_S = 3000.0
_FULL = bool(os.environ.get("TALWEG_TEST_FULL"))
_WHEELS = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "deploy" / "wheel"
_COPIED = (
    ".bazelrc",
    "BUILD.bazel",
    "LICENSE",
    "WORKSPACE",
    "bazel",
    "clients",
    "deploy",
    "libs",
    "proto",
    "pyproject.toml",
    "services",
    "setup.py",
    "tests/integration",
    "tests/lint",
    "tests/netns",
)
_BAZEL = """\
#!/bin/sh
# Puts wheels that Bazel has built where it would.
case " $* " in *" //deploy/wheel"*) ;; *) exit 0 ;; esac
echo "$@" >>{log}
mkdir -p {tree}/bazel-bin/deploy/wheel
cp -f {wheels}/*.whl {tree}/bazel-bin/deploy/wheel/
"""
_PROGRAM = "import talweg; talweg.init(); print('rank', talweg.rank(), talweg.__file__)"


class InstallTest(unittest.TestCase):
    directory: ClassVar[Path]
    tree: ClassVar[Path]
    log: ClassVar[Path]
    environment: ClassVar[dict[str, str]]

    @classmethod
    def setUpClass(cls) -> None:
        made = tempfile.TemporaryDirectory(prefix="talweg.", dir="/tmp")
        cls.addClassCleanup(made.cleanup)
        cls.directory = root = Path(made.name)
        cls.tree = root / "tree"
        cls.log = root / "bazel.log"
        cls.log.touch()
        (root / "home").mkdir()
        # In the tree, of which runfiles have links.
        source = (_WHEELS.parents[1] / "LICENSE").resolve().parent
        for name in _COPIED:
            if (source / name).is_dir():
                shutil.copytree(source / name, cls.tree / name, symlinks=True)
            else:
                cls.tree.mkdir(exist_ok=True)
                shutil.copy(source / name, cls.tree / name)
        path = os.environ["PATH"]
        if _FULL:
            rc = f"startup --output_user_root={root / 'output'} --host_jvm_args=-Xmx900m\n"
            users = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".bazelrc"
            rc += f"try-import {users}\n" if users.exists() else ""
            (cls.tree / "user.bazelrc").write_text(rc)
        else:
            tools = root / "tools"
            tools.mkdir()
            text = _BAZEL.format(log=cls.log, tree=cls.tree, wheels=_WHEELS)
            (tools / "bazel").write_text(text)
            (tools / "bazel").chmod(0o755)
            path = f"{tools}:{path}"
        kept = ("LANG", "SSL_CERT_FILE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
        cls.environment = {name: os.environ[name] for name in kept if name in os.environ}
        cls.environment |= {"PATH": path, "HOME": str(root / "home"), "TMPDIR": str(root)}
        cls.environment["PIP_NO_INDEX"] = "1"  # Nothing is fetched: neither to build, nor to run.

    def _venv(self, name: str, *options: str) -> Path:
        """It sees this test's NumPy, which the wheel needs."""
        place = self.directory / name
        line = [sys.executable, "-m", "venv", *options, str(place)]
        subprocess.run(line, check=True, timeout=_DEADLINE_S)
        [site] = place.glob("lib/python3*/site-packages")
        import numpy

        libraries = Path(numpy.__file__).parents[1]
        for each in libraries.glob("numpy*"):
            (site / each.name).symlink_to(each)
        return place / "bin"

    def _run(self, *line: str, status: int = 0, env: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            line,
            cwd=self.tree,
            env={**self.environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
            start_new_session=True,  # Without a terminal, progress goes to stderr.
        )
        self.assertEqual(done.returncode, status, done.stdout[-6000:])
        return done.stdout

    def _run_on_terminal(self, *line: str, env: Mapping[str, str]) -> str:
        """Runs a program that must succeed. Returns what it shows on the terminal that it has."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.tree)
            os.execvpe(line[0], line, {**self.environment, **env})
        shown = b""
        with contextlib.suppress(OSError):  # EIO when all that write to it have ended.
            while data := os.read(terminal, 1 << 16):
                shown += data
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 0, shown[-6000:])
        return shown.decode(errors="replace")

    def _require_it_runs(self, bin_: Path) -> None:
        line = [str(bin_ / "talweg"), "run", "--ranks-per-node=2", "--", str(bin_ / "python"), "-c"]
        output = self._run(*line, _PROGRAM)
        self.assertEqual(output.count("rank "), 2, output)
        self.assertIn(str(bin_.parent), output)

    def test_pip_install(self) -> None:
        bin_ = self._venv("pip")
        # pip keeps back what a backend writes to stderr.
        pip = [str(bin_ / "pip"), "install", "."]
        env = {"BYTEPS_WITHOUT_MXNET": "1", "BYTEPS_NCCL_HOME": "/usr/local/nccl"}
        output = self._run_on_terminal(*pip, env=env)
        self.assertIn("BYTEPS_WITHOUT_MXNET is needless", output)
        self.assertIn("BYTEPS_NCCL_HOME is needless", output)
        self.assertIn("Bazel builds what is missing", output)
        self._require_it_runs(bin_)

    def test_setup_py_install(self) -> None:
        """The command of BytePS's documents; a second one replaces what the first has installed."""
        bin_ = self._venv("setup")
        variables = {"BYTEPS_WITHOUT_MXNET": "1", "BYTEPS_WITHOUT_TENSORFLOW": "1"}
        for _ in range(2):
            output = self._run(str(bin_ / "python"), "setup.py", "install", env=variables)
            self.assertIn("BYTEPS_WITHOUT_TENSORFLOW is needless", output)
        self._require_it_runs(bin_)
        launcher = bin_.parent / "byteps" / "launcher" / "launch.py"
        self.assertTrue(launcher.is_file())
        program = "import byteps.common as bps; bps.init(); print('size', bps.size())"
        line = [str(bin_ / "python"), str(launcher), str(bin_ / "python"), "-c", program]
        self.assertIn("size 1", self._run(*line))

    def test_setup_py_install_user(self) -> None:
        """The command of the tutorial. A user's packages are seen where the system's are."""
        python = str(self._venv("user", "--system-site-packages") / "python")
        self._run(python, "setup.py", "install", "--user")
        place = Path(self.environment["HOME"]) / ".local"
        launcher = place / "byteps" / "launcher" / "launch.py"
        program = "import byteps.common as bps; bps.init(); print('size', bps.size(), bps.__file__)"
        output = self._run(python, str(launcher), python, "-c", program)
        self.assertRegex(output, f"size 1 {place}/lib/")

    def test_a_wheel_of_each(self) -> None:
        output = self._run(sys.executable, "setup.py", "bdist_wheel", "-d", "made")
        self.assertEqual(len(list((self.tree / "made").glob("*.whl"))), 3, output)

    def test_missing_packages_are_named(self) -> None:
        packages = self.tree / "bazel" / "packages.txt"
        before = packages.read_text()
        self.addCleanup(packages.write_text, before)
        packages.write_text(before + "no-such-package\n")
        told = self.log.read_text()
        output = self._run(sys.executable, "setup.py", "install", status=1)
        self.assertIn("Debian packages that are missing: no-such-package\n", output)
        self.assertIn("run bazel/prepare --for=build", output)
        bin_ = self._venv("missing")
        output = self._run(str(bin_ / "pip"), "install", ".", status=1)
        self.assertIn("Debian packages that are missing: no-such-package\n", output)
        self.assertEqual(self.log.read_text(), told)  # Nothing was built.

    def test_a_framework_that_must_be_there(self) -> None:
        bin_ = self._venv("framework")
        pip = [str(bin_ / "pip"), "install", "."]
        variables = {"BYTEPS_WITH_MXNET": "1", "BYTEPS_WITHOUT_PYTORCH": "1"}
        for line in ([str(bin_ / "python"), "setup.py", "install"], pip):
            output = self._run(*line, status=1, env=variables)
            self.assertIn("BYTEPS_WITH_MXNET is 1, and", output)
        [site] = bin_.parent.glob("lib/python3*/site-packages")
        (site / "mxnet.py").touch()
        output = self._run(*pip, "--verbose", env=variables)  # Without a terminal.
        self.assertIn("BYTEPS_WITHOUT_PYTORCH is needless", output)

    def test_the_reasons_are_those_of_the_table(self) -> None:
        for place in ("deploy/wheel", "clients/python"):
            sys.path.insert(0, str(self.tree / place))
            self.addCleanup(sys.path.remove, str(self.tree / place))
        import checkout_backend
        from talweg.byteps._environment import TABLE

        needless = checkout_backend._NEEDLESS
        meanings = {name: TABLE.by_name[name].meaning.lower() for name in needless}
        self.assertEqual(meanings, {name: f"{why}.".lower() for name, why in needless.items()})
        for framework in checkout_backend._FRAMEWORKS:
            self.assertIn("refuse", TABLE.by_name[f"BYTEPS_WITH_{framework}"].meaning)

    @unittest.skipIf(_FULL, "Bazel itself builds")
    def test_a_build_that_fails(self) -> None:
        broken = self.directory / "broken"
        broken.mkdir()
        (broken / "bazel").write_text(
            textwrap.dedent(
                """\
                #!/bin/sh
                echo "ERROR: what does not compile" >&2
                exit 1
                """
            )
        )
        (broken / "bazel").chmod(0o755)
        env = {"PATH": f"{broken}:{self.environment['PATH']}"}
        output = self._run(sys.executable, "setup.py", "install", status=1, env=env)
        self.assertIn("ERROR: what does not compile", output)
        self.assertIn("Bazel did not build the wheel", output)


if __name__ == "__main__":
    unittest.main()
