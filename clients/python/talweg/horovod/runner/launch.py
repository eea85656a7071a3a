# SPDX-License-Identifier: Apache-2.0
"""horovod.runner.launch: horovodrun, for programs that call it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from talweg.horovod import runner
from talweg.horovod._run import FAILED, call, first_ranks

__all__ = ["parse_args", "run_commandline"]

# Attributes that have other names in Horovod's own options.
_NAMES = {
    "min_num_proc": "min_np",
    "max_num_proc": "max_np",
    "slots": "slots_per_host",
    "cooldown_range": "blacklist_cooldown_range",
}


def parse_args() -> Any:
    """Returns the options of this program's command line, checked."""
    return runner.parse(sys.argv[1:])


def _run(args: Any) -> Any:
    """Runs a job by the options of parse_args(), or by the attributes of any object.

    If `args.run_func` is given, returns its results by rank. Raises RuntimeError if a rank fails.
    """
    given = {name: value for name, value in vars(args).items() if value is not None}
    if "np" in given:  # The name before Horovod 0.27.
        given["num_proc"] = given.pop("np")
    if "nics" in given:
        given["network_interfaces"] = ",".join(given.pop("nics"))
    func = given.pop("run_func", None)
    options = runner.defaults()
    for name, value in given.items():
        setattr(options, _NAMES.get(name, name), value)
    options.num_proc = first_ranks(options.num_proc, options.min_np)
    if func is not None:
        runner.check_options(options)
        return call(options, func, (), {})
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
    """Runs horovodrun and exits with its status."""
    sys.exit(runner.main())


if __name__ == "__main__":
    run_commandline()
