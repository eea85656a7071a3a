# SPDX-License-Identifier: Apache-2.0
"""This host's addresses by network interface, for programs that use Horovod's. Needs psutil."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Collection
from typing import Any

__all__ = ["NoValidAddressesFound", "local_addresses"]


psutil: Any = importlib.import_module("psutil")


class NoValidAddressesFound(Exception):
    """None of the wanted network interfaces is there."""


def local_addresses(nics: Collection[str] | None = None, port: int | None = None) -> dict[str, Any]:
    """Returns the IPv4 addresses of this host, or of its interfaces `nics` alone, by interface.

    With `port` each is a pair of address and port. Raises NoValidAddressesFound if there is none.
    """
    found: dict[str, Any] = {}
    known = psutil.net_if_addrs()
    for nic, addresses in known.items():
        if nics and nic not in nics:
            continue
        own = [each.address for each in addresses if each.family == socket.AF_INET]
        if own:
            found[nic] = own if port is None else [(address, port) for address in own]
    if not found and nics:
        raise NoValidAddressesFound(
            "No available network interface found matching user provided interfaces "
            f"{nics}, existing nics: {list(known)}"
        )
    return found
