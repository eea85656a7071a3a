# SPDX-License-Identifier: Apache-2.0
"""Horovod's surface over Talweg's client: `import talweg.horovod.torch as hvd`.

The wheel talweg-horovod puts the name `horovod` into place. docs/horovod.md says what differs.
"""

from __future__ import annotations

from talweg._version import __version__
from talweg.horovod._run import run

__all__ = ["__version__", "run"]
