# SPDX-License-Identifier: Apache-2.0
"""The blocks about variables, RDMA's, and that no block is forgotten."""

from __future__ import annotations

import os
import shlex
import shutil
import unittest
from pathlib import Path

import tutorial
from tutorial import Document, Machines

_HERE = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "tests" / "tutorial"
_DOCUMENTS = ("env", "readme", "step_by_step_tutorial", "zeno_ps")
_NOT_RUN = {
    "install pytorch": "wheels of Python 2.7 from another host; bazel/prepare installs PyTorch",
    "change gcc": "changes the machine; Bazel builds with the compiler that is there",
    "recover gcc": "changes the machine",
    "build": "clones from another host; //deploy/wheel:install_test runs its last line",
    "setup": "clones from another host; //deploy/wheel:install_test runs its last line",
}
# What stands for the letters of env.md.
_LETTERS = {
    "partition bytes": {"=y": "=40960"},
    "nccl rings": {"=z": "=1"},
    "nccl group size": {"=w": "=4"},
    "pcie switch size": {"=x": "=8"},
    "sample tensor": {"=xxxx": "=1"},
    "server threads": {"=v": "=4"},
    "visible cores": {"1,4-5,7-11,12:20-25": "0:0"},
}
_SETTINGS = (
    "log level",
    "sample tensor",
    "force distributed",
    "verbose",
    "pcie switch size",
    "partition bytes",
    "nccl rings",
    "nccl group size",
    "server threads",
    "server schedule",
)
_PROGRAM = """
import os
import numpy as np
import talweg
from talweg.byteps import common as bps
bps.init()
total = talweg.push_pull(np.ones(100000, np.float32), op=talweg.Op.SUM, name="x")
assert (total == bps.size()).all()
print("rank", bps.rank(), "of", bps.size(), "on cores", sorted(os.sched_getaffinity(0)), flush=True)
talweg.barrier()
"""
_ASYNCHRONOUS = """
import byteps.torch as bps
import torch
bps.init()
counter = torch.nn.Parameter(torch.zeros(2))
optimizer = torch.optim.SGD([counter], lr=1.0)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=[("counter", counter)])
bps.broadcast_parameters({"counter": counter}, root_rank=0)
for _ in range(3 + bps.rank()):
    counter.grad = -torch.ones(2)
    optimizer.step()
rank = bps.rank()
bps.shutdown()
print("rank", rank, "has", counter.tolist(), flush=True)
"""
_RDMA_ERROR = (
    r"\A(container of this image\n)?(.* stands for one rank on CPUs\n)?"
    r"bpslaunch: DMLC_ENABLE_RDMA is 1, which chooses libfabric's "
    r"provider 'verbs', and this machine has no RDMA device .*: set it to 0 for TCP.*\n\Z"
)


def _has_rdma() -> bool:
    devices = Path("/sys/class/infiniband")
    return devices.is_dir() and any(devices.iterdir())


class EnvironmentTest(unittest.TestCase):
    """env.md: a job of one worker that is made to use a server, with every variable of that page."""

    def setUp(self) -> None:
        self.page = Document("env")
        self.machines = Machines(["host"])
        self.machines.__enter__()
        self.addCleanup(self.machines.__exit__)
        (self.machines.directory / "program.py").write_text(_PROGRAM)

    def _block(self, name: str) -> str:
        return self.page.block(name, _LETTERS.get(name, {}))

    def _required(self, role: str) -> str:
        values = {
            "a.b.c.d": "127.0.0.1",
            "PORT=p": "PORT=1234",
            "ID=x": "ID=0",
            "WORKER=y": "WORKER=1",
            "ROLE=worker": f"ROLE={role}",
        }
        return self.page.block("required for workers", values) + "export DMLC_NUM_SERVER=1\n"

    def _command(self, program: str) -> str:
        """`launcher/launcher.py YOUR_COMMAND`, where an image has it."""
        command = self.page.block("launcher", {"YOUR_COMMAND": program})
        return f"cd /usr/local/byteps\n{command}"

    @property
    def _program(self) -> str:
        return f"python {shlex.quote(str(self.machines.directory / 'program.py'))}"

    def test_a_job_with_every_variable(self) -> None:
        settings = "".join(self._block(name) for name in _SETTINGS)
        started = {
            role: self.machines.start("host", self._required(role) + settings + command)
            for role, command in (
                ("scheduler", self._command("")),
                ("server", self._command("")),
                (
                    "worker",
                    "export NVIDIA_VISIBLE_DEVICES=0,1\n"
                    + self._block("visible cores")
                    + self._command(self._program),
                ),
            )
        }
        said = self.machines.finish(started)["worker"]
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2 on cores [0]", said)
        self.assertIn("BYTEPS_NCCL_NUM_RINGS has no effect", said)  # It is said at INFO.

    def test_without_a_launcher(self) -> None:
        block = self._required("worker")
        for local_rank in range(2):
            exports = self.page.block("without a launcher", {"=r": f"={local_rank}", "=s": "=2"})
            block += f'({exports}exec {self._program}) & pids="${{pids:-}} $!"\n'
        block += "status=0; for pid in $pids; do wait $pid || status=$?; done; exit $status\n"
        said = self.machines.run({"host": block})["host"]
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2 on cores", said)

    def test_gdb(self) -> None:
        if shutil.which("gdb") is None:
            print("SKIPPED: no gdb; bazel/prepare --for=test installs it")
            return
        block = self._required("worker") + self._block("gdb")
        block += self._command("python -c 'import os; os.abort()'")
        process = self.machines.start("host", block)
        said, _ = process.communicate(timeout=tutorial.TIMEOUT_S)
        self.assertNotEqual(process.returncode, 0)
        self.assertRegex(said, r"received signal SIGABRT[\s\S]*#\d+ .* in (__GI_)?abort")

    def test_asynchronous_training(self) -> None:
        """The ranks make different numbers of steps. In the end both have all of them."""
        (self.machines.directory / "program.py").write_text(_ASYNCHRONOUS)
        enable = self._block("asynchronous")
        two = "export NVIDIA_VISIBLE_DEVICES=0,1\n"
        started = {
            role: self.machines.start("host", self._required(role) + enable + more)
            for role, more in (
                ("scheduler", self._command("")),
                ("server", self._command("")),
                ("worker", two + self._command(self._program)),
            )
        }
        said = self.machines.finish(started)["worker"]
        for rank in range(2):
            self.assertIn(f"rank {rank} has [7.0, 7.0]", said)

    @unittest.skipIf(_has_rdma(), "SKIPPED: this machine has an RDMA device")
    def test_rdma(self) -> None:
        block = self._required("worker").replace("NUM_WORKER=1", "NUM_WORKER=2")
        block += "export " + self._block("rdma") + self._command("true")
        process = self.machines.start("host", block)
        said, _ = process.communicate(timeout=tutorial.TIMEOUT_S)
        self.assertEqual(process.returncode, 1, said)
        self.assertRegex(said, _RDMA_ERROR)


@unittest.skipIf(_has_rdma(), "SKIPPED: this machine has an RDMA device")
class RdmaTest(unittest.TestCase):
    def test_each_process_that_carries_gradients_says_that_there_is_no_device(self) -> None:
        """Nobody waits for the others: they may be on machines that have one."""
        page = Document("step_by_step_tutorial")
        with Machines(["host"]) as machines:
            replaced = {"10.0.0.100": machines.address("host"), "eth5": "eth0"}
            blocks = [page.block("rdma server", replaced)]
            for worker in ("rdma worker 0", "rdma worker 1"):
                blocks.append(page.block(worker, {**replaced, **tutorial.DEVICES}))
            for framework, name in (("tensorflow", "rdma tensorflow"), ("pytorch", "rdma pytorch")):
                blocks.append(tutorial.with_script(blocks[1], framework, page.block(name, {})))
            # The scheduler carries none: it waits for servers.
            waits = machines.start("host", page.block("rdma scheduler", replaced))
            for block in blocks:
                process = machines.start("host", block)
                said, _ = process.communicate(timeout=tutorial.TIMEOUT_S)
                self.assertEqual(process.returncode, 1, said)
                self.assertRegex(said, _RDMA_ERROR)
            self.assertIsNone(waits.poll())


class BlocksTest(unittest.TestCase):
    def test_no_block_is_forgotten(self) -> None:
        tests = "".join(path.read_text() for path in sorted(_HERE.glob("*_test.py")))
        tests += Path(tutorial.__file__).read_text()
        for name in _DOCUMENTS:
            for block in Document(name).names:
                runs = f'"{block}"' in tests or f'"{block.removeprefix("tcp ")}"' in tests
                self.assertTrue(runs, f"{name}: {block}")


if __name__ == "__main__":
    unittest.main()
