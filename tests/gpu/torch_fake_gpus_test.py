# SPDX-License-Identifier: Apache-2.0
"""talweg.torch with tensors on fake GPUs, handed to real agents through the driver's functions."""

from __future__ import annotations

import itertools
import os
import unittest
from collections.abc import Sequence
from typing import ClassVar
from unittest import mock

from cluster import DEADLINE_S, Cluster, Rank
from machine import DRIVER_DIRECTORY, Machine, kill_in_a_step, two_nodes
from torch_forks import TorchForks

_SAID = "go through host memory"


class TorchFakeGpusTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks()
        # The ranks are forks, so their loader looks where their parent's did.
        with mock.patch.dict(os.environ, LD_LIBRARY_PATH=str(DRIVER_DIRECTORY)):
            cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def _finish(self, ranks: Sequence[Rank]) -> list[int]:
        """Waits for all ranks. Returns how often each said that it goes through host memory."""
        for rank in ranks:
            rank.wait_for("done")
            self.assertEqual(rank.process.wait(DEADLINE_S), 0)
        said = [[line for line in rank.seen if _SAID in line] for rank in ranks]
        print(*itertools.chain.from_iterable(said), sep="\n")  # Why, for whoever reads the log.
        return [len(lines) for lines in said]

    def _run_alone(self, gpus: Sequence[int], what: str, *options: str) -> list[int]:
        with Cluster() as cluster:
            machine = Machine(cluster, 0, len(gpus), ["--standalone", *options])
            ranks = [machine.torch_rank(i, gpu, what, self.forks) for i, gpu in enumerate(gpus)]
            return self._finish(ranks)

    def test_one_rank(self) -> None:
        said = self._run_alone(
            [0], "dtypes,layouts,handles,training,order,reallocated,two_gpus,again,order"
        )
        self.assertEqual(said, [0])

    def test_two_ranks_on_one_gpu(self) -> None:
        said = self._run_alone(
            [0, 0],
            "dtypes,layouts,handles,declared_together,training,order,late_stream,shapes,reallocated",
        )
        self.assertEqual(said, [0, 0])

    def test_ranks_on_two_gpus(self) -> None:
        self.assertEqual(self._run_alone([2, 1], "layouts,handles,order,reallocated"), [0, 0])

    def test_ranks_and_agent_number_the_gpus_each_in_their_way(self) -> None:
        with Cluster() as cluster:
            machine = Machine(cluster, 0, 2, ["--standalone"], visible="2,3,1")
            ranks = [machine.torch_rank(i, i, "order", self.forks, visible="3,1") for i in range(2)]
            self.assertEqual(self._finish(ranks), [0, 0])

    def test_a_gpu_that_the_agent_does_not_see(self) -> None:
        with Cluster() as cluster:
            machine = Machine(cluster, 0, 1, ["--standalone"], visible="1")
            rank = machine.torch_rank(0, 0, "layouts", self.forks, visible="3,1")
            self.assertEqual(self._finish([rank]), [1])
            [why] = [line for line in rank.seen if _SAID in line]
            self.assertIn("Fake GPU 1", why)  # Which it does see.
            self.assertIn("CUDA_VISIBLE_DEVICES", why)

    def test_two_nodes(self) -> None:
        with Cluster() as cluster:
            what = "dtypes,layouts,handles,training,order,cpu_beside_gpu,shapes"
            ranks = [
                machine.torch_rank(i, 0, what, self.forks)
                for machine in two_nodes(cluster, 2)
                for i in range(2)
            ]
            self.assertEqual(self._finish(ranks), [0] * 4)

    def test_memory_that_cannot_be_shared(self) -> None:
        said = self._run_alone(
            [0, 0], "refused,order_through_host_memory,late_stream_through_host_memory,order"
        )
        self.assertEqual(said, [1, 1])

    def test_events_that_cannot_be_shared(self) -> None:
        self.assertEqual(self._run_alone([0, 0], "events_refused,order"), [1, 1])

    def test_an_agent_that_takes_no_memory_of_gpus(self) -> None:
        self.assertEqual(self._run_alone([0, 1], "host_path,shapes", "--gpu=off"), [1, 1])
        self.assertEqual(self._run_alone([0], "layouts,again,layouts", "--gpu=off"), [2])

    def test_torch_distributed(self) -> None:
        what = "c10d_calls,c10d_mixed,c10d_order,c10d_carried,c10d_dropped"
        self.assertEqual(self._run_alone([0], "c10d_calls,c10d_order"), [0])
        self.assertEqual(self._run_alone([0, 1], f"{what},c10d_mismatch"), [0, 0])
        with Cluster() as cluster:
            ranks = [
                machine.torch_rank(i, 0, f"{what},c10d_mismatch", self.forks)
                for machine in two_nodes(cluster, 2)
                for i in range(2)
            ]
            self.assertEqual(self._finish(ranks), [0] * 4)

    def test_what_is_refused(self) -> None:
        self._run_alone([0], "captured,dropped")

    def test_the_agent_loses_a_gpu(self) -> None:
        with Cluster() as cluster:
            machines = two_nodes(cluster, 2)
            ranks = [
                machine.torch_rank(i, i, "steady", self.forks)
                for machine in machines
                for i in range(2)
            ]
            step = 2
            for rank in ranks:
                rank.wait_for(f"step {step}")
            for node, gpu in ((0, 1), (1, 0), (0, 0), (0, 1)):
                machines[node].lose(gpu)
                step += 4
                for rank in ranks:
                    rank.wait_for(f"step {step}")
            for machine, lost in zip(machines, (3, 1)):
                self.assertEqual(cluster.log(machine.agent).count("is open again"), lost)

    def test_a_process_is_killed_in_a_step(self) -> None:
        for killed in ("rank", "agent"):
            with self.subTest(killed), Cluster() as cluster:
                machine = Machine(cluster, 0, 2, ["--standalone"])
                ranks = [machine.torch_rank(i, i, "steady", self.forks) for i in range(2)]
                kill_in_a_step(machine, ranks, killed)


if __name__ == "__main__":
    unittest.main()
