# SPDX-License-Identifier: Apache-2.0
"""What Horovod says of how it was built; nothing is compiled here."""

from __future__ import annotations


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """False: no operation of Horovod's own runs on a GPU."""
    return False


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether this package serves the framework."""
    return ext_base_name in ("keras", "mxnet", "tensorflow", "torch")
