# SPDX-License-Identifier: Apache-2.0
"""Sends the State while all ranks wait, and compares it at all ranks: docs/elastic.md."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import numpy as np

from talweg._collectives import objects
from talweg._collectives.process_sets import ProcessSet
from talweg._elastic.lanes import U64_MAX, are_alike, greatest, tell_alike, tell_times, times_count
from talweg._elastic.replay import Replay
from talweg.errors import Aborted, InvalidArgument, Mismatch

if TYPE_CHECKING:
    from talweg._client import Client
    from talweg._digest import Hashing

# Where the ranks' own digests begin in the round that compares them.
_DIGESTS = 4
# What a rank says there if the source could not pickle its State. A rank that cannot take the State
# says the largest number minus its own.
_SOURCE_FAILED = 1


class Fault(Enum):
    """Why a rank has not got the state."""

    SOURCE_LOST = "the source is gone"
    SOURCE_FAILED = "the source could not pickle it"
    TAKER_FAILED = "this rank could not take it over, such as a value whose class raised an error"


@dataclass(frozen=True)
class Failure:
    """Why this rank could not give or take the state, and the error that this rank raises then."""

    fault: Fault
    error: Exception


class StateHolder(Protocol):
    """A state that can be sent to a joiner, such as talweg.State."""

    def pack(self) -> Sequence[bytes | memoryview]: ...

    def unpack(self, payload: memoryview) -> None: ...

    def digest(self) -> int: ...

    def counters(self) -> int | None:
        """Returns a digest of the whole numbers, texts and samplers' places, which may differ from
        rank to rank. None: nobody looks at them.
        """

    def hashing(self) -> Hashing | None:
        """Returns a Hashing that makes digest() on a thread beside the next step.

        Returns None if the values may change at any time.
        """

    def replay(self) -> Replay | None:
        """Returns the Replay by which a joiner catches up beside the steps; None if it takes the
        whole state.
        """

    @property
    def balanced_samplers(self) -> int:
        """How many samplers deal batches in proportion to ranks' speeds."""

    def own_times(self) -> Sequence[tuple[int, int]]:
        """Returns what this rank tells of its speed at the end of a step, for each such sampler:
        ElasticSampler.take_times(). Called once a step.
        """

    @property
    def digest_steps(self) -> int:
        """How many steps pass between two comparisons of digests. With 0 ranks compare them only in
        steps in which they must.
        """


def told(digest: int) -> int:
    """Returns a digest in the form that ranks tell: it is never 0."""
    return (digest & (2**62 - 1)) | 2**62


def digest_of(holder: StateHolder) -> int:
    """Returns the digest of `holder` in that form."""
    return told(holder.digest())


def tell_counters(holder: StateHolder | None, has_joined: bool, lanes: np.ndarray) -> int:
    """Tells this rank's counters at the end of a joiner's first step. Returns them; 0: none."""
    counters = holder.counters() if holder is not None else None
    if counters is None:
        return 0
    own = told(counters)
    tell_alike(lanes, 2 * has_joined, own)
    return own


def warn_of_counters(own: int, lanes: np.ndarray) -> None:
    """Warns a joiner, which has told its `own` counters, if all survivors have the same others."""
    if int(lanes[0]) in (0, own) or not are_alike(lanes, 0):
        return
    warnings.warn(
        "after its first step this rank, which has joined, has other numbers or texts in its State "
        "than those that were there before, or its samplers are elsewhere. A joiner gets them as they "
        "are in end_step(): change them before that call, as end_step() is the last call of a step. "
        "It goes on at the beginning of the program's function: let the State say what comes next",
        RuntimeWarning,
        stacklevel=2,
    )


def exchange_times(client: Client, times: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Tells all ranks these times, and returns what all have told, in a row for each sampler."""
    rows: np.ndarray = np.zeros((len(times), times_count(client.size)), np.uint64)
    tell_times(rows, client.rank, times)
    greatest(client, f"talweg.times{len(times)}", rows.reshape(-1))
    told: list[list[int]] = rows.tolist()
    return told


def transfer(client: Client, holder: StateHolder | None, root: int, takes: bool) -> Failure | None:
    """Brings the root's state to all ranks that take it. The others only hear who these are.

    Returns why this rank could not give or take the state: compare() tells all ranks of that.
    """
    takers: np.ndarray = np.zeros(client.size, np.uint64)
    takers[client.rank] = takes
    greatest(client, f"talweg.takers{client.connection.view_suffix}", takers)
    group = {root, *(rank for rank, does in enumerate(takers) if does)}
    if client.rank not in group or len(group) == 1:
        return None
    is_source = root == client.rank
    payload = objects.Payload()
    if is_source and holder is not None:
        payload = objects.Payload.of(holder.pack)
    try:
        # A program may begin again in a view, and another rank be the source.
        name = f"talweg.state.{root}"
        data = objects.broadcast_bytes(client, payload, root, name, ProcessSet(group))
    except Aborted as error:
        return Failure(Fault.SOURCE_LOST, error)
    except Exception as error:
        # The source's pickling may raise any error. The others wait for it in compare().
        if error is payload.failure or isinstance(error, InvalidArgument):
            return Failure(Fault.SOURCE_FAILED, error)
        raise
    if not takes or is_source or holder is None:
        return None
    try:
        holder.unpack(data.data)
    except Exception as error:  # A value's class may raise any error.
        return Failure(Fault.TAKER_FAILED, error)
    return None


def compare(
    client: Client,
    holder: StateHolder | None,
    failure: Failure | None = None,
    digest: Callable[[], int] | None = None,
    root: int = 0,
    leave: Callable[[], None] | None = None,
) -> None:
    """Raises Mismatch at all ranks if the digests of those that hold state differ.

    `digest` returns the holder's digest, if that is made already. `failure` is what transfer() has
    returned for the state of `root`. A joiner calls `leave` to be out of the job. If there is a
    failure at any rank, raises:

    | fault | at the rank that has it | at the others |
    |---|---|---|
    | SOURCE_LOST | Aborted | Aborted |
    | SOURCE_FAILED | its error | InvalidArgument, which names the source |
    | TAKER_FAILED at a rank that is no joiner | its error | InvalidArgument, which names that rank |
    | TAKER_FAILED at a joiner | its error, out of the job | Aborted |
    """
    lanes: np.ndarray = np.zeros(_DIGESTS + client.size, np.uint64)
    if holder is not None and failure is None:
        try:
            own = digest_of(holder) if digest is None else told(digest())
        except Exception as error:  # A value's class may raise any error.
            failure = Failure(Fault.TAKER_FAILED, error)
        else:
            tell_alike(lanes, 0, own)
            lanes[_DIGESTS + client.rank] = own
    is_out = False
    if failure is not None:
        is_out = failure.fault is Fault.TAKER_FAILED and leave is not None
        lanes[2] = is_out or failure.fault is Fault.SOURCE_LOST
        if failure.fault is Fault.SOURCE_FAILED:
            lanes[3] = _SOURCE_FAILED
        elif not lanes[2]:
            lanes[3] = U64_MAX - client.rank
    greatest(client, f"talweg.digest{client.connection.view_suffix}", lanes)
    if lanes[3]:
        text = _text_of_failure(client, failure, int(lanes[3]), root)
        raise failure.error if failure is not None else InvalidArgument(text)
    if is_out and leave is not None and failure is not None:
        leave()
        raise failure.error
    if lanes[2]:
        raise Aborted("the state has not reached all ranks that need it")
    if are_alike(lanes, 0):
        return
    by_rank = {rank: int(lane) for rank, lane in enumerate(lanes[_DIGESTS:]) if lane}
    digests = list(by_rank.values())
    usual = max(digests, key=digests.count)  # If several are as usual, the lowest rank's.
    others = [rank for rank, each in by_rank.items() if each != usual]
    raise Mismatch(
        f"ranks {others} hold other parameters than the others, of which the digest is "
        f"{usual:x}: end them, and start them again, so that they begin with the state of "
        "the others"
    )


def _text_of_failure(client: Client, failure: Failure | None, told: int, root: int) -> str:
    """Returns what ranks without a failure of their own say. All ranks call it."""
    if told == _SOURCE_FAILED:
        return (
            f"the State of rank {root}, which gives it to others, cannot be pickled: that rank's "
            "error says why"
        )
    rank, own = U64_MAX - told, b""
    if failure is not None:
        own = f"{type(failure.error).__name__}: {failure.error}".encode()
    said = objects.broadcast_bytes(client, objects.Payload(own), rank, f"talweg.untaken.{rank}")
    return (
        f"rank {rank} cannot use the State that rank {root} gives ({said.tobytes().decode()}): start "
        "the same program at every rank, with values that load what others have"
    )
