# SPDX-License-Identifier: Apache-2.0
"""Real daemons and ranks whose gradients lie on fake GPUs, which are files that all of them map."""

from __future__ import annotations

import unittest
from collections.abc import Sequence

from cluster import DEADLINE_S, Cluster, Rank
from machine import Machine, nodes_of, two_nodes


class DaemonsTest(unittest.TestCase):
    def _finish(self, ranks: Sequence[Rank]) -> None:
        for rank in ranks:
            rank.wait_for("done")
            self.assertEqual(rank.process.wait(DEADLINE_S), 0)

    def test_alone(self) -> None:
        for gpus in ([0], [0, 0], [0, 1], [2, 0, 2]):
            with self.subTest(gpus=gpus), Cluster() as cluster:
                machine = Machine(cluster, 0, len(gpus), ["--standalone"])
                # Twice: the agent serves the next ranks when the first ones have left.
                for _ in range(2):
                    self._finish([machine.rank(i, gpu, "rounds") for i, gpu in enumerate(gpus)])
                self.assertIn("FAKE", cluster.log(machine.agent))

    def test_two_nodes(self) -> None:
        for gpus in ([0], [0, 0], [0, 1]):
            with self.subTest(gpus=gpus), Cluster() as cluster:
                machines = two_nodes(cluster, len(gpus))
                self._finish(
                    [
                        machine.rank(i, gpu, "rounds")
                        for machine in machines
                        for i, gpu in enumerate(gpus)
                    ]
                )

    def test_a_nic_reaches_the_gpus(self) -> None:
        network = ("--local_transport=false",)
        for gpus, options in (
            ([0], (network, network)),
            ([0, 0], (network, network)),
            ([0, 1], (network, network)),
            ([1, 0, 1], (network, network)),
            # The machines differ in their paths. Every rank compares every byte.
            ([0], (network, (*network, "--gpu_direct=off"))),
            ([0, 1], (network, (*network, "--gpu_direct=off"))),
        ):
            with self.subTest(gpus=gpus, options=options), Cluster() as cluster:
                machines = two_nodes(cluster, len(gpus), options=options)
                self._finish(
                    [
                        machine.rank(i, gpu, "together")
                        for machine in machines
                        for i, gpu in enumerate(gpus)
                    ]
                )
                for machine, its in zip(machines, options, strict=True):
                    used = "GPUDirect: used, from tensor 'sum'" in cluster.log(machine.agent)
                    self.assertEqual(used, its == network)

    def test_aggregators_die_under_what_a_nic_has(self) -> None:
        """After that slices are cut elsewhere, and what one member holds goes to the others."""
        options = ("--local_transport=false", "--loss_policy=continue")
        with Cluster() as cluster:
            scheduler = cluster.scheduler(["--in_memory"]).addresses["listen"]
            aggregators = [cluster.aggregator(scheduler, f"a{i}") for i in range(4)]
            machines = nodes_of(cluster, scheduler, 1, True, [options] * 3)
            ranks = [machine.rank(0, 0, "steady") for machine in machines]
            step = 2
            for aggregator in (None, *aggregators[1:]):
                if aggregator is not None:
                    aggregator.kill()
                for rank in ranks:
                    rank.wait_for(f"step {step}")
                step += 4
            for machine in machines:
                self.assertIn("GPUDirect: used", cluster.log(machine.agent))

    def test_beside_an_aggregator_gradients_go_through_the_host(self) -> None:
        with Cluster() as cluster:
            machines = two_nodes(cluster, 1)
            self._finish([machine.rank(0, 0, "rounds") for machine in machines])
            for machine in machines:
                log = cluster.log(machine.agent)
                self.assertIn("GPUDirect: not for some tensors: an aggregator is reached", log)
                self.assertNotIn("GPUDirect: used", log)

    def test_a_gpu_is_lost_with_what_a_nic_has_there(self) -> None:
        network = ("--local_transport=false",)
        with Cluster() as cluster:
            machines = two_nodes(cluster, 1, options=(network, network))
            ranks = [machine.rank(0, 0, "steady") for machine in machines]
            for rank in ranks:
                rank.wait_for("step 2")
            machines[0].lose(0)
            for rank in ranks:
                line = rank.wait_for("error ")
                self.assertIn("--gpu_direct=off", line)
                self.assertIn("Fake GPU 0", line)

    def test_a_rank_in_host_memory_beside_one_on_a_gpu(self) -> None:
        with Cluster() as cluster:
            machines = two_nodes(cluster, 2)
            self._finish(
                [
                    machine.rank(i, 0, what)
                    for machine in machines
                    for i, what in enumerate(("rounds", "host"))
                ]
            )

    def test_a_rank_is_killed_in_a_step(self) -> None:
        with Cluster() as cluster:
            machine = Machine(cluster, 0, 2, ["--standalone"])
            ranks = [machine.rank(i, i, "steady") for i in range(2)]
            for rank in ranks:
                rank.wait_for("step 2")
            self.assertGreater(machine.mapped(), 0)
            ranks[1].process.kill()
            line = ranks[0].wait_for("error ")
            self.assertIn("error job failed:", line)
            self.assertIn(f"pid {ranks[1].process.pid}", line)
            self.assertEqual(ranks[0].process.wait(DEADLINE_S), 3)

    def test_a_rank_is_killed_with_its_gpu_at_work(self) -> None:
        with Cluster() as cluster:
            machines = two_nodes(cluster, 2)
            ranks = [
                machine.rank(i, 0, "stall" if (node, i) == (0, 1) else "steady")
                for node, machine in enumerate(machines)
                for i in range(2)
            ]
            ranks[1].wait_for("pushed")
            ranks[1].process.kill()
            for other in (ranks[0], ranks[2], ranks[3]):
                line = other.wait_for("error ")
                self.assertIn(f"pid {ranks[1].process.pid}", line)

    def test_the_agent_is_killed(self) -> None:
        with Cluster() as cluster:
            machine = Machine(cluster, 0, 2, ["--standalone"])
            ranks = [machine.rank(i, i, "steady") for i in range(2)]
            for rank in ranks:
                rank.wait_for("step 2")
            machine.agent.kill()
            for rank in ranks:
                self.assertIn("error agent lost:", rank.wait_for("error "))
                self.assertEqual(rank.process.wait(DEADLINE_S), 3)

    def test_the_agent_loses_a_gpu(self) -> None:
        for gpus in ([0, 0], [0, 1]):
            with self.subTest(gpus=gpus), Cluster() as cluster:
                machines = two_nodes(cluster, len(gpus))
                ranks = [
                    machine.rank(i, gpu, "steady")
                    for machine in machines
                    for i, gpu in enumerate(gpus)
                ]
                step = 2
                for rank in ranks:
                    rank.wait_for(f"step {step}")
                mapped = machines[0].mapped()
                descriptors = [machine.descriptors() for machine in machines]
                # At any moment of the agent's work. Each rank compares every result.
                for node, gpu in ((0, gpus[-1]), (1, gpus[0]), (0, gpus[-1])):
                    machines[node].lose(gpu)
                    step += 4
                    for rank in ranks:
                        rank.wait_for(f"step {step}")
                self.assertEqual(machines[0].mapped(), mapped)
                self.assertEqual([machine.descriptors() for machine in machines], descriptors)
                for machine, lost in zip(machines, (2, 1), strict=True):
                    log = cluster.log(machine.agent)
                    self.assertEqual(log.count("is open again"), lost)

    def test_gpus_are_off(self) -> None:
        with Cluster() as cluster:
            machine = Machine(cluster, 0, 1, ["--standalone", "--gpu=off"])
            line = machine.rank(0, 0, "rounds").wait_for("error ")
            self.assertIn("error unsupported:", line)
            self.assertIn("--gpu=off", line)


if __name__ == "__main__":
    unittest.main()
