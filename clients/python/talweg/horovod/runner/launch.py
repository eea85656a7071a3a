# SPDX-License-Identifier: Apache-2.0
"""horovod.runner.launch: horovodrun, for programs that call it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from talweg._node import caller
from talweg.horovod import runner
from talweg.horovod._run import FAILED, call, failure_text, first_ranks
from talweg.horovod.common.util import gloo_built, mpi_built
from talweg.horovod.runner.js_run import is_jsrun_installed, js_run
from talweg.horovod.runner.mpi_run import mpi_run
from talweg.horovod.runner.util import lsf

__all__ = ["is_gloo_used", "parse_args", "run_commandline", "run_controller"]

# Names of attributes before Horovod 0.27.
_NAMES = {"np": "num_proc", "min_np": "min_num_proc", "max_np": "max_num_proc"}


def parse_args() -> Any:
    """Returns the options of this program's command line, checked."""
    options = runner.read(sys.argv[1:])
    if options.check_build:
        check_build(options.verbose)
    runner.check_options(options)
    return options


def check_build(verbose: bool) -> None:
    """Prints what is there, and exits."""
    print(runner.build())
    sys.exit(0)


def is_gloo_used(use_gloo: Any = None, use_mpi: Any = None, use_jsrun: Any = None) -> bool:
    """Whether run_controller() would call its first function."""
    return bool(use_gloo or not (use_mpi or use_jsrun or mpi_built()))


def run_controller(
    use_gloo: Any,
    gloo_run: Callable[[], Any],
    use_mpi: Any,
    mpi_run: Callable[[], Any],
    use_jsrun: Any,
    js_run: Callable[[], Any],
    verbosity: Any,
) -> None:
    """Calls the function of the launcher that is wanted, or, without a wish, of the one there is.

    Raises ValueError if it is not there.
    """
    has_mpi, in_lsf = mpi_built(), lsf.LSFUtils.using_lsf()
    if is_gloo_used(use_gloo, use_mpi, use_jsrun):
        if not gloo_built():
            raise ValueError("Gloo support has not been built")
        gloo_run()
        return
    if not has_mpi:
        raise ValueError(
            "MPI support has not been built, as Talweg runs without MPI: leave out --mpi and --jsrun"
        )
    if use_jsrun and not use_mpi and not in_lsf:
        raise ValueError("Horovod did not detect an LSF job, which jsrun needs")
    wants_jsrun = use_jsrun or (in_lsf and is_jsrun_installed())
    (js_run if wants_jsrun and not use_mpi else mpi_run)()


def _is_elastic(args: Any) -> bool:
    return runner.is_elastic(args)


def _run(args: Any) -> Any:
    """Runs a job by the options of parse_args(), or by the attributes of any object.

    If `args.run_func` is given, returns its results by rank. Raises RuntimeError if a rank fails.
    """
    options = _options(args)
    if options.run_func is not None:
        runner.check_options(options)
        return call(options, options.run_func, (), {})
    runner.check(options)
    # The user's choice of a launcher has no effect.
    run_controller(None, lambda: start(options), None, mpi_run, None, js_run, options.verbose)
    return None


_run_static = _run
_run_elastic = _run


def _options(args: Any) -> Any:
    """Returns horovodrun's options with the attributes of `args` that are not None."""
    options = runner.defaults()
    given = {name: value for name, value in vars(args).items() if value is not None}
    for name, value in given.items():
        setattr(options, _NAMES.get(name, name), value)
    options.num_proc = first_ranks(options.num_proc, options.min_num_proc)
    return options


def start(options: Any, environment: Mapping[str, str] | None = None) -> None:
    """Runs the program, and returns when all its ranks have ended. Raises RuntimeError if one fails.

    `environment` has the ranks' variables: by default this program's.
    """
    if environment is not None:
        environment = {"PATH": os.environ.get("PATH", os.defpath), **environment}
    if not runner.is_here(options):
        status, failure = runner.run_on_hosts(options, environment), ""
    else:
        line = runner.line_here(options)
        told = runner.environment_here(options, environment)
        if runner.is_elastic(options):
            outcome = caller.run(line, told, {})
            status, failure = outcome.status, failure_text(outcome)
        else:
            status, failure = subprocess.run(line, env=told, check=False).returncode, ""
    if status != 0:
        raise RuntimeError(f"{failure or f'exit status {status}'} ({FAILED})")


def run_commandline() -> None:
    """Runs horovodrun and exits with its status."""
    sys.exit(runner.main())


if __name__ == "__main__":
    run_commandline()
