# SPDX-License-Identifier: Apache-2.0
"""Horovod's surface over Talweg's client: `import talweg.horovod.torch as hvd`.

The wheel talweg-horovod puts the name `horovod` into place. docs/horovod.md says what differs.
"""

from __future__ import annotations

from typing import Any

from talweg._version import __version__
from talweg.errors import Unsupported

__all__ = ["__version__", "run"]


def run(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Not offered: `talweg run` starts programs, and knows hosts, ranks and failures."""
    raise Unsupported(
        "horovod.run() is not offered by Talweg: put the function into a program and start it with "
        "`talweg run --ranks-per-node N -- python program.py`"
    )
