# SPDX-License-Identifier: Apache-2.0
"""Contenders that run on several hosts of a netns.Network."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from netns import INTERFACE, Network

from harness.contender import Command, Contender
from harness.contenders import (
    GLOO,
    TALWEG,
    TALWEG_IN_PLACE,
    TALWEG_INT8,
    TALWEG_OTHER,
    TALWEG_TCP,
    Programs,
    talweg_rank,
)

SOCKET_PS, TCP_LIMIT = "socket server", "TCP limit"
# Every case has a network of its own, so only another contender can have a port.
_SOCKET_PS_PORT, _TCP_LIMIT_PORT, _SCHEDULER_PORT = 7001, 7002, 7447
_SOCKET_PS_JOBS_PORT, _SOCKET_PS_JOBS_MAX = 8000, 200  # Each contender has so many ports.

# What a variant of Talweg's job is told.
_VARIABLES = {
    TALWEG_TCP: {"TALWEG_DATA_TRANSPORT": "tcp"},
    TALWEG_INT8: {"TALWEG_ENCODING": "int8"},
}


@dataclass(frozen=True)
class Cluster:
    """The hosts of ranks and of aggregators. A host may have both."""

    network: Network
    rank_hosts: tuple[str, ...]
    aggregator_hosts: tuple[str, ...]

    @property
    def all_hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.rank_hosts, *self.aggregator_hosts]))

    @property
    def pids(self) -> list[int]:
        return [self.network.pid(host) for host in self.all_hosts]


def talweg(
    programs: Programs,
    cluster: Cluster,
    name: str = TALWEG,
    index: int = 0,
    rank: Command | None = None,
) -> Contender:
    """Returns a job of Talweg with one rank on each host, and with default options.

    `index` tells several such jobs in one network apart. `rank` replaces the program that
    push_pulls.
    """
    tool = str(programs.tool)
    network, count = cluster.network, len(cluster.rank_hosts)
    # The scheduler takes no part in rounds, so it runs where nothing is measured.
    scheduler_host = cluster.all_hosts[-1]
    scheduler = f"{network.address(scheduler_host)}:{_SCHEDULER_PORT + index}"
    quiet = "--log_level=error"
    line = (
        *network.enter(scheduler_host),
        tool,
        "scheduler",
        f"--listen={scheduler}",
        "--in_memory",
        "--insecure",
    )
    variables = _VARIABLES.get(name, {})
    commands = [Command((*line, quiet), is_daemon=True)]
    directory = tempfile.TemporaryDirectory(prefix="ready-")
    ready = [str(Path(directory.name) / str(n)) for n in range(len(cluster.aggregator_hosts))]
    for number, host in enumerate(cluster.aggregator_hosts):
        line = (*network.enter(host), tool, "aggregator", f"--scheduler={scheduler}", quiet)
        address = f"--listen={network.address(host)}:0"
        options = (address, f"--name={number}", f"--ready_file={ready[number]}")
        commands.append(Command((*line, *options), variables, is_daemon=True))
    own_buffers = (TALWEG_IN_PLACE, TALWEG_OTHER, *_VARIABLES)
    in_place = ["--in-place"] if name in own_buffers else []
    rank = rank or Command(tuple(talweg_rank(tool, *in_place)))
    # The address at which the ranks of programs with torch.distributed meet.
    first = f"--master-addr={network.address(cluster.rank_hosts[0])}"
    for node_rank, host in enumerate(cluster.rank_hosts):
        shell = (*network.enter(host), *when_ready(directory.name, len(ready)))
        run = (*shell, tool, "run", f"--scheduler={scheduler}", f"--nodes={count}", first)
        node = (f"--node-rank={node_rank}", "--ranks-per-node=1", "--", *rank.line)
        commands.append(Command((*run, *node), {**rank.environment, **variables}))
    contender = Contender(name, count, commands, wire_pids=cluster.pids)
    contender.on_close(directory.cleanup)
    return contender


def when_ready(directory: str, count: int) -> tuple[str, ...]:
    """Returns words to put before a command. They wait until `count` daemons are ready.

    A daemon that is ready writes a file to the directory. The wait is needed because a job's view
    has the aggregators that serve when it begins, and a job of one node begins without any.
    """
    wait = 'n=$1; shift; while [ $(ls "$0" | wc -l) -lt "$n" ]; do sleep 0.02; done; exec "$@"'
    return ("sh", "-c", wait, directory, str(count))


def talweg_jobs(
    programs: Programs, cluster: Cluster, job_count: int, name: str, index: int
) -> Contender:
    """Returns many jobs of one rank each on the first host, and one aggregator for all of them."""
    tool = str(programs.tool)
    network = cluster.network
    host, aggregator = cluster.rank_hosts[0], cluster.aggregator_hosts[0]
    address = network.address(aggregator)
    scheduler = f"{address}:{_SCHEDULER_PORT + index}"
    quiet = "--log_level=error"
    served = (*network.enter(aggregator), tool)
    line = (*served, "scheduler", f"--listen={scheduler}", "--in_memory", "--insecure", quiet)
    commands = [Command(line, is_daemon=True)]
    directory = tempfile.TemporaryDirectory(prefix="ready-")
    line = (*served, "aggregator", f"--scheduler={scheduler}", f"--listen={address}:0", quiet)
    commands.append(Command((*line, f"--ready_file={directory.name}/0"), is_daemon=True))
    for job in range(job_count):
        shell = (*network.enter(host), *when_ready(directory.name, 1))
        run = (*shell, tool, "run", f"--scheduler={scheduler}", "--nodes=1")
        node = ("--node-rank=0", f"--job=job{job}", "--", *talweg_rank(tool))
        commands.append(Command((*run, *node)))
    contender = Contender(name, job_count, commands, wire_pids=cluster.pids)
    contender.on_close(directory.cleanup)
    return contender


def socket_ps_jobs(
    programs: Programs, cluster: Cluster, job_count: int, name: str, index: int
) -> Contender:
    """Returns `job_count` socket servers, each with one worker on the first host."""
    network, binary = cluster.network, str(programs.baselines / "socket_ps")
    host, server = cluster.rank_hosts[0], cluster.aggregator_hosts[0]
    first = _SOCKET_PS_JOBS_PORT + index * _SOCKET_PS_JOBS_MAX
    commands = []
    for port in range(first, first + job_count):
        serve = (*network.enter(server), binary, "server", str(port), "1")
        commands.append(Command(serve, is_daemon=True))
        work = (*network.enter(host), binary, "worker", "0", "1")
        commands.append(Command((*work, f"{network.address(server)}:{port}")))
    return Contender(name, job_count, commands, wire_pids=cluster.pids)


def _served(
    programs: Programs,
    cluster: Cluster,
    name: str,
    server: Sequence[str],
    port: int,
    checked: bool,
) -> Contender:
    """Returns workers of socket_ps, with a server on each aggregator host."""
    network, count = cluster.network, len(cluster.rank_hosts)
    binary = str(programs.baselines / "socket_ps")
    commands = [
        Command((*network.enter(host), *server, str(port), str(count)), is_daemon=True)
        for host in cluster.aggregator_hosts
    ]
    servers = [f"{network.address(host)}:{port}" for host in cluster.aggregator_hosts]
    known_count = str(count if checked else 0)
    for rank, host in enumerate(cluster.rank_hosts):
        line = (*network.enter(host), binary, "worker", str(rank), known_count, *servers)
        commands.append(Command(line))
    return Contender(name, count, commands, wire_pids=cluster.pids)


def socket_ps(programs: Programs, cluster: Cluster) -> Contender:
    server = [str(programs.baselines / "socket_ps"), "server"]
    return _served(programs, cluster, SOCKET_PS, server, _SOCKET_PS_PORT, checked=True)


def tcp_limit(programs: Programs, cluster: Cluster) -> Contender:
    server = [str(programs.baselines / "tcp_echo")]
    return _served(programs, cluster, TCP_LIMIT, server, _TCP_LIMIT_PORT, checked=False)


def gloo(programs: Programs, cluster: Cluster) -> Contender:
    """Returns an all-reduce with Gloo among the hosts with ranks. It uses no aggregator hosts."""
    return python_ranks(cluster, GLOO, [str(programs.peers / "gloo_allreduce.py")])


def python_ranks(
    cluster: Cluster,
    name: str,
    line: Sequence[str],
    variables: Mapping[str, str] = MappingProxyType({}),
    python: str = sys.executable,
) -> Contender:
    """Runs `line RANK SIZE STORE` on each host, whose address is TALWEG_BENCH_ADDRESS."""
    count = len(cluster.rank_hosts)
    directory = tempfile.TemporaryDirectory(prefix="gloo-")
    store = str(Path(directory.name) / "store")
    environment = {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", **variables}
    commands = [
        Command(
            (*cluster.network.enter(host), python, *line, str(rank), str(count), store),
            {**environment, "TALWEG_BENCH_ADDRESS": cluster.network.address(host)},
        )
        for rank, host in enumerate(cluster.rank_hosts)
    ]
    contender = Contender(name, count, commands, wire_pids=cluster.pids)
    contender.on_close(directory.cleanup)
    return contender


def horovod(
    cluster: Cluster,
    name: str,
    python: str,
    peers: Path,
    line: Sequence[str],
    variables: Mapping[str, str],
) -> Contender:
    """Runs `line` as a rank of Horovod on each host, over Gloo."""
    network, count = cluster.network, len(cluster.rank_hosts)
    addresses = [network.address(host) for host in cluster.rank_hosts]
    directory = tempfile.TemporaryDirectory(prefix="horovod-")
    ready = str(Path(directory.name) / "port")
    serve = (python, str(peers / "horovod_rendezvous.py"), ready, *addresses)
    commands = [Command((*network.enter(cluster.rank_hosts[0]), *serve), is_daemon=True)]
    wait = 'while [ ! -e "$0" ]; do sleep 0.02; done; '
    wait += (
        'hostname "$HOROVOD_HOSTNAME"; export HOROVOD_GLOO_RENDEZVOUS_PORT=$(cat "$0"); exec "$@"'
    )
    for rank, host in enumerate(cluster.rank_hosts):
        environment = {
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(count),
            "HOROVOD_LOCAL_RANK": "0",
            "HOROVOD_LOCAL_SIZE": "1",
            "HOROVOD_CROSS_RANK": str(rank),
            "HOROVOD_CROSS_SIZE": str(count),
            "HOROVOD_HOSTNAME": addresses[rank],
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": addresses[0],
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": INTERFACE,
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        # Horovod's process sets listen at the address of the host's name, and ignore
        # HOROVOD_GLOO_IFACE.
        own_name = ("unshare", "--uts", "--")
        shell = (*network.enter(host), *own_name, "bash", "-c", wait, ready, python, *line)
        commands.append(Command(shell, environment))
    contender = Contender(name, count, commands, wire_pids=cluster.pids)
    contender.on_close(directory.cleanup)
    return contender
