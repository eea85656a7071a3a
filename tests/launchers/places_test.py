# SPDX-License-Identifier: Apache-2.0
"""Tests that launchers' variables give the right places, and that strangers stay out of a job."""

from __future__ import annotations

import os
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

from talweg import errors
from talweg._node import launchers, places, slurm

_TORCH = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
}
_OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}
_HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
_SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
}


def _numbers(environment: dict[str, str]) -> tuple[str, int, int, int, int]:
    place = launchers.find(environment)
    assert place is not None
    return place.launcher, place.rank, place.size, place.local_rank, place.local_size


class LaunchersTest(unittest.TestCase):
    def test_each_is_understood(self) -> None:
        self.assertEqual(_numbers(_TORCH), ("a launcher that sets RANK", 3, 4, 1, 2))
        self.assertEqual(_numbers(_OPEN_MPI), ("mpirun", 2, 3, 0, 1))
        self.assertEqual(_numbers(_HYDRA), ("mpirun (Hydra)", 1, 2, 1, 2))
        self.assertEqual(_numbers(_SRUN), ("srun", 4, 5, 0, 1))

    def test_whom_another_has_started_comes_first(self) -> None:
        run = {"TORCHELASTIC_RUN_ID": "x"}
        for inner, outer in (
            ({**_TORCH, **run}, {**_OPEN_MPI, **_HYDRA, **_SRUN}),
            (_OPEN_MPI, {**_HYDRA, **_SRUN}),
            (_HYDRA, _SRUN),
        ):
            self.assertEqual(_numbers({**outer, **inner}), _numbers(inner))

    def test_a_shell_of_an_allocation_is_no_rank(self) -> None:
        shell = {name: value for name, value in _SRUN.items() if "STEP" not in name}
        for step in ("", "4294967290", "4294967291", "4294967292"):
            self.assertIsNone(launchers.find({**shell, "SLURM_STEP_ID": step}), step)
        self.assertIsNone(launchers.find({"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}))
        self.assertIsNone(launchers.find({"HOME": "/", "RANK": ""}))

    def test_what_is_not_complete_is_named(self) -> None:
        for environment in (_TORCH, _OPEN_MPI, _HYDRA, _SRUN):
            first = next(iter(environment))
            for name in environment:
                if name in (first, "GROUP_RANK", "GROUP_WORLD_SIZE", "MPI_LOCALRANKID"):
                    continue
                if name in ("PMI_SIZE", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NTASKS"):
                    continue
                if name == "SLURM_PROCID":
                    continue
                rest = {key: value for key, value in environment.items() if key != name}
                with self.assertRaisesRegex(errors.InvalidArgument, name):
                    launchers.find(rest)
        with self.assertRaisesRegex(errors.InvalidArgument, "WORLD_SIZE is 'two'.*AGENT_SOCKET"):
            launchers.find({**_TORCH, "WORLD_SIZE": "two"})
        with self.assertRaisesRegex(errors.InvalidArgument, "RANK=3, WORLD_SIZE=2"):
            launchers.find({**_TORCH, "WORLD_SIZE": "2"})

    def test_jobs_and_nodes_are_told_apart(self) -> None:
        def place(**variables: str) -> launchers.Place:
            found = launchers.find({**_TORCH, **variables})
            assert found is not None
            return found

        first = place(TORCHELASTIC_RESTART_COUNT="0")
        self.assertEqual(first.job, place(TORCHELASTIC_RESTART_COUNT="0", GROUP_RANK="0").job)
        # Each node counts lives by itself.
        self.assertEqual(first.job, place(TORCHELASTIC_RESTART_COUNT="1").job)
        alone = {"GROUP_WORLD_SIZE": "1"}
        jobs = {place(TORCHELASTIC_RESTART_COUNT=count, **alone).job for count in "01"}
        self.assertEqual(len(jobs), 2)
        self.assertNotEqual(first.job, place(MASTER_PORT="1").job)
        self.assertNotEqual(first.node, place(GROUP_RANK="0").node)

    def test_torchruns_nodes_meet_in_each_life(self) -> None:
        """Nodes meet in each life, even if a scheduler could use torchrun's numbers."""
        torchrun = {"TORCHELASTIC_RUN_ID": "x"}
        for own, nodes in (({}, 2), (torchrun, None), ({**torchrun, "GROUP_WORLD_SIZE": "1"}, 1)):
            place = launchers.find({**_TORCH, "TALWEG_SCHEDULER": "a:1", **own})
            assert place is not None
            self.assertEqual(place.nodes, nodes, own)

    def test_slurms_lists(self) -> None:
        self.assertEqual(slurm.counts("2(x3),1,4(x2)"), [2, 2, 2, 1, 4, 4])
        self.assertEqual(slurm.counts("x"), [])
        for nodes, first in (
            ("n[1-2]", "n1"),
            ("gpu[003-007,9],login", "gpu003"),
            ("a,b", "a"),
            ("r[1,3]n[07-09]-ib,x", "r1n07-ib"),
        ):
            self.assertEqual(slurm.first_host(nodes), first)


class PrivateDirectoryTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(dir="/tmp")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def test_one_that_others_can_enter_is_refused(self) -> None:
        base = self.directory / "base"
        base.mkdir(mode=0o700)
        places.make_private(base)
        base.chmod(0o750)
        with self.assertRaisesRegex(places.Unsafe, "not a directory of mode 0700"):
            places.make_private(base)
        link = self.directory / "link"
        link.symlink_to(self.directory)
        with self.assertRaises(places.Unsafe):
            places.make_private(link)

    def test_jobs_lie_where_nobody_can_replace_them(self) -> None:
        shared = self.directory / "shared"
        shared.mkdir()
        for mode, is_taken in ((0o700, True), (0o777, False), (0o1777, True)):
            shared.chmod(mode)
            self.assertEqual(places.base({"TMPDIR": str(shared)}).parent == shared, is_taken)
        others = types.SimpleNamespace(st_mode=0o40700, st_uid=os.getuid() + 1)
        shared.chmod(0o700)
        with mock.patch.object(Path, "stat", return_value=others):
            self.assertNotEqual(places.base({"XDG_RUNTIME_DIR": str(shared)}).parent, shared)
            with self.assertRaises(places.Unsafe):
                places.check_own(shared)

    def test_jobs_lie_at_one_place_that_has_room_for_sockets(self) -> None:
        umlauts = self.directory / ("\u00e4" * 30)
        short = self.directory / "short"
        for each in (umlauts, short):
            each.mkdir()
        self.assertLess(len(str(umlauts)), 60)
        self.assertGreater(len(os.fsencode(umlauts)), 60)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.directory)
        for told, is_taken in ((umlauts, False), ("short", False), (".", False), (short, True)):
            found = places.base({"TMPDIR": str(told)}).parent
            self.assertEqual(found, short if is_taken else Path("/tmp"), told)

    def test_what_is_run_lies_where_only_this_user_puts_things(self) -> None:
        cache = self.directory / "parent" / "cache"
        cache.mkdir(parents=True)
        places.check_own(cache)
        for each in (cache, cache.parent):
            each.chmod(0o777)
            with self.assertRaisesRegex(places.Unsafe, f"another user may write to {each}, "):
                places.check_own(cache)
            each.chmod(0o755)

    def test_a_claim_waits_for_the_one_before(self) -> None:
        job = self.directory / "base" / "job"
        first = places.Claim(job, 0)
        (job / "left").touch()
        with self.assertRaises(TimeoutError):
            places.Claim(job, 0)
        os.close(first._lock)  # The same happens when its process dies.
        second = places.Claim(job, 0)
        self.assertEqual(list(job.iterdir()), [])
        second.release()
        self.assertEqual(list(job.parent.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
