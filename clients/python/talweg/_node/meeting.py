# SPDX-License-Identifier: Apache-2.0
"""Lets the nodes of a job find the first one, in the way that their launcher offers."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import secrets
import socket
import struct
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from talweg._node import pmix, slurm
from talweg.errors import InvalidArgument, TalwegError, Timeout

_SIOCGIFADDR = 0x8915
# Nodes that have no other way try some of these ports in turn. The kernel gives out higher ones.
_PORT_MIN, _PORT_MAX = 20000, 32000
_PORT_COUNT = 8
_SECRET_BYTES_MIN = 32

Address = tuple[str, int]


class Meeting:
    """One node's way to the others. The node's first rank calls it, on one thread."""

    # The ports on one of which the first node's keeper listens. Without any it takes a free port.
    ports: Sequence[int] = ()
    # The socket of the munge that hands out the secret; "" is the usual one, and None is no munge.
    munge: str | None = None
    # Whether a later find() may return another answer.
    changes = False

    def secret(self) -> str:
        """Returns the job's secret, for the first node's keeper."""
        return secrets.token_hex(32)

    def announce(self, port: int, secret: str) -> None:
        """Tells the other nodes where the keeper is. The first node calls it."""

    def find(self, timeout_s: float) -> tuple[list[Address], str] | None:
        """Returns the addresses of the first node's keeper, and the job's secret.

        Returns None if the first node has not told them yet.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Frees what the meeting needs, when the nodes have met."""


def _write(port: int, secret: str) -> str:
    return " ".join([secret, *(f"{host} {port}" for host in own_addresses())])


def _read(text: str) -> tuple[list[Address], str]:
    secret, *words = text.split(" ")
    return [(host, int(port)) for host, port in zip(words[::2], words[1::2])], secret


def all_say(yes: bool, store: Any, key: str, size: int, timeout_s: float) -> bool:
    """Returns whether each of `size` ranks says yes.

    They tell through a store of torch.distributed. A key serves only once. A rank that says no
    waits for nobody. Raises Timeout if nobody says no and a rank does not answer in `timeout_s`.
    """
    if not yes:
        store.set(key, "no")
    elif store.add(f"{key}.yes", 1) == size:
        store.set(key, "yes")
    try:
        store.wait([key], timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise Timeout(
            f"init_process_group: timeout after {timeout_s:g} s: fewer than {size} ranks have called "
            f"it ({error})"
        ) from None
    return bool(store.get(key) == b"yes")


class StoreMeeting(Meeting):
    """A meeting through a store of torch.distributed."""

    changes = True

    def __init__(self, store: Any, key: str) -> None:
        self._store = store
        self._key = f"talweg/{key}"

    def announce(self, port: int, secret: str) -> None:
        self._store.set(self._key, _write(port, secret))

    def find(self, timeout_s: float) -> tuple[list[Address], str] | None:
        try:
            self._store.wait([self._key], timedelta(seconds=max(timeout_s, 0.001)))
        except RuntimeError:  # Stores raise different errors. A store that is gone fails in get().
            if timeout_s > 0:
                return None
        return _read(self._store.get(self._key).decode())


def torch_store(environment: Mapping[str, str], rank: int, size: int, timeout_s: float) -> Any:
    """Returns torchrun's store, or the one that rank 0 opens. torch.distributed uses it, too."""
    from torch.distributed import TCPStore

    is_torchruns = environment.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    return TCPStore(
        environment["MASTER_ADDR"],
        int(environment["MASTER_PORT"]),
        size,
        is_master=rank == 0 and not is_torchruns,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        multi_tenant=True,
    )


class PmixMeeting(Meeting):
    """A meeting through the launcher's PMIx."""

    def __init__(self, key: str) -> None:
        self._client = pmix.Pmix()
        self._key = f"talweg.{key}"

    def announce(self, port: int, secret: str) -> None:
        self._client.put(self._key, _write(port, secret))

    def find(self, timeout_s: float) -> tuple[list[Address], str] | None:
        text = self._client.get_of_rank_0(self._key, timeout_s)
        return _read(text) if text is not None else None

    def close(self) -> None:
        self._client.close()


class FixedMeeting(Meeting):
    """A meeting at known addresses, with a secret that the nodes have or that munge hands out."""

    def __init__(
        self, hosts: Sequence[str], ports: Sequence[int], secret: str, munge: str | None = None
    ) -> None:
        self._hosts = hosts
        self.ports = ports
        self._secret = secret
        self.munge = munge

    def secret(self) -> str:
        return self._secret if self.munge is None else super().secret()

    def find(self, timeout_s: float) -> tuple[list[Address], str] | None:
        return [(host, port) for port in self.ports for host in self._hosts], self._secret


def ports_of(job: str) -> list[int]:
    """Returns the ports on which the nodes of a job look for each other."""
    digest = hashlib.sha256(f"ports of {job}".encode()).digest()
    numbers = struct.unpack(f">{_PORT_COUNT}H", digest[: 2 * _PORT_COUNT])
    return [_PORT_MIN + number % (_PORT_MAX - _PORT_MIN) for number in numbers]


def agreed_meeting(environment: Mapping[str, str], job: str) -> Meeting | None:
    """Returns a meeting at $TALWEG_RENDEZVOUS with the secret of this user's file; None if the
    variable is not set. Raises InvalidArgument if the variable names no host.
    """
    told = environment.get("TALWEG_RENDEZVOUS", "")
    if not told:
        return None
    match = re.fullmatch(r"([\w.,-]+|\[[\da-fA-F:.]+\])(?::(\d{1,5}))?", told)
    if match is None or not 1 <= int(match[2] or 1) <= 65535:
        raise InvalidArgument(
            f"TALWEG_RENDEZVOUS is '{told}'; it must be the first node's host and a free port there, "
            "as in 10.0.0.1:7450"
        )
    hosts = match[1].strip("[]").split(",")
    ports = [int(match[2])] if match[2] else ports_of(job)
    return FixedMeeting(hosts, ports, users_secret(environment))


def slurm_meeting(environment: Mapping[str, str], job: str) -> Meeting:
    """Returns a meeting at the first host of Slurm's step, with a secret that munge hands out."""
    first = slurm.first_host(environment.get("SLURM_STEP_NODELIST", ""))
    is_here = environment.get("SLURM_PROCID") == "0"
    hosts = [] if is_here else list(dict.fromkeys([slurm.address_of(first), first]))
    return FixedMeeting(hosts, ports_of(job), "", slurm.munge_socket())


def users_secret(environment: Mapping[str, str]) -> str:
    """Returns the secret in the user's file. Raises TalwegError if there is none, or if others may
    read it.
    """
    home = environment.get("XDG_CONFIG_HOME") or f"{environment.get('HOME', '')}/.config"
    path = Path(environment.get("TALWEG_SECRET_FILE") or f"{home}/talweg/secret")
    try:
        mode = path.stat().st_mode
        text = path.read_text().strip()
    except OSError as error:
        raise TalwegError(
            f"the nodes of this job have no secret in common ({error}): make one with `talweg secret` "
            "and copy its file to every node"
        ) from None
    if mode & 0o077 or len(text) < _SECRET_BYTES_MIN:
        raise TalwegError(
            f"secret file '{path}' has mode {mode & 0o7777:04o} and {len(text)} characters; others may "
            f"not read it, and a secret has at least {_SECRET_BYTES_MIN}: run `talweg secret`"
        )
    return text


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _ipv4_of(interface: str) -> list[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:  # The interface has no such address.
            return []
    return [socket.inet_ntoa(answer[20:24])]


def _ipv6_of(interface: str) -> list[str]:
    """Returns the interface's IPv6 addresses that are valid beyond its link."""
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, scope, _, name = line.split()
            if name == interface and scope == "00":
                found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found


def own_addresses() -> list[str]:
    """Returns this host's addresses; with $TALWEG_INTERFACE, only that interface's.

    Addresses that other hosts may reach come before loopback's.
    """
    names = [name for _, name in socket.if_nameindex()]
    if os.environ.get("TALWEG_INTERFACE") in names:
        names = [os.environ["TALWEG_INTERFACE"]]
    found = [address for name in names for address in _ipv4_of(name)]
    found += [address for name in names for address in _ipv6_of(name)]
    return sorted(found, key=lambda address: address.startswith("127."))
