# SPDX-License-Identifier: Apache-2.0
"""Parts of Horovod that Talweg does not offer: importing one fails with the name of what to use."""

from __future__ import annotations


def missing(name: str, remedy: str) -> ModuleNotFoundError:
    """What the module of that name raises when it is imported."""
    return ModuleNotFoundError(f"{name} is not offered by Talweg: {remedy}", name=name)
