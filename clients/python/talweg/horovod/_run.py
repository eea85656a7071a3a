# SPDX-License-Identifier: Apache-2.0
"""horovod.run(): calls a function on new ranks, on this host or on others."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from talweg._call_site import warn
from talweg._collectives.objects import by_cloudpickle
from talweg._node.hosts import run as start
from talweg.errors import InvalidArgument, Unsupported


def _pickled(function: Callable[..., Any], args: Any, kwargs: Any) -> bytes:
    """Pickles the call, by cloudpickle if it is installed, so lambdas can be sent as well."""
    data = by_cloudpickle((function, args, kwargs))
    if data is not None:
        return data
    try:
        data = pickle.dumps((function, args, kwargs))
    except Exception as error:
        raise InvalidArgument(
            f"func={function!r} cannot be sent to the ranks ({error}): install cloudpickle, or pass a "
            "function of a module"
        ) from None
    if function.__module__ == "__main__":
        raise InvalidArgument(
            f"func={function!r} is of the program itself, which ranks do not run: install cloudpickle, or "
            "move it into a module"
        )
    return data


# Programs look for this in the text of an error.
FAILED = "Horovod detected that one or more processes exited with non-zero status"

_ELASTIC = (
    "min_num_proc",
    "max_num_proc",
    "slots",
    "reset_limit",
    "cooldown_range",
    "host_discovery_script",
    "min_np",
    "max_np",
)


# The names of the parameters are Horovod's.
def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: Any = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls func(*args, **kwargs) on each of `num_proc` ranks; returns the results by rank.

    The ranks are new processes, on this host or on `hosts` ("a:2,b:2") by ssh. Raises ValueError
    for arguments that do not fit together, InvalidArgument if `func` cannot be sent, Unsupported
    for arguments of elastic jobs, and RuntimeError, which names the rank, if a rank fails.
    """
    given = locals()
    from talweg.horovod import runner  # It imports this module for its own run().

    for name in _ELASTIC:
        if given[name] is not None:
            raise Unsupported(
                f"horovod.run({name}=...) is not offered by Talweg: horovodrun --min-np starts a "
                "program as a job whose hosts come and go"
            )
    if hosts and hostfile:
        raise ValueError("horovod.run: hosts and hostfile are both given: give one of them")
    if use_gloo and use_mpi:
        raise ValueError("horovod.run: use_gloo and use_mpi are both true; neither is needed")
    for name, instead in (("np", "num_proc"), ("network_interface", "network_interfaces")):
        if given[name] is not None:
            warn(f"horovod.run: {name} has been replaced by {instead}", DeprecationWarning)
    count = np if np is not None else num_proc
    line = ["-np", str(count)]
    for option, value in (
        ("-H", hosts),
        ("--hostfile", hostfile),
        ("--start-timeout", start_timeout),
        ("--ssh-port", ssh_port),
        ("--ssh-identity-file", ssh_identity_file),
        ("--output-filename", output_filename),
        ("--network-interfaces", network_interfaces or network_interface),
    ):
        line += [option, str(value)] if value is not None else []
    python = executable or sys.executable
    line += [python, str(Path(__file__).with_name("_task.py"))]
    launch = runner.launch_of(runner.parse(line))
    launch.files = {"function": _pickled(func, tuple(args), dict(kwargs or {}))}
    launch.python = python
    # The ranks import from the same places as this program.
    paths = [os.path.abspath(path) for path in sys.path]
    launch.environment = {**launch.environment, "PYTHONPATH": os.pathsep.join(paths)}
    outcome = start(launch)
    if outcome.failure:
        raise RuntimeError(f"horovod.run: {outcome.failure}; all other ranks were ended ({FAILED})")
    return [pickle.loads(outcome.results[rank]) for rank in range(count)]
