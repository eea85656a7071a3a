# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface over Talweg's client: `import talweg.horovod.torch as hvd`.

The wheel talweg-horovod makes it importable as `horovod`. docs/horovod.md says what differs.
"""

from __future__ import annotations

from talweg.horovod._run import run

__all__ = ["__version__", "run"]

# The version of Horovod with this interface. Programs look up features by it.
__version__ = "0.28.1"
