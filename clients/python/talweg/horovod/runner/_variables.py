# SPDX-License-Identifier: Apache-2.0
"""horovodrun's options that only set a variable. docs/horovod.md says what each one does."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

# By option: the variable, and the type of its value.
NUMBERS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "--fusion-threshold-mb": ("FUSION_THRESHOLD", float),
    "--cycle-time-ms": ("CYCLE_TIME", float),
    "--cache-capacity": ("CACHE_CAPACITY", int),
    "--autotune-warmup-samples": ("AUTOTUNE_WARMUP_SAMPLES", int),
    "--autotune-steps-per-sample": ("AUTOTUNE_STEPS_PER_SAMPLE", int),
    "--autotune-bayes-opt-max-samples": ("AUTOTUNE_BAYES_OPT_MAX_SAMPLES", int),
    "--autotune-gaussian-process-noise": ("AUTOTUNE_GAUSSIAN_PROCESS_NOISE", float),
    "--stall-check-warning-time-seconds": ("STALL_CHECK_TIME_SECONDS", int),
    "--stall-check-shutdown-time-seconds": ("STALL_SHUTDOWN_TIME_SECONDS", int),
    "--num-nccl-streams": ("NUM_NCCL_STREAMS", int),
    "--gloo-timeout-seconds": ("GLOO_TIMEOUT_SECONDS", int),
    "--start-timeout": ("START_TIMEOUT", int),
    "--thread-affinity": ("THREAD_AFFINITY", int),
}
TEXTS: Mapping[str, str] = {
    "--autotune-log-file": "AUTOTUNE_LOG",
    "--timeline-filename": "TIMELINE",
    "--log-level": "LOG_LEVEL",
}
# By option: the attribute that it sets, and the value.
SWITCHES: Mapping[str, tuple[str, bool]] = {
    "--hierarchical-allreduce": ("hierarchical_allreduce", True),
    "--no-hierarchical-allreduce": ("hierarchical_allreduce", False),
    "--hierarchical-allgather": ("hierarchical_allgather", True),
    "--no-hierarchical-allgather": ("hierarchical_allgather", False),
    "--torus-allreduce": ("torus_allreduce", True),
    "--no-torus-allreduce": ("torus_allreduce", False),
    "--autotune": ("autotune", True),
    "--no-autotune": ("autotune", False),
    "--timeline-mark-cycles": ("timeline_mark_cycles", True),
    "--no-timeline-mark-cycles": ("timeline_mark_cycles", False),
    "--no-stall-check": ("no_stall_check", True),
    "--stall-check": ("no_stall_check", False),
    "--mpi-threads-disable": ("mpi_threads_disable", True),
    "--no-mpi-threads-disable": ("mpi_threads_disable", False),
    "--log-with-timestamp": ("log_with_timestamp", True),
    "--log-without-timestamp": ("log_with_timestamp", False),
    "--no-log-hide-timestamp": ("log_with_timestamp", True),
    "--log-hide-timestamp": ("log_with_timestamp", False),
}
# By attribute: the variable, and the value for which the variable is 1.
_SWITCHED: Mapping[str, tuple[str, bool]] = {
    "hierarchical_allreduce": ("HIERARCHICAL_ALLREDUCE", True),
    "hierarchical_allgather": ("HIERARCHICAL_ALLGATHER", True),
    "torus_allreduce": ("TORUS_ALLREDUCE", True),
    "autotune": ("AUTOTUNE", True),
    "timeline_mark_cycles": ("TIMELINE_MARK_CYCLES", True),
    "no_stall_check": ("STALL_CHECK_DISABLE", True),
    "mpi_threads_disable": ("MPI_THREADS_DISABLE", True),
    "log_with_timestamp": ("LOG_HIDE_TIME", False),
}


def attribute(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options. One that is not given has the value None."""
    text = "sets a variable: see docs/horovod.md"
    for option, (_, kind) in NUMBERS.items():
        parser.add_argument(option, type=kind, help=text)
    for option in TEXTS:
        parser.add_argument(option, help=text)
    groups: dict[str, Any] = {}
    for option, (name, value) in SWITCHES.items():
        group = groups.get(name) or parser.add_mutually_exclusive_group()
        groups[name] = group
        group.add_argument(option, dest=name, action="store_const", const=value, help=text)


def variables_of(options: Any) -> dict[str, str]:
    """Returns the variables that the options set, as Horovod's own launcher does."""
    names = {**{option: name for option, (name, _) in NUMBERS.items()}, **TEXTS}
    given = {name: getattr(options, attribute(option)) for option, name in names.items()}
    if given["FUSION_THRESHOLD"] is not None:
        given["FUSION_THRESHOLD"] = int(float(given["FUSION_THRESHOLD"]) * 1024 * 1024)
    found = {f"HOROVOD_{name}": str(value) for name, value in given.items() if value is not None}
    for each, (name, is_one) in _SWITCHED.items():
        value = getattr(options, each)
        if value is not None:
            found[f"HOROVOD_{name}"] = "1" if bool(value) is is_one else "0"
    return found
