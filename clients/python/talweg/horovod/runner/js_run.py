# SPDX-License-Identifier: Apache-2.0
"""Horovod's launch by LSF's jsrun. Talweg does not offer it."""

from __future__ import annotations

import shutil
from typing import Any, NoReturn

from talweg.horovod._absent import not_offered

__all__ = ["generate_jsrun_rankfile", "is_jsrun_installed", "js_run"]


def is_jsrun_installed() -> bool:
    return shutil.which("jsrun") is not None


def js_run(*_: Any, **__: Any) -> NoReturn:
    raise not_offered(
        "horovod.runner.js_run.js_run()",
        "give horovodrun the hosts by -H, for example from $LSB_DJOB_HOSTFILE",
    )


def generate_jsrun_rankfile(*_: Any, **__: Any) -> NoReturn:
    raise not_offered(
        "horovod.runner.js_run.generate_jsrun_rankfile()",
        "give horovodrun the hosts by -H, which ranks fill in order",
    )
