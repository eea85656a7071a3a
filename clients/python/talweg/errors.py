# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as exceptions. Every message names the thing, the value and the remedy."""

from __future__ import annotations


class TalwegError(RuntimeError):
    """Any failure that Talweg reports; the base of the others."""


class InvalidArgument(TalwegError, ValueError):
    """The call cannot be carried out as it was made."""


class WrongType(InvalidArgument, TypeError):
    """The call was given a value of a type that it does not take."""


class Unsupported(InvalidArgument):
    """The call means something, but not to this agent, for this dtype or this operation."""


class Mismatch(TalwegError):
    """Two ranks disagree on a tensor's dtype, length or operation."""

    # Whether the other calls that have the same handle are over as well, at every rank.
    ends_all = False
    # Whether the ranks agree, but the call needs one that has joined (hvd.join()).
    has_joined = False


class Busy(TalwegError):
    """The tensor has an open round: its last push_pull has not been synchronized yet."""


class JobFailed(TalwegError):
    """The job cannot go on: the message says who died, or why."""


class AgentLost(TalwegError):
    """The node's agent is gone, or is stopped."""


class NoAgent(AgentLost):
    """Nobody listens at the agent's socket: there never was an agent, or it has ended."""


class PermissionDenied(TalwegError, PermissionError):
    """The agent serves other users, or its socket may not be opened by this one."""


class RankTaken(TalwegError):
    """Another process has the wanted local rank, or all ranks of the node are taken."""


class OutOfMemory(TalwegError, MemoryError):
    """A limit of memory is reached, here, at the agent or at an aggregator; the message names it."""


class LimitReached(TalwegError):
    """Another limit is reached (tensors, ranks, descriptors); the message names it."""


class Forked(TalwegError):
    """The client belongs to the parent process: call init() in this one."""


class VersionMismatch(TalwegError):
    """Library and agent speak different major versions."""


class Aborted(TalwegError):
    """The round was given up by all ranks, for instance a broadcast whose root is gone."""


class Timeout(TalwegError, TimeoutError):
    """The wait ended at the caller's time limit; the round is still open and may be waited for."""


class GpuError(TalwegError):
    """The GPU's driver refused a call; the message names the call and the driver's reason."""


class NotSynchronized(TalwegError):
    """This rank has joined a running job, and has not got the others' state yet."""


class NotInitialized(TalwegError):
    """talweg.init() has not been called in this process."""


class Closed(NotInitialized):
    """shutdown() was called, perhaps by another thread while this one waited."""


class ProtocolError(TalwegError):
    """What answered at the agent's socket is no agent, or not one of this version."""


class InternalError(TalwegError):
    """A defect of Talweg itself: please report it with the message."""
