# SPDX-License-Identifier: Apache-2.0
"""What each rank has called, and where, for the texts of errors."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from talweg._collectives.call_channel import CallChannel
from talweg._collectives.channels import Steps, Wait
from talweg._collectives.kinds import OWN, SEND, WHOLE, Given
from talweg._collectives.words import Caller, Said
from talweg._declaration import DType, Op
from talweg.errors import TalwegError

# For a call that does not fit: how many bytes of text a rank tells, how many of them name the
# function, and how many seconds the others wait for the text.
_SITE_BYTES, _CALL_BYTES, _SITES_S = 512, 64, 1.0


def callers(channel: CallChannel, given: Given, told: Sequence[Said]) -> Steps:
    """Returns what each rank of the group has called, and where, after calls that do not fit.

    If that is not known of a rank, it is taken to make the same call as this rank, provided that
    its call is of the same kind. A send and a recv are of one kind, and are not the same call.
    """
    tellings = yield from _exchange_callers(channel, given)
    own = "" if given.kind is SEND else given.call
    unknown = [Caller(own if said.kind is given.kind else "") for said in told]
    return [
        Caller(telling.call or other.call, telling.site)
        for telling, other in zip(tellings, unknown)
    ] or unknown


def _exchange_callers(channel: CallChannel, given: Given) -> Steps:
    """Returns what each rank tells of its call; nothing for a rank that tells nothing.

    A rank may be busy elsewhere, because its call needs nobody until it is waited for. So the
    others wait only for a moment. A rank tells before it begins its next call of the channel, so
    its text about the last call is there by the next call at the latest.
    """
    sites, size = channel.sites, channel.group.size
    if sites.has_failed:
        return []
    every: np.ndarray = np.zeros(size * _SITE_BYTES, np.uint8)
    place = (int(every.ctypes.data), every.size, False)
    until = time.monotonic() + _SITES_S
    try:
        tensor = channel.declare(
            f"{channel.name}.sites", DType.U8, Op.BROADCAST, (OWN, WHOLE), 0, _SITE_BYTES
        )
        if sites.left_round:
            yield Wait(tensor, sites.left_round, *place, until=until)
        own = _text_of(given)
        round_ = channel.client.connection.push_parts(tensor, own, [len(own)])
        sites.left_round = round_
    except TalwegError:
        sites.has_failed = True
        return []
    try:
        yield Wait(tensor, round_, *place, until=until)
    except TalwegError:
        return []
    sites.left_round = 0
    rows = [row.tobytes() for row in every.reshape(size, _SITE_BYTES)]
    return [Caller(_read(row[:_CALL_BYTES]), _read(row[_CALL_BYTES:])) for row in rows]


def _text_of(given: Given) -> bytes:
    site = given.site
    call = (site.call if site is not None else "") or given.call
    where = "" if site is None else str(site)
    text = call.encode()[:_CALL_BYTES].ljust(_CALL_BYTES, b"\0")
    text += where.encode()[-(_SITE_BYTES - _CALL_BYTES) :]
    return text.ljust(_SITE_BYTES, b"\0")


def _read(text: bytes) -> str:
    return text.rstrip(b"\0").decode(errors="replace")
