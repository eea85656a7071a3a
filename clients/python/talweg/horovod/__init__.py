# SPDX-License-Identifier: Apache-2.0
"""Horovod's surface over Talweg's client: `import talweg.horovod.torch as hvd`.

The wheel talweg-horovod puts the name `horovod` into place. docs/horovod.md says what differs.
"""

from __future__ import annotations

from talweg.horovod._run import run

__all__ = ["__version__", "run"]

# The Horovod whose surface this is: programs ask for features by it.
__version__ = "0.28.1"
