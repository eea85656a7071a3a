# SPDX-License-Identifier: Apache-2.0
"""horovod.run(): calls a function on new ranks, on this host, or on others that may come and go."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from talweg._call_site import warn
from talweg._collectives.objects import by_cloudpickle
from talweg._counted import counted
from talweg._node import caller
from talweg._node.hosts import Outcome
from talweg._node.hosts import run as start
from talweg.errors import InvalidArgument


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

# The arguments that set more of a job whose hosts come and go, and make no job such a one.
_MORE_OF_ELASTIC = ("max_num_proc", "slots", "reset_limit", "cooldown_range")
# The arguments that choose how Horovod runs over MPI.
_OF_MPI = ("use_mpi", "mpi_args")
# Why these have no effect.
WITHOUT_MPI = "as Talweg runs without MPI"


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
    network_interfaces: str | Iterable[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls func(*args, **kwargs) on each of `num_proc` ranks; returns the results by rank.

    The ranks are new processes, on this host or on `hosts` ("a:2,b:2") by ssh.
    `network_interfaces` is a list, or a text with commas between the names. With `min_num_proc`
    or `host_discovery_script` hosts come and go: `func` trains by hvd.elastic.run, and the results
    are those of the ranks that are there at the end. Raises ValueError for arguments that do not
    fit together, InvalidArgument if `func` cannot be sent, and RuntimeError, which names the rank,
    if a rank fails.
    """
    given = locals()

    if hosts and hostfile:
        raise ValueError("horovod.run: hosts and hostfile are both given: give one of them")
    if use_gloo and use_mpi:
        raise ValueError("horovod.run: use_gloo and use_mpi are both true; neither is needed")
    for name, instead in (
        ("np", "num_proc"),
        ("min_np", "min_num_proc"),
        ("max_np", "max_num_proc"),
        ("network_interface", "network_interfaces"),
    ):
        if given[name] is not None:
            warn(f"horovod.run: {name} has been replaced by {instead}", DeprecationWarning)
            if given[instead] in (None, 1):  # 1 is the default of num_proc.
                given[instead] = given[name]
    unused = dict.fromkeys(_OF_MPI, WITHOUT_MPI)
    if given["min_num_proc"] is None and host_discovery_script is None:
        why = "without min_num_proc or host_discovery_script"
        unused |= dict.fromkeys(_MORE_OF_ELASTIC, why)
    for name, why in unused.items():
        if given[name] is not None and given[name] is not False:
            warn(f"horovod.run: {name} has no effect {why}", UserWarning)
    given["num_proc"] = first_ranks(given["num_proc"], given["min_num_proc"])
    interfaces = given["network_interfaces"]
    if interfaces is not None and not isinstance(interfaces, str):
        given["network_interfaces"] = ",".join(interfaces)
    line = []
    for option, name in (
        ("-np", "num_proc"),
        ("--min-np", "min_num_proc"),
        ("--max-np", "max_num_proc"),
        ("--slots-per-host", "slots"),
        ("--reset-limit", "reset_limit"),
        ("--host-discovery-script", "host_discovery_script"),
        ("-H", "hosts"),
        ("--hostfile", "hostfile"),
        ("--start-timeout", "start_timeout"),
        ("--ssh-port", "ssh_port"),
        ("--ssh-identity-file", "ssh_identity_file"),
        ("--output-filename", "output_filename"),
        ("--network-interfaces", "network_interfaces"),
    ):
        line += [option, str(given[name])] if given[name] is not None else []
    if cooldown_range is not None:
        line += ["--blacklist-cooldown-range", *map(str, _two(cooldown_range))]
    options = _parsed(line)
    options.executable = executable
    return call(options, func, tuple(args), dict(kwargs or {}))


def _parsed(line: list[str]) -> Any:
    """Returns horovodrun's options. Its parser would end the program for a value of a wrong type."""
    from talweg.horovod import runner

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return runner.parse(line)
    except SystemExit:
        raise ValueError(f"horovod.run: {said.getvalue().splitlines()[-1]}") from None


def first_ranks(num_proc: Any, min_num_proc: Any) -> Any:
    """Returns with how many ranks a job begins. One that is told only the least begins with it."""
    return min_num_proc if num_proc == 1 and min_num_proc is not None else num_proc


def _two(cooldown_range: Any) -> list[Any]:
    if isinstance(cooldown_range, (list, tuple)) and len(cooldown_range) == 2:
        return list(cooldown_range)
    raise ValueError(
        f"horovod.run: cooldown_range={cooldown_range!r}: give the first pause and the longest, in "
        "seconds, as in (10, 100)"
    )


def call(
    options: Any, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    """Does what run() does, with horovodrun's options, which have been checked."""
    from talweg.horovod import runner

    function = _pickled(func, args, kwargs)
    options.command = [options.executable or sys.executable]
    options.command += [str(Path(__file__).with_name("_task.py"))]
    # The ranks import from the same places as this program.
    paths = {"PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path)}
    if runner.is_elastic(options):
        line, environment = runner.line_here(options), runner.environment_here(options)
        outcome = caller.run(line, {**environment, **paths}, {"function": function})
        least = options.num_proc if options.min_num_proc is None else options.min_num_proc
    else:
        launch = runner.launch_of(options)
        launch.files = {"function": function}
        launch.python = options.executable or sys.executable
        launch.environment = {**launch.environment, **paths}
        outcome = start(launch)
        least = options.num_proc
    if outcome.failure:
        raise RuntimeError(
            f"horovod.run: {failure_text(outcome)}; all other ranks were ended ({FAILED})"
        )
    if len(outcome.results) < least:
        raise RuntimeError(f"horovod.run: {_too_few(outcome, least)}")
    return [pickle.loads(outcome.results[rank]) for rank in sorted(outcome.results)]


def failure_text(outcome: Outcome) -> str:
    """Returns why a job has failed, with Horovod's sentence for too many changes of hosts."""
    from talweg.horovod.runner.elastic.constants import RESET_LIMIT_EXCEEDED_MESSAGE

    told = re.search(r"hosts have come or gone \d+ times?, and the limit is (\d+)", outcome.failure)
    if told is None:
        return outcome.failure
    return f"{outcome.failure}. {RESET_LIMIT_EXCEEDED_MESSAGE.format(told[1])}"


def _too_few(outcome: Outcome, least: int) -> str:
    """Returns why there are fewer results than ranks. The ranks have ended with status 0."""
    text = f"{len(outcome.results)} of at least {counted(least, 'rank')} has a result"
    return f"{text}: {outcome.report or 'the others have ended before the function returned'}"
