# SPDX-License-Identifier: Apache-2.0
"""talweg.torch with CUDA tensors on this machine's GPUs: ./test --gpu."""

from __future__ import annotations

import os
import unittest
from collections.abc import Sequence

from cluster import DEADLINE_S, Cluster, Rank
from machine import Machine, kill_in_a_step, two_nodes

_SAID = "go through host memory"
_OF_C10D = (
    "c10d_calls,c10d_mixed,real_c10d_ddp,real_c10d_fsdp,real_c10d_futures,real_c10d_streams,"
    "real_c10d_captured"
)
_CASES = "layouts,handles,training,real_order,real_reallocated,real_captured,real_threads"


class TorchOnGpuTest(unittest.TestCase):
    def _finish(self, ranks: Sequence[Rank]) -> list[int]:
        """Waits for all ranks. Returns how often each said that it goes through host memory."""
        for rank in ranks:
            rank.wait_for("done")
            self.assertEqual(rank.process.wait(DEADLINE_S), 0)
        return [sum(_SAID in line for line in rank.seen) for rank in ranks]

    def _run_alone(
        self,
        gpus: Sequence[int],
        what: str,
        options: Sequence[str] = (),
        variables: dict[str, str] | None = None,
    ) -> list[int]:
        with Cluster() as cluster:
            options = ["--standalone", *options]
            machine = Machine(cluster, 0, len(gpus), options, fakes=False)
            ranks = [
                machine.torch_rank(i, gpu, what, variables=variables) for i, gpu in enumerate(gpus)
            ]
            return self._finish(ranks)

    def test_one_rank(self) -> None:
        self.assertEqual(self._run_alone([0], f"dtypes,{_CASES}"), [0])

    def test_two_ranks_on_one_gpu(self) -> None:
        self.assertEqual(self._run_alone([0, 0], f"dtypes,{_CASES},real_ddp"), [0, 0])

    def test_every_gpu(self) -> None:
        import torch

        gpus = list(range(torch.cuda.device_count()))
        if len(gpus) == 1:
            print("SKIPPED: this machine has one GPU, so no collectives among GPUs; the rest ran")
            return
        self.assertEqual(self._run_alone(gpus, f"{_CASES},real_ddp"), [0] * len(gpus))

    def test_two_nodes(self) -> None:
        with Cluster() as cluster:
            what = f"dtypes,{_CASES},cpu_beside_gpu"
            ranks = [
                machine.torch_rank(i, 0, what)
                for machine in two_nodes(cluster, 2, fakes=False)
                for i in range(2)
            ]
            self.assertEqual(self._finish(ranks), [0] * 4)

    def test_torch_distributed(self) -> None:
        self.assertEqual(self._run_alone([0], _OF_C10D), [0])
        self.assertEqual(self._run_alone([0, 0], f"{_OF_C10D},real_c10d_beside_gloo"), [0, 0])
        with Cluster() as cluster:
            ranks = [
                machine.torch_rank(i, 0, _OF_C10D)
                for machine in two_nodes(cluster, 2, fakes=False)
                for i in range(2)
            ]
            self.assertEqual(self._finish(ranks), [0] * 4)

    def test_torch_distributed_beside_nccl(self) -> None:
        self.assertEqual(self._run_alone([0, 0], "real_c10d_beside_nccl"), [0, 0])
        with Cluster() as cluster:
            ranks = [
                machine.torch_rank(i, 0, "real_c10d_beside_nccl,real_c10d_hsdp")
                for machine in two_nodes(cluster, 2, fakes=False)
                for i in range(2)
            ]
            self.assertEqual(self._finish(ranks), [0] * 4)

    def test_a_process_is_killed_in_a_step(self) -> None:
        for killed in ("rank", "agent"):
            with self.subTest(killed), Cluster() as cluster:
                machine = Machine(cluster, 0, 2, ["--standalone"], fakes=False)
                ranks = [machine.torch_rank(i, 0, "steady") for i in range(2)]
                kill_in_a_step(machine, ranks, killed)

    def test_memory_that_cannot_be_shared(self) -> None:
        for allocator in ("expandable_segments:True", "backend:cudaMallocAsync"):
            with self.subTest(allocator):
                variables = {"PYTORCH_CUDA_ALLOC_CONF": allocator}
                said = self._run_alone([0, 0], f"dtypes,{_CASES}", variables=variables)
                self.assertEqual(said, [1, 1])

    def test_an_agent_that_takes_no_memory_of_gpus(self) -> None:
        self.assertEqual(self._run_alone([0, 0], f"dtypes,{_CASES}", ["--gpu=off"]), [1, 1])


def _why_not() -> str:
    if "TALWEG_TEST_GPU" not in os.environ:
        return "tests on a GPU run under ./test --gpu"
    import torch

    if not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} of .venv finds no GPU of NVIDIA's: install a build of it "
            "with CUDA there"
        )
    return ""


if __name__ == "__main__":
    if reason := _why_not():
        print(f"SKIPPED: {reason}")
    else:
        unittest.main()
