# SPDX-License-Identifier: Apache-2.0
"""Horovod's exceptions."""

from __future__ import annotations

from typing import Any


class HorovodInternalError(RuntimeError):
    """A collective failed: ranks disagree, a rank has died, or init() was not called."""


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts have come or gone in an elastic job. With `skip_sync` the ranks need no sync()."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Returns the text of HorovodVersionMismatchError."""
    return (
        f"Framework {name} installed with version {installed_version} but found version {version}: "
        "install the package again beside this version"
    )


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than Horovod was built for. Talweg is built for none."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version), name=name)
        self.version = version
        self.installed_version = installed_version

    def __reduce__(self) -> Any:
        return type(self), (self.name, self.version, self.installed_version)


__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]
