# SPDX-License-Identifier: Apache-2.0
"""Which launcher has started this process, and what it says of the job.

It is the first one in LAUNCHERS that has set its variables. In that list a launcher that another
launcher may start (torchrun under srun) comes before that other one.
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
    """A process's place in a job. Ranks are the launcher's."""

    launcher: str
    job: str  # What tells jobs apart: the same at all ranks of one.
    node: str  # What tells lives of the job on one host, and its nodes there, apart.
    rank: int
    size: int
    local_rank: int
    local_size: int
    # Where the launcher says it; else the nodes are counted when they meet.
    node_rank: int | None = None
    nodes: int | None = None
    # Makes the nodes' way to each other, of a job of several. Takes a time limit in seconds, and what
    # tells lives of the job apart.
    meet: Callable[[float, str], Meeting] | None = field(default=None, compare=False)
    # Whether `job` is drawn anew whenever ranks join. Else jobs of one name are counted by process.
    is_drawn: bool = False
    # Whether each rank takes part in that, not only each node's first: Open MPI ends a job of which
    # some processes have called PMIx, when others end without it.
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
    """`names`: the variables of rank, size, local rank and local size."""
    numbers = [
        _number(environment, name, launcher, lowest) for name, lowest in zip(names, (0, 1, 0, 1))
    ]
    rank, size, local_rank, local_size = numbers
    if rank >= size or local_rank >= local_size or local_size > size or local_rank > rank:
        values = ", ".join(f"{name}={number}" for name, number in zip(names, numbers))
        raise InvalidArgument(f"{launcher} has started this process with {values}: no such rank is")
    return Place(launcher, job, node, rank, size, local_rank, local_size, **rest)


# ----- torchrun -----

_TORCH_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def _torchrun(environment: Mapping[str, str]) -> Place | None:
    """torchrun, and whatever else sets torch's variables."""
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
    # Each of torchrun's nodes counts only the lives that its own ranks have ended. So nodes differ on
    # the number: they meet in each life, and find its first node by asking again.
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
    # mpirun draws a key for each job, and all ranks have it.
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
        # mpirun's own host is then taken for the first node's.
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
    """The nearest ancestor whose program's name begins so: what tells it apart, and its command line.

    The parent, where there is none.
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
    """mpirun of MPICH and of Intel MPI."""
    if not environment.get("PMI_RANK") or not environment.get("PMI_SIZE"):
        return None
    if not environment.get("MPI_LOCALRANKID"):
        return None
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    # Its variables name no job. Each node has a proxy, and its command line mpirun's own port.
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
    """This process's place; None when no launcher that is known has started it.

    InvalidArgument when a launcher's variables are not complete, or do not fit together.
    """
    for launcher in LAUNCHERS:
        place = launcher(environment)
        if place is not None:
            return place
    return None


def _host_identity() -> str:
    """Alike for two processes that share /tmp and an abstract namespace, most likely."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "mnt", "uts")]
    return " ".join([socket.gethostname(), boot, *spaces])


@dataclass(frozen=True)
class World:
    """What torch.distributed tells a backend: a store that all ranks have, and who this one is."""

    store: Any
    rank: int
    size: int


def find_in(environment: Mapping[str, str], world: World, timeout_s: float) -> Place:
    """find() for a backend of torch.distributed: its store is the nodes' way to each other.

    Every rank calls it. Where no launcher speaks of this world to each of them, ranks of one host
    are a node. A launcher whose variables are not complete speaks of no world: programs set
    WORLD_SIZE for reasons of their own. Only some ranks of a new world may have other numbers than
    the launcher said.
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
