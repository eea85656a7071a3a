# SPDX-License-Identifier: Apache-2.0
"""gloo_run() starts a job as horovodrun does, for programs that call it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from talweg.horovod._absent import not_offered
from talweg.horovod.runner import defaults

__all__ = ["gloo_run", "gloo_run_elastic"]


def _get_min_start_hosts(settings: Any) -> int:
    """Returns with how many hosts an elastic job may begin."""
    return 1


def gloo_run(
    settings: Any, nics: Any, env: Mapping[str, str], server_ip: str, command: Sequence[str] | str
) -> None:
    """Runs a program on the hosts of `settings`, with the variables `env`.

    `server_ip` has no effect. Raises RuntimeError if a rank fails.
    """
    from talweg.horovod.runner import launch  # It imports this module.

    options = defaults()
    for name in (
        *("num_proc", "hosts", "ssh_port", "ssh_identity_file", "output_filename"),
        "prefix_output_with_timestamp",
    ):
        setattr(options, name, getattr(settings, name))
    options.nics = set(nics or ())
    options.command = shlex.split(command) if isinstance(command, str) else list(command)
    launch.start(options, env)


def gloo_run_elastic(*_: Any, **__: Any) -> NoReturn:
    raise not_offered(
        "horovod.runner.gloo_run.gloo_run_elastic()",
        "use horovod.run(func, min_num_proc=N, host_discovery_script=...), or horovodrun --min-np",
    )
