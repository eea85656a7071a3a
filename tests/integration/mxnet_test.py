# SPDX-License-Identifier: Apache-2.0
"""Tests talweg.byteps.mxnet and talweg.horovod.mxnet with one rank and on two nodes."""

from __future__ import annotations

import sys
import unittest

import byteps.mxnet
import horovod.mxnet
import job
import talweg.byteps.mxnet
import talweg.horovod.mxnet

# With few threads four ranks disturb each other less on a small machine.
_THREADS = {"OMP_NUM_THREADS": "1"}


class MxnetTest(unittest.TestCase):
    def test_horovod(self) -> None:
        job.run(job.command("mxnet_horovod.py", nodes=2, ranks=2), env=_THREADS)

    def test_byteps(self) -> None:
        output = job.run(job.command("mxnet_byteps.py", nodes=2, ranks=2), env=_THREADS)
        self.assertIn("rank 3 of 4, local 1 of 2", output)

    def test_compression_of_byteps(self) -> None:
        for nodes, ranks in ((1, 1), (2, 2)):
            line = job.command("mxnet_compression.py", nodes=nodes, ranks=ranks)
            job.run(line, env=_THREADS)

    def test_alone(self) -> None:
        """Runs one rank, also with the engine that runs one operation after another."""
        for program in ("mxnet_horovod.py", "mxnet_byteps.py"):
            line = [sys.executable, "-P", str(job.PROGRAMS / program)]
            job.run(line, env={**_THREADS, "MXNET_ENGINE_TYPE": "NaiveEngine"})

    def test_values_of_wrong_types(self) -> None:
        job.run([sys.executable, "-P", str(job.PROGRAMS / "wrong_types.py"), "mxnet"])

    def test_asynchronous_steps(self) -> None:
        line = job.command("asynchronous_mxnet.py", nodes=2, ranks=(2, 1))
        output = job.run(line, env={**_THREADS, "BYTEPS_ENABLE_ASYNC": "1"})
        self.assertEqual(output.count("done"), 3, output)

    def test_the_names(self) -> None:
        """Both names are the same module, so there is one state."""
        self.assertIs(byteps.mxnet, talweg.byteps.mxnet)
        self.assertIs(horovod.mxnet, talweg.horovod.mxnet)


if __name__ == "__main__":
    unittest.main()
