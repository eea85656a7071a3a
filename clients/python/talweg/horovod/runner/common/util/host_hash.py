# SPDX-License-Identifier: Apache-2.0
"""A name for this host that others have not, for programs that use Horovod's."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from pathlib import Path

__all__ = ["host_hash"]

NAMESPACE_PATH = "/proc/self/ns"


def _namespaces() -> str:
    """Returns this process's namespaces, in which containers of one machine differ."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for link in sorted(Path(NAMESPACE_PATH).iterdir()):
            found.append(os.readlink(link))
    return " ".join(found)


def _hash(string: str) -> str:
    return hashlib.md5(string.encode()).hexdigest()


def host_hash(salt: object = None) -> str:
    """Returns the host's first name and a digest of its full name, its namespaces and `salt`."""
    name = socket.gethostname()
    salts = [str(salt)] if salt else []
    return f"{name.partition('.')[0]}-{_hash('-'.join([name, _namespaces(), *salts]))}"
