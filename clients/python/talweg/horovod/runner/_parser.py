# SPDX-License-Identifier: Apache-2.0
"""The options of horovodrun. Their attributes have Horovod's names."""

from __future__ import annotations

import argparse
from typing import Any

from talweg.horovod import __version__
from talweg.horovod.runner import _variables

__all__ = ["attribute", "parser"]

# Options whose attribute has another name.
_ATTRIBUTES = {
    "--min-np": "min_num_proc",
    "--max-np": "max_num_proc",
    "--slots-per-host": "slots",
    "--blacklist-cooldown-range": "cooldown_range",
    "--gloo": "use_gloo",
    "--mpi": "use_mpi",
    "--jsrun": "use_jsrun",
    "--tcp": "tcp_flag",
}


def attribute(option: str) -> str:
    """Returns the name of the option's attribute."""
    return _ATTRIBUTES.get(option, _variables.attribute(option))


class _AddNames(argparse.Action):
    """Adds names to the set that the option has already, and to the list of them in order."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        names = [name for name in values.split(",") if name]
        setattr(namespace, self.dest, {*(getattr(namespace, self.dest) or ()), *names})
        namespace.nics_in_order = [*getattr(namespace, "nics_in_order", ()), *names]


def parser() -> argparse.ArgumentParser:
    """Returns the parser. An option may be abbreviated, as with Horovod."""
    parser = argparse.ArgumentParser(
        prog="horovodrun",
        description="Starts ranks by `talweg run` on this host, and by ssh on other hosts.",
    )
    parser.add_argument("-v", "--version", action="version", version=__version__)
    parser.add_argument("-cb", "--check-build", action="store_true", help="show what is there")
    parser.add_argument("-np", "--num-proc", type=int, help="number of ranks")
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", help="host:slots,...; ranks fill them in order")
    hosts.add_argument("-hostfile", "--hostfile", help="a file of lines `host slots=n`")
    hosts.add_argument(
        "--host-discovery-script", help="a program that prints lines host:slots; runs each second"
    )
    parser.add_argument("-p", "--ssh-port", type=int, help="the port of sshd on other hosts")
    parser.add_argument("-i", "--ssh-identity-file", help="the key for other hosts")
    parser.add_argument(
        "--network-interface",
        "--network-interfaces",
        dest="nics",
        action=_AddNames,
        help="names with commas between them, or the option several times. The first interface "
        "that a host has carries the data",
    )
    parser.add_argument("--verbose", action="store_true", help="show what is started")
    parser.add_argument("--output-filename", help="directory for rank.NN/stdout and stderr")
    parser.add_argument("--config-file", help="a YAML file of options; those given here win")
    parser.add_argument(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        help="lines of output begin with the time",
    )
    _variables.add_options(parser)
    _add_elastic(parser)
    _add_unused(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    # A function to call instead of a program, and the Python of its ranks: horovod.run() sets them.
    parser.set_defaults(run_func=None, executable=None)
    return parser


def _add_elastic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--min-np",
        "--min-num-proc",
        dest="min_num_proc",
        type=int,
        help="the lowest number of ranks of an elastic job",
    )
    parser.add_argument(
        "--max-np", "--max-num-proc", dest="max_num_proc", type=int, help="the highest number"
    )
    parser.add_argument(
        "--slots-per-host",
        dest="slots",
        type=int,
        help="the slots of hosts that are named without slots",
    )
    parser.add_argument(
        "--elastic-timeout", type=int, help="how many seconds ranks may be too few. Default: 600."
    )
    parser.add_argument("--reset-limit", type=int, help="how often hosts may come or go")
    parser.add_argument(
        "--blacklist-cooldown-range",
        dest="cooldown_range",
        type=int,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="seconds after which a host that has failed is used again",
    )


def _add_unused(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose how Horovod's own launcher reaches ranks."""
    controllers = parser.add_mutually_exclusive_group()
    for option in ("--gloo", "--mpi", "--jsrun"):
        controllers.add_argument(
            option, dest=attribute(option), action="store_true", help="no effect"
        )
    for option in ("--tcp", "--disable-cache"):
        parser.add_argument(option, dest=attribute(option), action="store_true", help="no effect")
    for option in ("--mpi-args", "--binding-args"):
        parser.add_argument(option, help="no effect")
