# SPDX-License-Identifier: Apache-2.0
"""horovodrun: starts ranks by `talweg run` on this host, and by ssh on other hosts."""

from __future__ import annotations

import importlib.util
import os
import shlex
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from talweg import _programs
from talweg._node import hosts, listed_hosts
from talweg.errors import InvalidArgument, TalwegError
from talweg.horovod import __version__
from talweg.horovod._environment import TABLE, agent_variables, launcher_variables
from talweg.horovod._run import WITHOUT_MPI, run
from talweg.horovod.runner._output import Output
from talweg.horovod.runner._parser import attribute, parser
from talweg.horovod.runner._variables import variables_of
from talweg.horovod.runner.common.util import config_parser
from talweg.horovod.runner.elastic import driver
from talweg.horovod.runner.util.network import filter_local_addresses

__all__ = ["main", "run"]

# Those that say how Horovod runs over MPI. A user may wait for what they do.
_OF_MPI = ("--mpi", "--jsrun", "--tcp", "--mpi-args", "--binding-args")
# Each of these makes a job elastic. The others only set more of an elastic job.
_ELASTIC_SWITCHES = ("--min-np", "--host-discovery-script")
_ELASTIC_NUMBERS = {
    "--max-np": "--max-ranks",
    "--slots-per-host": "--ranks-per-node",
    "--elastic-timeout": "--hosts-wait-s",
    "--reset-limit": "--host-changes-max",
}
_TIMEOUT = "HOROVOD_ELASTIC_TIMEOUT"
_WAIT_S = 600  # What `talweg run` waits unless it is told.


def _hosts(options: Any) -> list[listed_hosts.Host]:
    if options.hosts and options.hostfile:
        raise InvalidArgument("--hosts and --hostfile are both given: give one of them")
    if options.hostfile:
        try:
            text = Path(options.hostfile).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(
                f"--hostfile={options.hostfile}: {error}; give a file of lines `host slots=n`"
            ) from None
        return listed_hosts.parse_lines(text, f"--hostfile={options.hostfile}")
    slots: dict[str, int] = {}
    told = options.hosts or f"localhost:{options.num_proc}"
    default = (options.slots or 1) if is_elastic(options) else 1
    for host in listed_hosts.parse_hosts(told, default):
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return [listed_hosts.Host(name, count) for name, count in slots.items()]


def check(options: Any) -> None:
    """Raises InvalidArgument for bad options or no program, and Unsupported for some others."""
    check_options(options)
    if not options.command:
        raise InvalidArgument("there is no program: horovodrun -np 2 python train.py")


def check_options(options: Any) -> None:
    """Checks the options before the program, as check() does."""
    TABLE.check(variables_of(options))
    if options.num_proc is None:
        raise InvalidArgument(
            "-np is missing: say how many ranks to start, as in horovodrun -np 2 python train.py"
        )
    if options.num_proc < 1:
        raise InvalidArgument(
            f"-np is {options.num_proc}; it must be a number of ranks, at least 1"
        )
    if is_elastic(options):
        _check_elastic(options)


def is_elastic(options: Any) -> bool:
    """Whether the options let hosts come and go."""
    return any(getattr(options, attribute(name)) is not None for name in _ELASTIC_SWITCHES)


def _check_elastic(options: Any) -> None:
    least, most = options.min_num_proc, options.max_num_proc
    for name, value, lowest in (
        ("--min-np", least, 1),
        ("--max-np", most, 1),
        ("--slots-per-host", options.slots, 1),
        ("--elastic-timeout", options.elastic_timeout, 0),
        ("--reset-limit", options.reset_limit, 0),
    ):
        if value is not None and value < lowest:
            raise InvalidArgument(f"{name} is {value}; it must be at least {lowest}")
    if least is not None and least > options.num_proc:
        raise InvalidArgument(
            f"--min-np is {least}, and -np {options.num_proc}: a job begins with -np ranks, so -np "
            "must be at least --min-np"
        )
    if most is not None and most < options.num_proc:
        raise InvalidArgument(
            f"--max-np is {most}, and -np {options.num_proc}: --max-np must be at least -np"
        )
    if options.host_discovery_script and (options.hosts or options.hostfile):
        raise InvalidArgument(
            "--host-discovery-script and --hosts or --hostfile are given: give one of them"
        )
    cooldown = options.cooldown_range
    if cooldown and not 1 <= cooldown[0] <= cooldown[1] <= 3600:
        raise InvalidArgument(
            f"--blacklist-cooldown-range is {cooldown[0]} {cooldown[1]}; it must be two numbers of "
            "seconds from 1 to 3600, the lower one first"
        )


def _unused(options: Any) -> dict[str, str]:
    """Returns the options that are given and have no effect, with the reasons."""

    def given(name: str) -> bool:
        value = getattr(options, attribute(name))
        return value is not None and value is not False

    reasons = dict.fromkeys(_OF_MPI, WITHOUT_MPI)
    if not is_elastic(options):
        of_elastic = (*_ELASTIC_NUMBERS, "--blacklist-cooldown-range")
        reasons |= {name: f"without {' or '.join(_ELASTIC_SWITCHES)}" for name in of_elastic}
    return {name: why for name, why in reasons.items() if given(name)}


def _elastic_line(options: Any) -> list[str]:
    """Returns the options of `talweg run` for an elastic job."""
    least = options.num_proc if options.min_num_proc is None else options.min_num_proc
    told = {"--ranks": options.num_proc, "--min-ranks": least}
    told |= {there: getattr(options, attribute(here)) for here, there in _ELASTIC_NUMBERS.items()}
    told |= {
        "--host-discovery-script": options.host_discovery_script,
        "--hostfile": options.hostfile,
        "--ssh-port": options.ssh_port,
        "--ssh-identity-file": options.ssh_identity_file,
        "--network-interfaces": ",".join(_interfaces(options)) or None,
    }
    if options.elastic_timeout is None and os.environ.get(_TIMEOUT):
        told["--hosts-wait-s"] = TABLE.number(os.environ, _TIMEOUT)
    elif options.elastic_timeout is None and driver.ELASTIC_TIMEOUT_SECS != _WAIT_S:
        told["--hosts-wait-s"] = round(driver.ELASTIC_TIMEOUT_SECS)
    if driver.DISCOVER_HOSTS_FREQUENCY_SECS > 1:
        told["--hosts-interval-s"] = round(driver.DISCOVER_HOSTS_FREQUENCY_SECS)
    if options.cooldown_range:
        told["--host-cooldown-s"] = ",".join(map(str, options.cooldown_range))
    if not options.host_discovery_script and not options.hostfile:
        told["--hosts"] = ",".join(f"{host.name}:{host.slots}" for host in _hosts(options))
    return [f"{name}={value}" for name, value in told.items() if value is not None]


def _command(options: Any, ranks_of: Sequence[listed_hosts.Host]) -> list[str]:
    """Returns a rank's command. `ranks_of`: the hosts, with slots for just these ranks, from which
    the rank learns its place; empty if hosts come and go.
    """
    told = ",".join(f"{host.name}:{host.slots}" for host in ranks_of)
    rank = str(Path(__file__).parents[1] / "_rank.py")
    python = [options.executable or sys.executable, "-I", "-S", rank]
    return [*python, told, *options.command]


class _HorovodArgs:
    """Options for launch._run(), as attributes. None means that an option is not given."""

    def __init__(self) -> None:
        self.num_proc = 1
        self.command: list[str] | None = None
        self.run_func: Callable[..., Any] | None = None
        self.hosts: str | None = None


def defaults() -> Any:
    """Returns the options as they are if none is given."""
    return parser().parse_args([])


def read(arguments: list[str] | None = None) -> Any:
    """Returns a command line's options, and those of its --config-file that the line lacks."""
    options = parser().parse_args(arguments)
    if options.config_file:
        config_parser.set_args_from_config(options, config_parser.read_config(options.config_file))
    return options


def parse(arguments: list[str]) -> Any:
    """Returns the options, checked. The program need not be among the arguments."""
    options = read(arguments)
    check_options(options)
    return options


def launch_of(options: Any, environment: Mapping[str, str] | None = None) -> hosts.Launch:
    """Returns the ranks to start, each on its host."""
    if is_here(options):
        _require_interfaces(options)
    dealt = hosts.deal(_hosts(options), options.num_proc)
    return hosts.Launch(
        _command(options, dealt),
        options.num_proc,
        dealt,
        Output(options).say,
        hosts.Ssh(options.ssh_port, options.ssh_identity_file),
        _environment_of(options, environment),
        _interfaces(options),
    )


def run_on_hosts(options: Any, environment: Mapping[str, str] | None = None) -> int:
    launch = launch_of(options, environment)
    if options.verbose:
        where = ", ".join(f"{host.name}:{host.slots}" for host in launch.hosts)
        print(f"horovodrun: {shlex.join(options.command)} on {where}", file=sys.stderr)
    try:
        outcome = hosts.run(launch)
    except KeyboardInterrupt:
        return 130
    if outcome.failure:
        print(f"horovodrun: {outcome.failure}; all other ranks were ended", file=sys.stderr)
    return outcome.status


def is_here(options: Any) -> bool:
    """Whether `talweg run` starts all ranks: all hosts are this one, or hosts come and go."""
    return is_elastic(options) or not filter_local_addresses(host.name for host in _hosts(options))


def _interfaces(options: Any) -> list[str]:
    """Returns the network interfaces, in the order of the command line."""
    in_order = getattr(options, "nics_in_order", ())
    return [*in_order, *sorted(set(options.nics or ()).difference(in_order))]


def _require_interfaces(options: Any) -> None:
    """Raises InvalidArgument for a network interface that this host lacks."""
    known = [name for _, name in socket.if_nameindex()]
    for name in _interfaces(options):
        if name not in known:
            raise InvalidArgument(
                f"--network-interfaces names {name}, and this host has {', '.join(known)}"
            )


def line_here(options: Any) -> list[str]:
    """Returns the command line of `talweg run` for these options."""
    _require_interfaces(options)
    if is_elastic(options):
        told, dealt = _elastic_line(options), []
    else:
        # Each name is a node, even if several names are this host's.
        dealt = hosts.deal(_hosts(options), options.num_proc)
        slots = ",".join(str(host.slots) for host in dealt)
        told = [f"--nodes={len(dealt)}", f"--ranks-per-node={slots}"]
    told += [
        "--job=horovod",
        f"--line-prefix={'%t' * options.prefix_output_with_timestamp}[%r]<%s>:",
    ]
    told += [f"--output-dir={options.output_filename}"] if options.output_filename else []
    return [_programs.tool(), "run", *told, "--", *_command(options, dealt)]


def environment_here(options: Any, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the variables of `talweg run`. `environment` is that of the ranks: by default this
    program's.
    """
    python = options.executable or sys.executable
    return {"TALWEG_PYTHON": python, **_environment_of(options, environment)}


def _environment_of(options: Any, given: Mapping[str, str] | None = None) -> dict[str, str]:
    environment = {**(os.environ if given is None else given), **variables_of(options)}
    environment.pop("HOROVOD_ELASTIC", None)  # This job may be another one than this program's.
    told = launcher_variables(_interfaces(options), is_elastic(options))
    return {**told, **environment, **agent_variables(environment)}


def build() -> str:
    """Returns the text of --check-build. Programs look for `[X] PyTorch` in it."""
    here = {
        title: importlib.util.find_spec(name) is not None
        for title, name in (("TensorFlow", "tensorflow"), ("PyTorch", "torch"), ("MXNet", "mxnet"))
    }
    # Jobs run without MPI, as those of a Horovod with Gloo.
    operations = {name: name == "Gloo" for name in ("NCCL", "DDL", "CCL", "MPI", "Gloo")}
    lines = [f"Horovod v{__version__}:"]
    for title, found in (
        ("Frameworks", here),
        ("Controllers", {"MPI": False, "Gloo": True}),
        ("Tensor Operations", operations),
    ):
        lines += ["", f"Available {title}:"]
        lines += [f"    [{'X' if there else ' '}] {name}" for name, there in found.items()]
    return "\n".join(lines)


def main() -> int:
    try:
        options = read()
        if options.check_build:
            print(build())
            return 0
        check(options)
        for name, why in _unused(options).items():
            print(f"horovodrun: {name} has no effect {why}", file=sys.stderr)
        if not is_here(options):
            return run_on_hosts(options)
        line = line_here(options)
    except (TalwegError, OSError) as error:
        print(f"horovodrun: {error}", file=sys.stderr)
        return 1
    if options.verbose:
        print(f"horovodrun: {' '.join(line)}", file=sys.stderr)
    # `talweg run` passes signals on, and ends all processes that it starts.
    os.execve(line[0], line, environment_here(options))
    raise AssertionError
