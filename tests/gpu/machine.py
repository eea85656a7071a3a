# SPDX-License-Identifier: Apache-2.0
"""One host of a job for tests: an agent, its GPUs, and ranks on them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster import DEADLINE_S, RUNFILES, Cluster, Daemon, Rank
from torch_forks import TorchForks

_GPU_RANK = RUNFILES / "tests" / "gpu" / "gpu_rank"
_PROGRAMS = RUNFILES / "tests" / "gpu" / "programs"
# Where the loader finds the stub of the driver.
DRIVER_DIRECTORY = RUNFILES / "libs" / "gpu" / "cuda" / "stub"


class Machine:
    """A host whose GPUs are files that agent and ranks map. With `fakes` False they are the real ones."""

    def __init__(
        self,
        cluster: Cluster,
        node: int,
        ranks: int,
        options: Sequence[str],
        fakes: bool = True,
        visible: str = "",
    ) -> None:
        self.cluster = cluster
        self.directory = cluster.directory / f"gpus{node}"
        self.directory.mkdir()
        self.gpus = f"{self.directory}:4" if fakes else ""
        seen = self.gpus + (f"/{visible}" if visible else "")
        fake = [f"--test_fake_gpus={seen}"] if fakes else []
        self.agent: Daemon = cluster.agent(node, [*fake, f"--rank_count={ranks}", *options])

    def rank(self, local_rank: int, gpu: int, what: str) -> Rank:
        """Starts gpu_rank, which calls the C ABI."""
        socket = self.agent.addresses["socket"]
        return self._start([str(_GPU_RANK), socket, str(local_rank), self.gpus, str(gpu), what], {})

    def torch_rank(
        self,
        local_rank: int,
        gpu: int,
        what: str,
        forks: TorchForks | None = None,
        variables: Mapping[str, str] | None = None,
        visible: str = "",
    ) -> Rank:
        """Starts torch_rank.py, which uses the Python package. `forks` spares it the import of torch.

        `gpu` is the rank's own number for its GPU: it sees only the fakes in `visible`, in that order.
        """
        environment = {
            **(variables or {}),
            "TALWEG_AGENT_SOCKET": self.agent.addresses["socket"],
            "TALWEG_LOCAL_RANK": str(local_rank),
            "TALWEG_TEST_AGENT_PID": str(self.agent.process.pid),
            "TALWEG_TEST_STORE": str(self.cluster.directory / "store"),
        }
        if self.gpus:
            environment["TALWEG_FAKE_GPUS"] = self.gpus + (f"/{visible}" if visible else "")
        prefix = forks.prefix if forks else []
        program = str(_PROGRAMS / "torch_rank.py")
        return self._start([sys.executable, "-P", *prefix, program, str(gpu), what], environment)

    def _start(self, command: Sequence[str], environment: dict[str, str]) -> Rank:
        process = subprocess.Popen(
            command,
            env=dict(os.environ, **environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.cluster._processes.append(process)
        return Rank(process)

    def lose(self, gpu: int) -> None:
        """Takes the agent's context on the GPU from it."""
        (self.directory / f"lost{gpu}.{self.agent.process.pid}").touch()

    def mapped(self) -> int:
        """How many mappings of its GPUs' memory the agent has."""
        maps = Path(f"/proc/{self.agent.process.pid}/maps").read_text()
        return sum(f"{self.directory}/" in line for line in maps.splitlines())

    def descriptors(self) -> int:
        """How many of the agent's descriptors may come with GPUs: their files, eventfds, epolls."""
        found = 0
        for entry in Path(f"/proc/{self.agent.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # Something else closed it meanwhile.
                found += os.readlink(entry).startswith(("anon_inode:", f"{self.directory}/"))
        return found


def two_nodes(
    cluster: Cluster,
    ranks: int,
    fakes: bool = True,
    options: Sequence[Sequence[str]] = ((), ()),
) -> list[Machine]:
    """The machines of a job with an aggregator between them. `options` are each agent's."""
    scheduler = cluster.scheduler(["--in_memory"]).addresses["listen"]
    cluster.aggregator(scheduler, "a0")
    return nodes_of(cluster, scheduler, ranks, fakes, options)


def nodes_of(
    cluster: Cluster,
    scheduler: str,
    ranks: int,
    fakes: bool,
    options: Sequence[Sequence[str]],
) -> list[Machine]:
    """The machines of a job, one for each element of `options`."""
    return [
        Machine(
            cluster,
            node,
            ranks,
            [
                f"--scheduler={scheduler}",
                f"--node_rank={node}",
                f"--min_members={len(options)}",
                f"--max_members={len(options)}",
                *its,
            ],
            fakes,
        )
        for node, its in enumerate(options)
    ]


def kill_in_a_step(machine: Machine, ranks: Sequence[Rank], killed: str) -> None:
    """Kills the last "steady" rank of torch, or the agent. The others have to hear of it, and end."""
    for rank in ranks:
        rank.wait_for("step 2")
    if killed == "agent":
        machine.agent.kill()
        survivors, error = ranks, "AgentLost:"
    else:
        ranks[-1].process.kill()
        survivors, error = ranks[:-1], r"JobFailed: .*pid \d+"
    for rank in survivors:
        assert re.search(error, rank.wait_for("talweg.errors.")), rank.seen
        assert rank.process.wait(DEADLINE_S) == 1
