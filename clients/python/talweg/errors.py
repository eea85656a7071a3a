# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as exceptions. Every message names the thing, the value and the remedy."""

from __future__ import annotations


class TalwegError(RuntimeError):
    """Any failure that Talweg reports; the base of the others."""


class InvalidArgument(TalwegError, ValueError):
    """The call cannot be carried out as it was made."""


class Mismatch(TalwegError):
    """Two ranks disagree on a tensor's dtype, length or operation."""


class Busy(TalwegError):
    """The tensor has an open round: its last push_pull has not been synchronized yet."""


class JobFailed(TalwegError):
    """The job cannot go on: the message says who died, or why."""


class AgentLost(TalwegError):
    """The node's agent is gone, or was never there."""


class Forked(TalwegError):
    """The client belongs to the parent process: call init() in this one."""


class VersionMismatch(TalwegError):
    """Library and agent speak different major versions."""


class Aborted(TalwegError):
    """The round was given up by all ranks, for instance a broadcast whose root is gone."""


class Timeout(TalwegError, TimeoutError):
    """The wait ended at the caller's time limit; the round is still open and may be waited for."""


class NotInitialized(TalwegError):
    """talweg.init() has not been called in this process."""
