# SPDX-License-Identifier: Apache-2.0
"""Finds the launcher that has started this process, and the process's place in the job.

The launcher is the first one in LAUNCHERS that has set its variables. In that list a launcher that
another launcher may start (torchrun under srun) comes before that other one.
"""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from talweg._node import meeting, pmix, slurm
from talweg._node.meeting import Meeting
from talweg.errors import InvalidArgument, TalwegError


@dataclass(frozen=True)
class Place:
    """A process's place in a job, with the launcher's numbers."""

    launcher: str
    job: str  # Tells jobs apart. It is the same at all ranks of a job.
    node: str  # Tells apart the lives of the job on one host, and the job's nodes there.
    rank: int
    size: int
    local_rank: int
    local_size: int
    # None if the launcher does not tell it. Then the nodes are counted when they meet.
    node_rank: int | None = None
    nodes: int | None = None
    # Makes the Meeting of a job with several nodes. Takes a time limit in seconds, and a text that
    # tells lives of the job apart.
    meet: Callable[[float, str], Meeting] | None = field(default=None, compare=False)
    # Whether `job` is random and new whenever ranks join. Otherwise each process counts the jobs of
    # that name.
    is_drawn: bool = False
    # Whether each rank calls `meet`, and not only each node's first. Open MPI ends a job in which
    # some processes have called PMIx and others end without having called it.
    all_meet: bool = False


def _number(environment: Mapping[str, str], name: str, launcher: str, lowest: int) -> int:
    text = environment.get(name, "")
    if not text.isdecimal() or not lowest <= int(text) < 1 << 24:
        said = f"is '{text}'" if text else "is not set"
        raise InvalidArgument(
            f"{launcher} has started this process, and {name} {said}: set it to a number, or set "
            "TALWEG_AGENT_SOCKET to the socket of an agent that is there"
        )
    return int(text)


def _place(
    environment: Mapping[str, str],
    launcher: str,
    names: tuple[str, str, str, str],
    job: str,
    node: str,
    **rest: Any,
) -> Place:
    """Returns the place. `names` are the variables of rank, size, local rank and local size.

    Raises InvalidArgument if a number is missing, or if they do not fit together.
    """
    numbers = [
        _number(environment, name, launcher, lowest) for name, lowest in zip(names, (0, 1, 0, 1))
    ]
    rank, size, local_rank, local_size = numbers
    if rank >= size or local_rank >= local_size or local_size > size or local_rank > rank:
        values = ", ".join(f"{name}={number}" for name, number in zip(names, numbers))
        raise InvalidArgument(
            f"{launcher} has started this process with {values}, which fit no rank: start the "
            "program without variables of another launcher, or set TALWEG_AGENT_SOCKET to the "
            "socket of an agent that is there"
        )
    return Place(launcher, job, node, rank, size, local_rank, local_size, **rest)


# ----- torchrun -----

_TORCH_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def _torchrun(environment: Mapping[str, str]) -> Place | None:
    """Returns the place that torchrun gives, or another launcher that sets torch's variables."""
    if not any(environment.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
        return None
    is_torchrun = bool(environment.get("TORCHELASTIC_RUN_ID"))
    launcher = "torchrun" if is_torchrun else "a launcher that sets RANK"
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environment.get(name):
            raise InvalidArgument(
                f"{launcher} has started this process, and {name} is not set: set it, or set "
                "TALWEG_AGENT_SOCKET to the socket of an agent that is there"
            )
    words: tuple[str, ...] = ("MASTER_ADDR", "MASTER_PORT", "TALWEG_RUN_ID", "TORCHELASTIC_RUN_ID")
    # Each of torchrun's nodes counts only the lives that its own ranks have ended, so counts may
    # differ. Nodes meet in each life, and ask again until they find its first node.
    is_one_node = environment.get("GROUP_WORLD_SIZE") == "1"
    nodes_meet = is_torchrun and not is_one_node
    if is_one_node:
        words += ("TORCHELASTIC_RESTART_COUNT",)
    job = " ".join(["torch", *(environment.get(name, "") for name in words)])
    # torchrun makes a directory for each of its lives: .../attempt_0/1/error.json.
    node = os.path.dirname(os.path.dirname(environment.get("TORCHELASTIC_ERROR_FILE", "")))
    group = environment.get("GROUP_RANK", ""), environment.get("GROUP_WORLD_SIZE", "")
    counted = all(word.isdecimal() for word in group) and not nodes_meet
    place = _place(
        environment,
        launcher,
        _TORCH_NAMES,
        job,
        f"{node} {group[0]}",
        node_rank=int(group[0]) if counted else None,
        nodes=int(group[1]) if counted else None,
    )

    def meet(timeout_s: float, life: str) -> Meeting:
        agreed = meeting.agreed_meeting(environment, job)
        if agreed is not None:
            return agreed
        if not meeting.has_torch():
            secret = meeting.users_secret(environment)
            hosts = [environment["MASTER_ADDR"]]
            return meeting.FixedMeeting(hosts, meeting.ports_of(job), secret)
        store = meeting.torch_store(environment, place.rank, place.size, timeout_s)
        return meeting.StoreMeeting(store, life)

    return _with_meeting(place, meet)


def _with_meeting(
    place: Place, meet: Callable[[float, str], Meeting], all_meet: bool = False
) -> Place:
    return replace(place, meet=meet, all_meet=all_meet)


# ----- mpirun -----


def _speaks_pmix(environment: Mapping[str, str]) -> bool:
    return not environment.get("TALWEG_RENDEZVOUS") and pmix.is_offered(environment)


def _open_mpi(environment: Mapping[str, str]) -> Place | None:
    if not environment.get("OMPI_COMM_WORLD_RANK"):
        return None
    # mpirun makes a random key for each job, and gives it to all ranks.
    key = environment.get("OMPI_MCA_orte_precondition_transports", "")
    namespace = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid", "")
    job = f"Open MPI {namespace} {key}"
    daemon = environment.get("OMPI_MCA_orte_local_daemon_uri") or environment.get(
        "PMIX_HOSTNAME", ""
    )
    names = tuple(
        f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    )
    place = _place(environment, "mpirun", (names[0], names[1], names[2], names[3]), job, daemon)

    def meet(timeout_s: float, life: str) -> Meeting:
        agreed = meeting.agreed_meeting(environment, job)
        if agreed is not None:
            return agreed
        if _speaks_pmix(environment):
            return meeting.PmixMeeting(life)
        # mpirun's own host counts as the first node's then.
        uri = environment.get("OMPI_MCA_orte_hnp_uri", "")
        hosts = uri.partition("tcp://")[2].partition(":")[0].split(",")
        if not key or not hosts[0]:
            raise TalwegError(
                "this mpirun does not say how its nodes can meet: install libpmix (Debian: libpmix2), "
                "or set TALWEG_RENDEZVOUS=HOST:PORT for all ranks (mpirun -x)"
            )
        return meeting.FixedMeeting(hosts, meeting.ports_of(job), key)

    return _with_meeting(place, meet, _speaks_pmix(environment))


def _ancestor(name: str) -> tuple[str, str]:
    """Returns the identity and the command line of the nearest ancestor whose program's name begins
    with `name`. If there is none, returns the parent's PID, and an empty command line.
    """
    pid = parent = os.getppid()
    while pid > 1:
        with open(f"/proc/{pid}/stat") as file:
            words, _, rest = file.read().rpartition(")")
        fields = rest.split()
        if words.partition("(")[2].startswith(name):
            with open(f"/proc/{pid}/cmdline") as file:
                return f"{pid} {fields[19]}", file.read().replace("\0", " ")
        pid = int(fields[1])
    return str(parent), ""


def _hydra(environment: Mapping[str, str]) -> Place | None:
    """Returns the place that mpirun of MPICH or of Intel MPI gives."""
    if not environment.get("PMI_RANK") or not environment.get("PMI_SIZE"):
        return None
    if not environment.get("MPI_LOCALRANKID"):
        return None
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    # The variables name no job. But each node has a proxy, whose command line has mpirun's port.
    proxy, line = _ancestor("hydra_")
    control = re.search(r"--control-port[ =](\S+)", line)
    job = f"Hydra {environment.get('PMI_JOBID', '')} {control[1] if control else ''}"
    place = _place(environment, "mpirun (Hydra)", names, job, proxy)

    def meet(timeout_s: float, life: str) -> Meeting:
        agreed = meeting.agreed_meeting(environment, job)
        if agreed is not None:
            return agreed
        raise TalwegError(
            "this mpirun (Hydra) does not say how its nodes can meet: set "
            "TALWEG_RENDEZVOUS=HOST:PORT, the first node's host and a free port there, for all ranks "
            "(mpirun -genv), or start the nodes with `talweg run`"
        )

    return _with_meeting(place, meet)


# ----- srun -----


def _srun(environment: Mapping[str, str]) -> Place | None:
    if not slurm.is_step(environment):
        return None
    names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")
    words = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    job = " ".join(["Slurm", *(environment.get(name, "") for name in words)])
    node_rank = _number(environment, "SLURM_NODEID", "srun", 0)
    counts = slurm.counts(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if node_rank >= len(counts):
        raise InvalidArgument(
            f"srun has started this process, and SLURM_STEP_TASKS_PER_NODE is "
            f"'{environment.get('SLURM_STEP_TASKS_PER_NODE', '')}', which has no node {node_rank}"
        )
    told = {
        **environment,
        "SLURM_NTASKS": str(sum(counts)),
        "SLURM_STEP_TASKS_PER_NODE": str(counts[node_rank]),
    }
    place = _place(
        told, "srun", names, job, f"node {node_rank}", node_rank=node_rank, nodes=len(counts)
    )

    def meet(timeout_s: float, life: str) -> Meeting:
        agreed = meeting.agreed_meeting(environment, job)
        if agreed is not None:
            return agreed
        if _speaks_pmix(environment):
            return meeting.PmixMeeting(life)
        return meeting.slurm_meeting(environment, job)

    return _with_meeting(place, meet, _speaks_pmix(environment))


LAUNCHERS = (_torchrun, _open_mpi, _hydra, _srun)


def find(environment: Mapping[str, str]) -> Place | None:
    """Returns this process's place; None if no known launcher has started it.

    Raises InvalidArgument if a launcher's variables are not complete, or do not fit together.
    """
    for launcher in LAUNCHERS:
        place = launcher(environment)
        if place is not None:
            return place
    return None


def _host_identity() -> str:
    """Returns a text that is most likely the same for processes that share /tmp and a network
    namespace.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "mnt", "uts")]
    return " ".join([socket.gethostname(), boot, *spaces])


@dataclass(frozen=True)
class World:
    """The facts that torch.distributed tells a backend: a store of all ranks, and this rank."""

    store: Any
    rank: int
    size: int


def find_in(environment: Mapping[str, str], world: World, timeout_s: float) -> Place:
    """Returns the place of a rank of torch.distributed. The nodes meet through torch's store.

    Every rank calls it. If the launcher has told every rank its number in this world, its places
    count. Otherwise the ranks of one host are a node. A launcher whose variables are not complete
    does not count, because programs set WORLD_SIZE for reasons of their own. Ranks compare, because
    only some of them may have other numbers in a new world.
    """
    try:
        place = find(environment)
    except InvalidArgument:
        place = None
    fits = place is not None and (place.rank, place.size) == (world.rank, world.size)
    is_launchers = meeting.all_say(fits, world.store, "talweg/fits", world.size, timeout_s)
    if place is None or not is_launchers:
        place = _of_store(world.store, world.rank, world.size)
    return _with_meeting(place, lambda _, life: meeting.StoreMeeting(world.store, life))


def _of_store(store: Any, rank: int, size: int) -> Place:
    store.set(f"talweg/host/{rank}", _host_identity())
    if rank == 0:
        store.set("talweg/job", os.urandom(16).hex())
    job = f"store {store.get('talweg/job').decode()}"
    hosts = [store.get(f"talweg/host/{each}").decode() for each in range(size)]
    own = hosts[rank]
    return Place(
        "torch.distributed",
        job,
        own,
        rank,
        size,
        hosts[:rank].count(own),
        Counter(hosts)[own],
        list(dict.fromkeys(hosts)).index(own),
        len(set(hosts)),
        is_drawn=True,
    )
