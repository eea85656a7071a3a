# SPDX-License-Identifier: Apache-2.0
"""Gives torch.distributed a store and a rank where the launcher sets none of torch's variables.

The ranks join Talweg's job first, which knows how the launcher's nodes meet. Rank 0 then opens a
store, and tells the others its addresses through the job.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import talweg
from talweg._node.meeting import own_addresses
from talweg.errors import TalwegError
from talweg.torch._uncompiled import leave_package_uncompiled

leave_package_uncompiled()

_TOKEN = "talweg.store"
# How long another host may take to accept a connection, and a store to answer.
_TRY_S = 10.0

_Met = tuple[Any, int, int]


def meet(
    torchs: Callable[..., Iterator[_Met]], url: str, timeout: timedelta, **kwargs: Any
) -> Iterator[_Met]:
    """Yields a store of all ranks, this rank, and their number, as torch's handlers do.

    `torchs` is torch's handler of `env://`. It opens the store if the environment says where.
    """
    talweg.init(timeout_s=timeout.total_seconds())
    rank, size = talweg.rank(), talweg.size()
    if os.environ.get("MASTER_ADDR") and os.environ.get("MASTER_PORT"):
        join = "&" if "?" in url else "?"
        found = f"{url}{join}rank={rank}&world_size={size}"
        yield from torchs(found, timeout=timeout, **kwargs)
        return
    yield _agreed_store(rank, size, timeout), rank, size
    raise RuntimeError("ranks of Talweg's job meet once for each process group")


def _agreed_store(rank: int, size: int, timeout: timedelta) -> Any:
    if rank == 0:
        # Port 0 is any free one.
        store = dist.TCPStore("localhost", 0, size, True, timeout, wait_for_workers=False)
        token = secrets.token_hex(16)
        store.set(_TOKEN, token)
        talweg.broadcast_object((own_addresses(), store.port, token), 0, _TOKEN)
        return store
    hosts, port, token = talweg.broadcast_object(None, 0, _TOKEN)
    if rank == talweg.local_rank():  # Rank 0 is on this host, as ranks are counted node by node.
        hosts = ["127.0.0.1", *hosts]
    tried = []
    for host in dict.fromkeys(hosts):
        try:
            store = _store_at(host, port, size, token, timeout)
        except (OSError, RuntimeError) as error:
            tried.append(f"{host}: {error}")
        else:
            return store
    raise TalwegError(
        f"init_process_group: this rank cannot reach rank 0's store at port {port} "
        f"({'; '.join(tried)}): let hosts of the job connect to each other, or set MASTER_ADDR and "
        "MASTER_PORT to rank 0's host and a port there that all ranks reach"
    )


def _store_at(host: str, port: int, size: int, token: str, timeout: timedelta) -> Any:
    """Returns rank 0's store. Raises OSError or RuntimeError if it is not there: another host may
    have the same address in a network of its own.
    """
    socket.create_connection((host, port), _TRY_S).close()
    short = min(timeout, timedelta(seconds=_TRY_S))
    store = dist.TCPStore(host, port, size, False, short, wait_for_workers=False)
    store.wait([_TOKEN], short)
    if store.get(_TOKEN).decode() != token:
        raise OSError("another store answers there")
    store.set_timeout(timeout)
    return store
