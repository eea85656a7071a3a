# SPDX-License-Identifier: Apache-2.0
"""Parts of Horovod that Talweg does not offer. Importing one raises an error with the remedy."""

from __future__ import annotations


def missing(name: str, remedy: str) -> ModuleNotFoundError:
    """Returns the error that the module of that name raises when it is imported."""
    return ModuleNotFoundError(f"{name} is not offered by Talweg: {remedy}", name=name)
