# SPDX-License-Identifier: Apache-2.0
"""Whether this process is part of an LSF job. Talweg does not read what LSF allocated."""

from __future__ import annotations

import os
from typing import Any

from talweg.horovod._absent import not_offered

__all__ = ["LSFUtils"]


def _unknown(*_: Any) -> Any:
    raise not_offered(
        "horovod.runner.util.lsf",
        "give horovodrun the hosts by -np and -H, for example from $LSB_DJOB_HOSTFILE",
    )


class LSFUtils:
    """Horovod's class. It knows only whether there is an LSF job."""

    @staticmethod
    def using_lsf() -> bool:
        return "LSB_JOBID" in os.environ

    get_compute_hosts = staticmethod(_unknown)
    get_num_processes = staticmethod(_unknown)
    get_num_cores = staticmethod(_unknown)
    get_num_gpus = staticmethod(_unknown)
    get_num_threads = staticmethod(_unknown)
