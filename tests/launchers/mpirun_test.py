# SPDX-License-Identifier: Apache-2.0
"""Tests ranks of the real mpirun, Open MPI's and MPICH's, on one host and on several."""

from __future__ import annotations

import sys
import unittest

from launcher_hosts import HostsTest
from launcher_site import BACKEND, RANK, SiteTest, backend
from permitted import needs


class MpirunTest(SiteTest):
    def setUp(self) -> None:
        super().setUp()
        needs("mpirun.openmpi")
        self.mpirun = ["mpirun.openmpi", "--oversubscribe"]

    def test_one_node(self) -> None:
        self.require_ranks(self.run_line([*self.mpirun, "-np", "3", *RANK, "sum"]), [3])
        self.require_nothing_left()

    def test_the_backend_of_torch(self) -> None:
        output = self.run_line([*self.mpirun, "-np", "2", *backend()])
        self.require_ranks_of_torch(output, 2)
        self.require_nothing_left()

    def test_other_backends_of_torch(self) -> None:
        """Talweg leaves their groups to torch, which wants its own variables."""
        program = "import talweg.torch, torch; torch.distributed.init_process_group('gloo')"
        rank = [sys.executable, "-P", "-c", program]
        output = self.run_line([*self.mpirun, "-np", "1", *rank], status=None)
        self.assertIn("environment variable RANK expected", output)
        self.require_nothing_left()

    def test_several_lives_and_two_jobs_at_once(self) -> None:
        line = [*self.mpirun, "-np", "2", *RANK, "again"]
        output = self.finish(self.start(line), self.start(line))
        self.require_ranks(output, [2], times=2)
        self.require_nothing_left()

    def test_the_first_rank_dies(self) -> None:
        self.run_line([*self.mpirun, "-np", "2", *RANK, "die", "0"], status=None)
        self.require_nothing_left()


class HydraTest(SiteTest):
    """Tests mpirun of MPICH, whose variables name no job."""

    def setUp(self) -> None:
        super().setUp()
        needs("mpiexec.hydra")

    def test_one_node_and_two_jobs_at_once(self) -> None:
        # The shell makes each rank's parent a process of its own.
        line = ["mpiexec.hydra", "-n", "2", "sh", "-c", '"$@"; exit $?', "sh", *RANK, "again"]
        output = self.finish(self.start(line), self.start(line))
        self.require_ranks(output, [2], times=2)
        self.require_nothing_left()

    def test_the_backend_of_torch(self) -> None:
        # A fork would not have Hydra's proxy as an ancestor.
        self.require_ranks_of_torch(self.run_line(["mpiexec.hydra", "-n", "2", *BACKEND]), 2)
        self.require_nothing_left()


class HydraOnHostsTest(HostsTest):
    def mpiexec(self, status: int | None, **variables: str) -> str:
        needs("mpiexec.hydra")
        options = ["-launcher", "rsh", "-launcher-exec", str(self.remote_shell()), "-n", "2"]
        hosts = ",".join(f"{self.network.address(host)}:1" for host in self.hosts)
        line = [*self.on("a"), "mpiexec.hydra", *options, "-hosts", hosts, *RANK, "sum"]
        return self.run_line(line, status=status, **variables)

    def test_it_needs_a_place_to_meet(self) -> None:
        output = self.mpiexec(None)
        self.assertIn("set TALWEG_RENDEZVOUS=HOST:PORT", output)
        self.require_nothing_left()

    def test_at_an_agreed_place(self) -> None:
        place = f"{self.network.address('a')}:7450"
        output = self.mpiexec(None, TALWEG_RENDEZVOUS=place)
        self.assertIn("make one with `talweg secret`", output)
        secret = self.directory / "secret"
        secret.write_text("0123456789abcdef" * 4 + "\n")
        secret.chmod(0o600)
        output = self.mpiexec(0, TALWEG_RENDEZVOUS=place, TALWEG_SECRET_FILE=str(secret))
        self.require_ranks(output, [1, 1])
        self.require_nothing_left()


class MpirunOnHostsTest(HostsTest):
    """Tests ranks with mpirun on a host without ranks."""

    hosts = ["login", "a", "b"]

    def mpirun(self, slots: dict[str, int], *program: str, status: int | None = 0) -> str:
        agent = self.remote_shell()
        hosts = ",".join(f"{self.network.address(host)}:{n}" for host, n in slots.items())
        options = ["--mca", "plm_rsh_agent", str(agent), "--host", hosts]
        options += ["-x", "PYTHONPATH", "-x", "TMPDIR", "-x", "TALWEG_TEST_SITE", "-x", "PATH"]
        needs("mpirun.openmpi")
        # A path before the name would mean an installation prefix.
        line = ["mpirun.openmpi", "-np", str(sum(slots.values())), *options]
        return self.run_line([*self.on("login"), *line, *program], status=status)

    def test_two_hosts(self) -> None:
        self.require_ranks(self.mpirun({"a": 2, "b": 1}, *RANK, "sum"), [2, 1])
        self.require_nothing_left()

    def test_several_lives(self) -> None:
        self.require_ranks(self.mpirun({"a": 1, "b": 1}, *RANK, "again"), [1, 1])
        self.require_nothing_left()

    def test_a_rank_dies(self) -> None:
        output = self.mpirun({"a": 1, "b": 2}, *RANK, "die", "1", status=None)
        self.assertIn("signal 9", output)
        self.require_nothing_left()

    def test_the_backend_of_torch(self) -> None:
        """Rank 0 tells the other host's ranks where its store is."""
        output = self.mpirun({"a": 1, "b": 1}, *backend())
        self.require_ranks_of_torch(output, 2)
        self.require_nothing_left()

    def test_the_backend_of_torch_with_ranks_dealt_out_by_turns(self) -> None:
        output = self.mpirun({"a": 2, "b": 2}, "--map-by", "node", *backend())
        self.require_ranks_of_torch(output, 4)

    def test_ranks_dealt_out_by_turns(self) -> None:
        """mpirun deals ranks to nodes in turn. Talweg counts them node by node."""
        output = self.mpirun({"a": 2, "b": 2}, "--map-by", "node", *RANK, "sum")
        self.require_ranks(output, [2, 2])

    def test_without_pmix(self) -> None:
        """Without PMIx mpirun's own host counts as the first node."""
        without = ["env", "-u", "PMIX_NAMESPACE"]
        self.require_ranks(self.mpirun({"login": 1, "b": 1}, *without, *RANK, "sum"), [1, 1])
        self.require_nothing_left()


if __name__ == "__main__":
    unittest.main()
