# SPDX-License-Identifier: Apache-2.0
"""The state that all calls of one process group share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from talweg._collectives.call_channel import CallChannel
from talweg._collectives.process_sets import Group
from talweg.errors import Aborted, InvalidArgument, TalwegError
from talweg.torch._c10d_tensors import said
from talweg.torch._callbacks import Callbacks
from talweg.torch._kept import KeptWorks
from talweg.torch._lanes import Lane
from talweg.torch._whereabouts import Whereabouts


class GroupCalls:
    """The calls of the group of `ranks`, which has `lane`, and meets at torch's `store`."""

    def __init__(self, ranks: Sequence[int], lane: Lane, store: Any) -> None:
        self.count = 0
        self.client = lane.client
        self.ranks = ranks  # Their numbers in the job.
        self.whereabouts = self.client.companion(Whereabouts)
        if len(ranks) == self.client.size:
            self.whereabouts.use(store)
        self._store = store
        self._lane = lane
        self._channel = lane.channel()
        self.kept = KeptWorks()
        self.callbacks = Callbacks(self.client.completions.call)
        self._view = self.client.connection.view_suffix
        self._is_destroyed = False

    @property
    def channel(self) -> CallChannel:
        """The channel of the calls of all ranks, except for calls in callbacks."""
        return self._channel

    def channel_here(self) -> CallChannel:
        """Returns the channel for a call that this thread makes. Callbacks have their own."""
        name = self.callbacks.channel_name()
        return self.channel_of(name, self._lane.group) if name else self._channel

    def channel_of(self, name: str, group: Group) -> CallChannel:
        """Returns the lane's channel of that name for `group`, which may be some of the ranks."""
        channel = self._lane.channel(name, group)
        if self._channel.aborted is not None:
            channel.abort(self._channel.aborted)
        return channel

    @property
    def are_over(self) -> bool:
        """Whether the group is destroyed, or its ranks have other numbers."""
        return self._is_destroyed or self.client.connection.view_suffix != self._view

    def begin(self, operation: str) -> None:
        """Counts a call. Raises InvalidArgument if the group makes no more calls.

        Raises Forked in a fork, which has copies of the locks, but none of the threads.
        """
        if self.client.is_inherited:
            self.client.connection.check_health()
        if self._is_destroyed:
            raise InvalidArgument(
                f"{operation}: this process group is destroyed: make another one, and wrap models "
                "anew"
            )
        if self.are_over:
            raise InvalidArgument(
                f"{operation}: ranks have come or gone since this process group was made, and have "
                "other numbers: call destroy_process_group() and init_process_group() where "
                "end_step() says so, and wrap models anew"
            )
        self.count += 1
        if self.whereabouts.is_stale:
            self.whereabouts.tell_end()

    def text_of(self, operation: str, tensors: Sequence[torch.Tensor]) -> str:
        """Returns a text for people that says what call it is."""
        shown = ", ".join(said(tensor) for tensor in tensors[:4])
        if len(tensors) > 4:
            shown += f" and {len(tensors) - 4} more"
        text = f"rank {self.client.rank}: {operation}" + (f" of {shown}" if shown else "")
        if self._lane.group.listed:
            text += f" in the process group of ranks {self.ranks}"
        return text

    def destroy(self) -> None:
        """Gives the lane back, for another group of the ranks. A second call does nothing."""
        if not self._is_destroyed:
            self._is_destroyed = True
            self.whereabouts.let_go(self._store)
            self._lane.let_go()

    def abort(self) -> None:
        """Ends this rank's calls with Aborted. Later calls end so too."""
        is_of_some = self._lane.group.listed
        what = f"the process group of ranks {self.ranks}" if is_of_some else "the process group"
        self.end_with(
            Aborted(f"rank {self.client.rank} has aborted {what}: destroy it, and make it anew")
        )

    def end_with(self, failure: TalwegError) -> None:
        """Ends this rank's calls with `failure`. Later calls end so too."""
        # The group's own channel comes first, because channel_of() looks there for the failure.
        for channel in (self._channel, *(self._lane.channels - {self._channel})):
            channel.abort(failure)
