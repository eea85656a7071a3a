# SPDX-License-Identifier: Apache-2.0
"""A rank whose agent bpslaunch has not started: another launcher's rank, or one of a running agent.

Daemons that init() starts get what BytePS's variables say. An agent that runs already does not know
them, and a warning says so.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from talweg._compat import daemons
from talweg._compat.environment import VariableError
from talweg._node import launchers
from talweg._node.launchers import Place
from talweg.byteps import _job, _trace
from talweg.byteps._environment import PROVIDERS, TABLE
from talweg.errors import InvalidArgument

# BytePS's variables that choose a variable of the daemons.
_CHOOSES = {
    "TALWEG_SLICE_BYTES_MAX": ("BYTEPS_PARTITION_BYTES",),
    "TALWEG_ENCODING_BYTES_MIN": ("BYTEPS_MIN_COMPRESS_BYTES",),
    "TALWEG_DEALING": (
        *("BYTEPS_KEY_HASH_FN", "BYTEPS_BUILT_IN_HASH_COEF"),
        *("BYTEPS_ENABLE_MIXED_MODE", "BYTEPS_MIXED_MODE_BOUND"),
    ),
    "TALWEG_CREDIT_BYTES": ("BYTEPS_SCHEDULING_CREDIT",),
    "TALWEG_RENEW_MS": ("PS_HEARTBEAT_INTERVAL",),
    "TALWEG_LEASE_MS": ("PS_HEARTBEAT_TIMEOUT",),
    "TALWEG_LANES": ("BYTEPS_SERVER_ENGINE_THREAD",),
    "TALWEG_RESULTS_BY_PRIORITY": ("BYTEPS_SERVER_ENABLE_SCHEDULE",),
    "TALWEG_INTERFACE": ("DMLC_INTERFACE",),
    "TALWEG_INSECURE": ("DMLC_INTERFACE",),
    "TALWEG_ADVERTISE": ("DMLC_NODE_HOST",),
    "TALWEG_PROVIDER": ("DMLC_ENABLE_RDMA",),
    "TALWEG_LOG_LEVEL": ("BYTEPS_LOG_LEVEL", "PS_VERBOSE", "BYTEPS_SERVER_DEBUG"),
    "TALWEG_TRACE_PATH": ("BYTEPS_TRACE_ON",),
    "TALWEG_TRACE_ROUNDS": ("BYTEPS_TRACE_ON",),
    "TALWEG_JOB": ("BYTEPS_JOB_ID",),
}
# Who is in the job, and where: a launcher or an agent says so in the place of these.
_WHO = (
    *("DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_PORT"),
    *("DMLC_USE_KUBERNETES", "BYTEPS_FORCE_DISTRIBUTED", "BYTEPS_GLOBAL_RANK"),
)


def place_of(environment: Mapping[str, str]) -> Place | None:
    """Returns the place that torchrun, mpirun or srun gives this process. None if none has started
    it, or if BytePS's variables give it one.
    """
    if any(environment.get(name) for name in ("BYTEPS_LOCAL_RANK", "DMLC_WORKER_ID")):
        return None
    return launchers.find(environment)


def check_lone_rank(environment: Mapping[str, str], log: logging.Logger) -> None:
    """Is called where BytePS's variables describe a job of one rank. Raises VariableError if a
    launcher has started several ranks, and the variables may only be left over.

    Variables that give the local rank and the size are complete, so that they count. A warning says
    that the launcher's numbers do not.
    """
    try:
        place = launchers.find(environment)
    except InvalidArgument:
        return
    if place is None or place.size == 1 or "TALWEG_BYTEPS_LAUNCHED" in environment:
        return
    names = ("DMLC_WORKER_ID", "DMLC_NUM_WORKER", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")
    told = [name for name in names if environment.get(name)]
    values = ", ".join(f"{name}={environment[name]}" for name in told)
    text = (
        f"{place.launcher} has started {place.size} ranks, and {values} describe a job of one rank"
    )
    if not all(environment.get(name) for name in names[2:]):
        raise VariableError(
            f"{text}: unset {' and '.join(told)} for one job of {place.size} ranks, or also set "
            "BYTEPS_LOCAL_RANK and BYTEPS_LOCAL_SIZE for a job of one rank"
        )
    log.warning("%s, which counts: unset them for one job of %d ranks", text, place.size)


def _asked(environment: Mapping[str, str], told: Mapping[str, str]) -> dict[str, str]:
    """Returns the daemons' variables that a variable of BytePS's has chosen."""
    return {
        name: value
        for name, value in told.items()
        if any(environment.get(each) for each in _CHOOSES[name])
    }


def _node(environment: Mapping[str, str], place: Place | None) -> int:
    """Returns this node's number for the name of its agent's timeline. It is the launcher's rank of
    the node's first process if the launcher does not number nodes.
    """
    if place is not None and place.node_rank is not None:
        return place.node_rank
    told = environment.get("GROUP_RANK", "")
    return int(told) if told.isdecimal() else place.rank if place is not None else 0


def _is_on_network(place: Place | None) -> bool:
    return place is not None and place.local_size < place.size


def daemon_variables(environment: Mapping[str, str], place: Place | None) -> dict[str, str]:
    """Returns the variables of all daemons of a node that BytePS's variables stand for.

    Raises VariableError if this machine has no device for the transport that they choose.
    """
    told = {
        **_job.daemon_variables(environment),
        **_job.daemon_variables(environment, is_server=True),
        **_trace.prepare_agent(_node(environment, place), environment),
        "TALWEG_JOB": TABLE.value(environment, "BYTEPS_JOB_ID"),
    }
    lease_s = TABLE.number(environment, "PS_HEARTBEAT_TIMEOUT")
    if lease_s > 0:
        told["TALWEG_LEASE_MS"] = str(lease_s * 1000)
    wanted = PROVIDERS[TABLE.value(environment, "DMLC_ENABLE_RDMA")]
    if place is None and wanted != "tcp":
        told["TALWEG_PROVIDER"] = wanted
    elif _is_on_network(place) and "TALWEG_PROVIDER" not in environment:
        told["TALWEG_PROVIDER"] = _job.provider(environment)
    return _asked(environment, told)


def tell_daemons(
    environment: Mapping[str, str], place: Place | None, log: logging.Logger, says: bool
) -> None:
    """Sets the daemons' variables if init() starts the daemons, as it does for a `place`. Otherwise
    an agent runs already, and a warning names the variables that it does not know.
    """
    told = daemon_variables(environment, place)
    if place is not None:
        daemons.give(told)
    elif says:
        lacking = {each for name in told if name not in os.environ for each in _CHOOSES[name]}
        names = [name for name in TABLE.by_name if name in lacking and environment.get(name)]
        daemons.warn_of_running_agent(log, names, told, "bpslaunch")
    changed = [name for name in _WHO if environment.get(name, "") not in ("", _default(name))]
    if changed and says:
        by = place.launcher if place is not None else "this node's agent"
        log.warning(
            "%s has no effect here: %s says who is in the job; start the job by bpslaunch, or unset it"
            if len(changed) == 1
            else "%s have no effect here: %s says who is in the job; start the job by bpslaunch, or "
            "unset them",
            ", ".join(changed),
            by,
        )


def _default(name: str) -> str:
    return TABLE.by_name[name].default
