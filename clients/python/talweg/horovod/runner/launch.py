# SPDX-License-Identifier: Apache-2.0
"""horovod.runner.launch: horovodrun, for programs that call it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from talweg.horovod import runner
from talweg.horovod._run import FAILED, run

__all__ = ["parse_args", "run_commandline"]

# Attributes that Horovod's own options have by other names.
_NAMES = {
    "min_num_proc": "min_np",
    "max_num_proc": "max_np",
    "slots": "slots_per_host",
    "cooldown_range": "blacklist_cooldown_range",
    "nics": "network_interfaces",
}
_OF_RUN = ("hosts", "hostfile", "ssh_port", "ssh_identity_file", "output_filename", "executable")


def parse_args() -> Any:
    """The options of this program's command line, checked."""
    return runner.parse(sys.argv[1:])


def _run(args: Any) -> Any:
    """Carries out options as parse_args() gives them, or as attributes of any object.

    The results of `args.run_func` by rank, if it has one. RuntimeError when a rank fails.
    """
    given = {name: value for name, value in vars(args).items() if value is not None}
    if "run_func" in given:
        told = {name: given[name] for name in _OF_RUN if name in given}
        return run(given["run_func"], num_proc=given["num_proc"], **told)
    options = runner.defaults()
    for name, value in given.items():
        if name == "nics":
            value = ",".join(value)
        setattr(options, _NAMES.get(name, name), value)
    runner.check(options)
    if runner.is_here(options):
        line, environment = runner.line_here(options), runner.environment_here(options)
        status = subprocess.run(line, env=environment, check=False).returncode
    else:
        status = runner.run_on_hosts(options)
    if status != 0:
        raise RuntimeError(f"exit status {status} ({FAILED})")
    return None


def run_commandline() -> None:
    """What horovodrun is."""
    sys.exit(runner.main())
