# SPDX-License-Identifier: Apache-2.0
"""Parts of Horovod that Talweg does not offer. Importing or calling one raises an error with
the remedy.
"""

from __future__ import annotations

from talweg.errors import Unsupported


def missing(name: str, remedy: str) -> ModuleNotFoundError:
    """Returns the error that the module of that name raises when it is imported."""
    return ModuleNotFoundError(f"{name} is not offered by Talweg: {remedy}", name=name)


def not_offered(name: str, remedy: str) -> Unsupported:
    """Returns the error that a call of that name raises."""
    return Unsupported(f"{name} is not offered by Talweg: {remedy}")
