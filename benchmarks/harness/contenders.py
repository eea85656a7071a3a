# SPDX-License-Identifier: Apache-2.0
"""Starts each contender in its fastest documented mode."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.contender import Command, Contender
from harness.scratch import shared_memory

TALWEG, GLOO, OPENMPI, LIMIT = "Talweg", "Gloo", "OpenMPI", "memory limit"
# The program writes gradients to the client's own memory for contributions (talweg_contribution).
TALWEG_IN_PLACE = "Talweg, own buffers"
# The same with NumPy arrays (talweg.declare_in_place).
TALWEG_NUMPY = "Talweg, NumPy in place"
# The same with gradients of torch that a DistributedOptimizer averages.
TALWEG_TORCH = "Talweg, torch's gradients"
TALWEG_HOOK = "Talweg, DDP's buckets"
# Processes that only make the copies and sums of TALWEG, and wait for each other.
COPIES = "the same copies"
# The same as TALWEG_IN_PLACE, over Talweg's own TCP (--data_transport=tcp) instead of libfabric.
TALWEG_TCP = "Talweg, own TCP"
# The same as TALWEG_IN_PLACE, with sums that travel as 8 bits an element (--encoding=int8).
TALWEG_INT8 = "Talweg, as int8"
# The same as TALWEG_IN_PLACE, with the programs of --beside.
TALWEG_OTHER = "Talweg, other build"


class Missing(Exception):
    """A contender cannot run on this machine. The text says what to install."""


@dataclass(frozen=True)
class Programs:
    """The paths of this tree's programs."""

    tool: Path
    baselines: Path
    reduce_benchmark: Path
    device_benchmark: Path
    library: Path  # libtalweg.so
    python: Path  # The directory of the package talweg.
    peers: Path  # The directory of the peers' sources.
    build: Path  # The directory for programs that the harness compiles.
    congestion_control: str = "reno"
    other_tool: Path | None = None  # The tool of another build.
    rude_member: Path = Path()  # tests/attackers
    transport_benchmark: Path = Path()  # libs/transport/testing

    def other(self) -> Programs:
        """Returns these programs, with the other build's daemons and ranks."""
        return replace(self, tool=self.other_tool or self.tool)

    def compiled_mpi(self, name: str) -> Path:
        """Returns an MPI peer. Compiles it if it is missing, or older than its source."""
        if not shutil.which("mpicc") or not shutil.which("mpirun"):
            raise Missing("OpenMPI is not installed; bazel/prepare --for=bench installs it")
        source, binary = self.peers / f"{name}.c", self.build / name
        inputs = [source, self.peers / "control.h"]
        if binary.exists() and binary.stat().st_mtime > max(
            path.stat().st_mtime for path in inputs
        ):
            return binary
        self.build.mkdir(parents=True, exist_ok=True)
        line = ["mpicc", "-O3", "-march=native", "-std=gnu11", "-o", str(binary), str(source)]
        result = subprocess.run(line, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise Missing(f"mpicc does not compile {source}:\n{result.stderr}")
        return binary

    def in_own_network(self) -> tuple[str, ...]:
        """Returns words to put before a command. They give it a loopback of its own with the wanted
        congestion control.

        They are empty if this machine does not allow that. Then the command uses the host's
        loopback, with the host's congestion control.
        """
        script = str(Path(__file__).with_name("own_network.py"))
        line = ("unshare", "--net", "--", sys.executable, script, self.congestion_control)
        try:
            allowed = subprocess.run([*line, "true"], capture_output=True, check=False)
        except OSError:
            return ()
        return line if allowed.returncode == 0 else ()


def talweg_python(programs: Programs, *line: str, python: str = sys.executable) -> Command:
    """Returns the command of a rank in Python that imports talweg from this tree."""
    environment = {"PYTHONPATH": str(programs.python), "TALWEG_LIBRARY": str(programs.library)}
    return Command((python, *line), environment)


def talweg_rank(tool: str, *options: str) -> list[str]:
    # The shell passes on the variables that the harness has set for this contender.
    script = (
        'exec "$0" bench-rank --control="$TALWEG_BENCH_CONTROL"'
        ' --contender="$TALWEG_BENCH_CONTENDER" "$@"'
    )
    return ["sh", "-c", script, tool, *options]


def talweg_on_one_node(
    programs: Programs, ranks: int, network: Sequence[str], name: str = TALWEG
) -> Contender:
    tool = str(programs.tool)
    options = ["--in-place"] if name in (TALWEG_IN_PLACE, TALWEG_OTHER) else []
    run = [
        tool,
        "run",
        "--nodes=1",
        f"--ranks-per-node={ranks}",
        "--",
        *talweg_rank(tool, *options),
    ]
    return Contender(name, ranks, [Command((*network, *run))], counts_loopback=bool(network))


def torch_gradients(programs: Programs, way: str = "optimizer") -> Command:
    return talweg_python(programs, str(programs.peers / "torch_gradients.py"), way)


def talweg_with_torch(programs: Programs, ranks: int, network: Sequence[str]) -> Contender:
    return _ranks_of_python(TALWEG_TORCH, torch_gradients(programs), programs, ranks, network)


def talweg_with_hook(programs: Programs, ranks: int, network: Sequence[str]) -> Contender:
    rank = torch_gradients(programs, "hook")
    return _ranks_of_python(TALWEG_HOOK, rank, programs, ranks, network)


def talweg_with_numpy(programs: Programs, ranks: int, network: Sequence[str]) -> Contender:
    rank = talweg_python(programs, str(programs.peers / "numpy_allreduce.py"))
    return _ranks_of_python(TALWEG_NUMPY, rank, programs, ranks, network)


def _ranks_of_python(
    name: str, rank: Command, programs: Programs, ranks: int, network: Sequence[str]
) -> Contender:
    run = [str(programs.tool), "run", "--nodes=1", f"--ranks-per-node={ranks}", "--", *rank.line]
    command = Command((*network, *run), rank.environment)
    return Contender(name, ranks, [command], counts_loopback=bool(network))


def openmpi(
    programs: Programs, ranks: int, network: Sequence[str], peer: str = "mpi_allreduce"
) -> Contender:
    binary = programs.compiled_mpi(peer)
    line = ["mpirun", "-np", str(ranks), "--mca", "btl", "self,vader"]
    line += ["--mca", "btl_vader_backing_directory", str(shared_memory())]
    if os.geteuid() == 0:
        line.append("--allow-run-as-root")
    if ranks > len(os.sched_getaffinity(0)):
        # Without this, ranks that wait take CPUs from those that work.
        line += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    return Contender(
        OPENMPI, ranks, [Command((*network, *line, str(binary)))], counts_loopback=bool(network)
    )


def python_ranks(
    name: str,
    ranks: int,
    network: Sequence[str],
    line: Sequence[str],
    environment: dict[str, str],
    python: str = sys.executable,
) -> Contender:
    """Returns a contender that is one shell in one network.

    The shell starts `line RANK SIZE STORE` for all ranks, and ends with the last of them. STORE is
    a path in shared memory.
    """
    script = (
        f"directory=$(mktemp -d -p '{shared_memory()}') || exit 1; "
        "trap 'rm -rf \"$directory\"' EXIT; count=$1; shift; "
        'for rank in $(seq 0 $((count - 1))); do "$@" "$rank" "$count" "$directory/store" & done; wait'
    )
    shell = (*network, "bash", "-c", script, "bash", str(ranks), python, *line)
    variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **environment}
    return Contender(name, ranks, [Command(shell, variables)], counts_loopback=bool(network))


def gloo(programs: Programs, ranks: int, network: Sequence[str]) -> Contender:
    return python_ranks(GLOO, ranks, network, [str(programs.peers / "gloo_allreduce.py")], {})


def copying_ranks(programs: Programs, ranks: int) -> Contender:
    return python_ranks(COPIES, ranks, (), [], {}, str(programs.baselines / "copying_ranks"))


def memory_limit(programs: Programs, ranks: int) -> Contender:
    binary = str(programs.baselines / "memory_touch")
    return Contender(LIMIT, ranks, [Command((binary, str(rank))) for rank in range(ranks)])
