# SPDX-License-Identifier: Apache-2.0
"""Tests BytePS's rules for cores."""

from __future__ import annotations

import logging
import os
import unittest
import unittest.mock
from pathlib import Path
from typing import ClassVar

import job
from talweg._compat.environment import VariableError
from talweg.byteps import _cores, launcher
from talweg.errors import TalwegError

# The topologies of machines, from libs/topology.
_MACHINES = Path(job.TOOL).parents[2] / "libs" / "topology" / "testdata"


class CoresTest(unittest.TestCase):
    """Tests the rules on a machine with two NUMA nodes of sixteen cores with two threads each."""

    nodes: ClassVar[list[list[list[int]]]] = [
        [[core, core + 32] for core in range(first, first + 16)] for first in (0, 16)
    ]

    def _plan(self, local_size: int, **variables: str) -> list[str] | None:
        plan = _cores.plan(variables, local_size, self.nodes, set(range(64)))
        return None if plan is None else [_cores.show(cores) for cores in plan]

    def test_eight_ranks(self) -> None:
        plan = self._plan(8)
        assert plan is not None
        self.assertEqual((plan[0], plan[7]), ("0-3,32-35", "28-31,60-63"))
        self.assertEqual(len({core for cores in plan for core in _cores.parse(cores)}), 64)

    def test_one_rank_gets_half_a_node(self) -> None:
        self.assertEqual(self._plan(1), ["0-7,32-39"])

    def test_quotas(self) -> None:
        plan = self._plan(2, BYTEPS_NUMA_DEFAULT_QUOTA="2", BYTEPS_NUMA_ROOT_QUOTA="3")
        self.assertEqual(plan, ["0-1,32-33", "2-4,34-36"])
        self.assertEqual(self._plan(2, BYTEPS_MULTITHREADED_CPU="0"), ["0-15,32-47", "16-31,48-63"])

    def test_cores_that_are_left_out(self) -> None:
        self.assertEqual(self._plan(8, BYTEPS_CPU_BLACKLIST="-1"), self._plan(8))
        plan = self._plan(8, BYTEPS_CPU_BLACKLIST="0, 2,33")
        assert plan is not None
        self.assertEqual(plan[0], "1,3-4,35-36")  # Also a core within a range is left out.
        self.assertFalse({0, 2, 33} & {c for cores in plan for c in _cores.parse(cores)})

    def test_lists(self) -> None:
        self.assertEqual(
            self._plan(2, BYTEPS_VISIBLE_CPU_CORES="1,4-5,7-11,12:20-25"), ["1,4-5,7-12", "20-25"]
        )
        with self.assertRaisesRegex(VariableError, "has 2 sections; .* each of the 3 ranks"):
            self._plan(3, BYTEPS_VISIBLE_CPU_CORES="1:2")
        with self.assertRaisesRegex(VariableError, "99 has no core that this process may use"):
            self._plan(1, BYTEPS_VISIBLE_CPU_CORES="99")

    def test_a_rank_gets_cores_near_its_gpu(self) -> None:
        first, second = (
            {cpu for core in cores for cpu in core} for cores in (self.nodes[0], self.nodes[1])
        )
        found = [second, second, first, first]

        def plan(visible: str, local_size: int) -> list[str]:
            near = _cores.of_ranks(found, visible, local_size)
            cores = _cores.plan({}, local_size, self.nodes, set(range(64)), near)
            assert cores is not None
            return [_cores.show(each) for each in cores]

        expected = ["16-23,48-55", "24-31,56-63", "0-7,32-39", "8-15,40-47"]
        self.assertEqual(plan("0,1,2,3", 4), expected)
        self.assertEqual(plan(",2,0", 2), ["0-15,32-47", "16-23,48-55"])
        self.assertEqual(plan("", 1), ["16-23,48-55"])
        # One node has GPUs for more ranks than it has cores. Ranks get its last cores, then others.
        self.assertEqual(plan("0,1,0", 3), ["16-25,48-57", "26-31,58-63", "0-7,32-39"])

    def test_ranks_that_are_not_bound(self) -> None:
        log = logging.getLogger("test")
        with unittest.mock.patch("os.sched_setaffinity") as bind:
            self.assertIsNone(launcher.plan_cores({"BYTEPS_NUMA_ON": "0"}, 1, log))
            bind.assert_not_called()
            self.assertIsNotNone(launcher.plan_cores({}, 1, log))
            bind.assert_called_once()

    def test_cores_of_the_daemons(self) -> None:
        usable = set(range(8))
        ranks = [[0, 1], [4, 9]]
        self.assertEqual(_cores.of_daemons({}, ranks, usable), usable)
        left_out = {"BYTEPS_CPU_BLACKLIST": "1,7"}
        self.assertEqual(_cores.of_daemons(left_out, ranks, usable), {0, 2, 3, 4, 5, 6})
        visible = {**left_out, "BYTEPS_VISIBLE_CPU_CORES": "0-1:4,9"}
        self.assertEqual(_cores.of_daemons(visible, ranks, usable), {0, 1, 4})

    def test_fewer_cores_than_ranks(self) -> None:
        self.assertIsNone(_cores.plan({}, 4, [[[0], [1]]], {0, 1}))
        self.assertIsNone(_cores.plan({}, 2, [[[0, 1]]], {0, 1}))
        self.assertIsNone(_cores.plan({}, 1, [], {0, 1}))

    def test_cores_without_a_second_thread(self) -> None:
        """If cores have no second thread, a node's last rank may have all cores that are left."""
        self.assertEqual(_cores.plan({}, 1, [[[0], [1]]], {0, 1}), [[0, 1]])
        self.assertEqual(_cores.plan({}, 2, [[[0], [1]]], {0, 1}), [[0], [1]])


class MachinesTest(unittest.TestCase):
    """Tests topologies of machines, as hwloc describes them."""

    def _read(self, **variables: str) -> _cores.Machine:
        return _cores.read({**os.environ, **variables})

    def _plan(self, machine: _cores.Machine, local_size: int, visible: str = "") -> list[str]:
        near = _cores.of_ranks(machine.near_gpus, visible, local_size)
        cpus = {cpu for cores in machine.nodes for core in cores for cpu in core}
        plan = _cores.plan({}, local_size, machine.nodes, cpus, near)
        assert plan is not None
        return [_cores.show(cores) for cores in plan]

    def test_threads_that_stand_side_by_side(self) -> None:
        """An invented machine: two sockets of four cores. Core 0 has the threads 0 and 1."""
        machine = self._read(HWLOC_XMLFILE=str(_MACHINES / "two_sockets_two_nics.xml"))
        sockets = [[[cpu, cpu + 1] for cpu in range(first, first + 8, 2)] for first in (0, 8)]
        self.assertEqual(machine, _cores.Machine(sockets, []))
        self.assertEqual(self._plan(machine, 4), ["0-3", "4-7", "8-11", "12-15"])
        self.assertEqual(self._plan(machine, 2), ["0-7", "8-11"])

    def test_gpus_of_two_nodes(self) -> None:
        machine = self._read(HWLOC_XMLFILE=str(_MACHINES / "two_switches_four_gpus.xml"))
        nodes = [{cpu for core in cores for cpu in core} for cores in machine.nodes]
        self.assertEqual(len(nodes), 2)
        self.assertEqual(machine.near_gpus, [nodes[0], nodes[0], nodes[1], nodes[1]])
        [plan] = self._plan(machine, 1, "2")
        self.assertLessEqual(set(_cores.parse(plan)), nodes[1])

    def test_threads_that_stand_apart(self) -> None:
        """Most servers number the second threads after all first ones."""
        threads = ",".join(f"{core},{core + 8}" for core in range(8))
        machine = self._read(HWLOC_SYNTHETIC=f"numa:2 core:4 pu:2(indexes={threads})")
        self.assertEqual(machine.nodes[1], [[core, core + 8] for core in range(4, 8)])
        self.assertEqual(self._plan(machine, 4), ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"])

    def test_two_xeon_gold_6230(self) -> None:
        """A real machine: it deals the cores to its two sockets in turn."""
        threads = ",".join(f"{cpu},{cpu + 40}" for first in (0, 1) for cpu in range(first, 40, 2))
        machine = self._read(HWLOC_SYNTHETIC=f"package:2 numa:1 core:20 pu:2(indexes={threads})")
        for socket in (0, 1):
            expected = [[cpu, cpu + 40] for cpu in range(socket, 40, 2)]
            self.assertEqual(machine.nodes[socket], expected)
        self.assertEqual(self._plan(machine, 8)[5], "11,13,15,17,19,51,53,55,57,59")

    def test_two_epyc_7763(self) -> None:
        """A real machine: 128 cores, a NUMA node a socket, the second threads after all first."""
        threads = ",".join(f"{core},{core + 128}" for core in range(128))
        layout = f"package:2 numa:1 l3:8 core:8 pu:2(indexes={threads})"
        plan = self._plan(self._read(HWLOC_SYNTHETIC=layout), 8)
        self.assertEqual((plan[0], plan[4]), ("0-15,128-143", "64-79,192-207"))

    def test_a_dgx_a100(self) -> None:
        """A real machine: two EPYC 7742 of four NUMA nodes each, and two GPUs on half the nodes."""
        threads = ",".join(f"{core},{core + 128}" for core in range(128))
        layout = f"package:2 numa:4 core:16 pu:2(indexes={threads})"
        nodes = self._read(HWLOC_SYNTHETIC=layout).nodes
        of_node = [{cpu for core in cores for cpu in core} for cores in nodes]
        near_gpus = [of_node[node] for node in (3, 3, 1, 1, 7, 7, 5, 5)]
        plan = [set(_cores.parse(each)) for each in self._plan(_cores.Machine(nodes, near_gpus), 8)]
        self.assertEqual(sum(len(cores) for cores in plan), len(set().union(*plan)))
        # A node's cores suffice for one of its two GPUs' ranks. The other stays on their socket.
        for rank, node in ((0, 3), (2, 1), (4, 7), (6, 5)):
            self.assertEqual(plan[rank], of_node[node])
            socket = set().union(*of_node[node // 4 * 4 : node // 4 * 4 + 4])
            self.assertLessEqual(plan[rank + 1], socket)

    def test_a_machine_without_threads(self) -> None:
        machine = self._read(HWLOC_SYNTHETIC="numa:1 core:6 pu:1")
        self.assertEqual(self._plan(machine, 3), ["0-1", "2-3", "4-5"])

    def test_a_topology_that_cannot_be_read(self) -> None:
        with self.assertRaisesRegex(TalwegError, "BYTEPS_NUMA_ON=0"):
            self._read(HWLOC_XMLFILE="/no/such/file", HWLOC_COMPONENTS="xml,stop")

    def test_this_host(self) -> None:
        machine = _cores.read()
        cpus = [cpu for cores in machine.nodes for core in cores for cpu in core]
        self.assertEqual(set(cpus), os.sched_getaffinity(0))
        self.assertEqual(len(set(cpus)), len(cpus))


if __name__ == "__main__":
    unittest.main()
