# SPDX-License-Identifier: Apache-2.0
"""Asks the kernel whose the TCP sockets of this host are (/proc/net/tcp).

A socket of this network namespace that is at the other end of a connection, or at an address where
daemons are to connect, has to belong to this user, or to root.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = "0A"
_ANY = ("0.0.0.0", "::")
_V4_IN_V6 = b"\0" * 10 + b"\xff\xff"
_NOBODY = "nobody"  # A socket that no process has, or has yet. The table shows it as root's.


def _packed(host: str) -> bytes:
    """Returns an address's bytes; IPv4 in the shorter form. Raises ValueError if it is none."""
    packed = ipaddress.ip_address(host.partition("%")[0]).packed
    return packed[12:] if packed.startswith(_V4_IN_V6) else packed


def _shown(packed: bytes, port: int) -> str:
    """Returns an address as the tables have it: the words of its bytes as this CPU reads them."""
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"


def _forms(host: str, port: int) -> set[str]:
    """Returns the forms of an address in the tables: a socket for IPv6 can serve IPv4, too."""
    packed = _packed(host)
    wider = [_V4_IN_V6 + packed] if len(packed) == 4 else []
    return {_shown(each, port) for each in [packed, *wider]}


def _entries() -> Iterator[tuple[str, str, str, str]]:
    """Yields the local address, the other one, the state and the user of each socket.

    Raises OSError if the kernel shows none.
    """
    for path in _TABLES:
        if path != _TABLES[0] and not os.path.exists(path):
            continue  # This host has no IPv6.
        for line in Path(path).read_text().splitlines()[1:]:
            words = line.split()
            user = f"user {words[7]}" if words[9] != "0" else _NOBODY
            yield words[1], words[2], words[3], user


def _stranger(users: set[str]) -> str | None:
    return min(users - {f"user {os.getuid()}", "user 0"}, default=None)


def is_own(host: str) -> bool:
    """Whether this host has the address. A name is none."""
    try:
        is_v4 = len(_packed(host)) == 4
        family = socket.AF_INET if is_v4 else socket.AF_INET6
        plain = str(ipaddress.ip_address(_packed(host)))
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((plain, 0))
    except (ValueError, OSError):
        return False
    return True


def stranger_at(connection: socket.socket) -> str | None:
    """Returns who has the other end of a connection, if that is a socket of this host that belongs
    neither to this user nor to root; else None.

    Call it when the other end has sent something: before that it may not have been accepted, and
    nobody has it.
    """
    host, port = connection.getpeername()[:2]
    if not is_own(host):
        return None
    there, here = _forms(host, port), _forms(*connection.getsockname()[:2])
    try:
        users = {user for local, other, _, user in _entries() if local in there and other in here}
    except OSError:
        return None
    return _stranger(users)


def stranger_listens(address: str) -> str | None:
    """Returns who listens at an address "HOST:PORT" of this host if that is neither this user nor
    root, "nobody" if nobody listens there; else None, as for an address of another host.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not port.isdecimal() or not is_own(host):
        return None
    wanted = set().union(*(_forms(each, int(port)) for each in (host, *_ANY)))
    try:
        users = {
            user for local, _, state, user in _entries() if state == _LISTENS and local in wanted
        }
    except OSError:
        return None
    return _stranger(users or {_NOBODY})
