# SPDX-License-Identifier: Apache-2.0
"""A communication hook for torch's DistributedDataParallel."""

# No `from __future__ import annotations` here: DistributedDataParallel compares a hook's annotations
# with the types themselves.

import contextlib
import functools
import gc
import itertools
import os
import queue
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch
import torch.distributed as dist

from talweg import _client
from talweg._client import Client, Handle
from talweg._collectives.objects import all_gather_object
from talweg._declaration import shapes_signature
from talweg.errors import AgentLost, InvalidArgument, Mismatch, TalwegError
from talweg.torch._backward import current_node, when_it_ends
from talweg.torch._buckets import Bucket
from talweg.torch._tensors import finish

# The shapes of the gradients in a bucket.
_Shapes = tuple[tuple[int, ...], ...]


@functools.lru_cache(maxsize=1024)
def _signature(shapes: _Shapes) -> int:
    return shapes_signature(shapes)


def _said(shape: Optional[tuple[int, ...]]) -> str:
    return "not there" if shape is None else f"of shape {list(shape)}"


class _Part(NamedTuple):
    """What one round averages: a bucket, or one gradient of it."""

    name: str
    tensor: torch.Tensor
    shapes: _Shapes


class _Started(NamedTuple):
    """The rounds of a bucket, and the future of their averages."""

    handles: list[Handle]
    buffer: torch.Tensor
    future: torch.futures.Future


class _Completer:
    """Takes rounds in the order in which they were started, and fulfils their futures.

    If a CPU is left over, a thread does this beside backward. If every CPU has a rank that
    computes, the thread would only be in the way. Then backward's own thread does it when backward
    ends, in a callback of the autograd engine. That callback is queued before the callback in which
    DistributedDataParallel waits for the futures. This order holds for buckets that a gradient
    completes. The thread takes the others: buckets of unused parameters, and of the first pass over
    a static graph.

    backward raises a round's failure after DistributedDataParallel has ended the pass. That end
    takes the value of each future as a tensor, and prepares the model for the next pass.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._has_thread = cpus_are_left(client)
        self._buckets: dict[str, Bucket] = {}
        self._pending: dict[str, _Started] = {}
        self._failures: dict[str, Exception] = {}  # Failures since a bucket's last start.
        self._shapes: dict[str, _Shapes] = {}  # Keyed by part.
        # None ends the thread.
        self._queue: queue.SimpleQueue[Optional[_Started]] = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        _client.call_when_replaced(self._end)

    def _end(self, _: Client) -> None:
        """Ends, because another client has replaced this one. Frees all that holds its memory."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()  # The round that the thread waits for has failed.
        _forget(self)

    def start(
        self, name: str, buffer: torch.Tensor, priority: int, parts: Sequence[_Part]
    ) -> torch.futures.Future:
        """Starts the averages of the parts of bucket `name`, which make up `buffer`."""
        if name in self._pending:  # The backward pass of the pending round has failed.
            self._take(name)
        # The future of a CUDA tensor makes its waiter's stream wait for the result.
        devices = [buffer.device] if buffer.is_cuda else None
        future: torch.futures.Future = torch.futures.Future(devices=devices)
        started = _Started([], buffer, future)
        try:
            for part in parts:
                started.handles.append(self._start_part(part, priority))
        except AgentLost as error:  # The model is used again with the next agent.
            self._failures[name] = error
            future.set_result(buffer)
            when_it_ends(lambda: when_it_ends(self._raise_failure))
            return future
        if self._has_thread or current_node() is None:
            self._hand_over(started)
        else:
            self._pending[name] = started
            # Each bucket queues it, because each of several nested backward passes has its own end.
            when_it_ends(self._take_all)
        # torch refuses it outside of backward. Then a later bucket queues the call.
        with contextlib.suppress(RuntimeError):
            when_it_ends(lambda: when_it_ends(self._raise_failure))
        return future

    def _start_part(self, part: _Part, priority: int) -> Handle:
        self._failures.pop(part.name, None)
        self._shapes[part.name] = part.shapes
        bucket = self._buckets.get(part.name)
        if bucket is None:
            bucket = self._buckets[part.name] = Bucket(self.client, part.name)
        return bucket.start(part.tensor, priority, _signature(part.shapes))

    def _raise_failure(self) -> None:
        failures, self._failures = self._failures, {}
        for failure in failures.values():
            raise failure

    def _take_all(self) -> None:
        for name in list(self._pending):
            self._take(name)

    def _take(self, name: str) -> None:
        self._fulfil(self._pending.pop(name))

    def _fulfil(self, started: _Started) -> None:
        for handle in started.handles:
            try:
                finish(self.client, handle)
            except Mismatch as error:
                self._failures[handle.name] = self._named(handle.name, error)
            except Exception as error:  # backward() raises it in the trainer's thread.
                self._failures[handle.name] = error
        started.future.set_result(started.buffer)

    def _named(self, name: str, mismatch: Mismatch) -> Mismatch:
        """Returns a Mismatch, the same at all ranks, that says which gradient differs; `mismatch`
        itself if that cannot be told.
        """
        try:
            every = all_gather_object(self.client, self._shapes[name], f"{name}.shapes")
        except TalwegError:
            return mismatch
        for rank, shapes in enumerate(every):
            for number, (first, other) in enumerate(itertools.zip_longest(every[0], shapes)):
                if first != other:
                    return Mismatch(
                        f"ddp_hook: gradient {number} of bucket '{name}' is {_said(first)} at rank "
                        f"0, but {_said(other)} at rank {rank}: give DistributedDataParallel the "
                        "same model at all ranks"
                    )
        return mismatch

    def _hand_over(self, started: _Started) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="talweg-ddp", daemon=True)
            self._thread.start()
        self._queue.put(started)

    def _run(self) -> None:
        while (started := self._queue.get()) is not None:
            self._fulfil(started)
            del started  # It would keep its client until the next round comes.


def cpus_are_left(client: Client) -> bool:
    """Whether each rank of the node has a CPU besides the one that runs its backward."""
    return len(os.sched_getaffinity(0)) >= 2 * client.local_size


_completer: Optional[_Completer] = None
_completer_lock = threading.Lock()


def _shared_completer(client: Client) -> _Completer:
    global _completer
    with _completer_lock:
        if _completer is None or _completer.client is not client:
            _completer = _Completer(client)
        return _completer


def _forget(completer: _Completer) -> None:
    global _completer
    with _completer_lock:
        if _completer is completer:
            _completer = None


class _Numbers:
    """The numbers of one model's parameters, in the order of its first backward pass.

    DDP's first buckets are the same at all ranks and in all processes. So a joiner, which makes its
    first pass when the others have cut their buckets anew, gives its parameters the same numbers.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._found: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._next = 0
        self._are_all_found = False

    def of(self, parameters: Sequence[torch.Tensor], is_last: bool) -> list[int]:
        """Returns the numbers of the parameters of a bucket.

        Raises InvalidArgument if they are of another model, and the first one lives: a joiner,
        which has not had that one, would give other numbers.
        """
        if not all(map(self._knows, parameters)):
            self._forget_dead()
            if self._found and self._are_all_found:
                gc.collect()
                self._forget_dead()
            if not self._found:  # Another model has the name now.
                self._next, self._are_all_found = 0, False
            elif self._are_all_found:
                raise InvalidArgument(
                    f"ddp_hook: this process has two models under the name '{self._model}', and "
                    "ranks that enter later could not tell their gradients apart: register each "
                    'with a name of its own, model.register_comm_hook("name", '
                    "talweg.torch.ddp_hook), or drop the first one before the second's first step"
                )
        self._are_all_found |= is_last
        return [self._number(parameter) for parameter in parameters]

    def _knows(self, parameter: torch.Tensor) -> bool:
        known = self._found.get(id(parameter))
        return known is not None and known[0]() is parameter

    def _forget_dead(self) -> None:
        self._found = {key: each for key, each in self._found.items() if each[0]() is not None}

    def _number(self, parameter: torch.Tensor) -> int:
        if not self._knows(parameter):
            self._found[id(parameter)] = (weakref.ref(parameter), self._next)
            self._next += 1
        return self._found[id(parameter)][1]


_numbers: dict[str, _Numbers] = {}  # Keyed by model. They outlive an agent.


def _gradients_of(model: str, bucket: dist.GradBucket) -> list[_Part]:
    """Returns a part for each gradient, whatever bucket it is in."""
    parameters = bucket.parameters()
    numbers = _numbers.setdefault(model, _Numbers(model)).of(parameters, bucket.is_last())
    buffer = bucket.buffer()
    sizes = [parameter.numel() for parameter in parameters]
    # A sparse gradient is alone in its bucket.
    tensors = buffer.split(sizes) if len(parameters) > 1 else (buffer,)
    # Another model may have the name later, and other gradients.
    return [
        _Part(
            f"ddp.{model}.gradient.{number}.{tensor.numel()}.{tensor.dtype}",
            tensor,
            (tuple(parameter.shape),),
        )
        for number, parameter, tensor in zip(numbers, parameters, tensors)
    ]


def ddp_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages DDP's gradient buckets over Talweg's ranks, not over the process group's.

        model = DistributedDataParallel(model)          # any process group, gloo for instance
        model.register_comm_hook(None, talweg.torch.ddp_hook)

    The process group must have the same ranks as the job, or this rank alone. If nodes may come and
    go, each gradient has a round of its own, because the DDP of a rank that enters has other
    buckets at first. Otherwise a bucket on the CPU is summed in place: torch moves it into shared
    memory, so a process that is forked later sees zeros there. `state` is None, or a str that names
    the model if a process has several. If nodes may come and go, a second model under a name raises
    InvalidArgument while the first lives.
    If a round has failed, backward() raises the error when it ends, and the gradients are undefined.
    Ranks compare the gradients' shapes. They cannot compare the parameters' names: torch hands a
    hook the parameters alone, which do not know their names. So models whose parameters have equal
    shapes and other names average gradients that do not belong together.
    """
    if state is not None and not isinstance(state, str):
        raise InvalidArgument(
            f"ddp_hook's state is a {type(state).__name__}; register it with None, or with the "
            "model's name where a process has several: "
            "model.register_comm_hook(None, talweg.torch.ddp_hook)"
        )
    if isinstance(bucket, tuple):
        raise InvalidArgument(
            'ddp_hook gets no bucket, because torch._dynamo.config.optimize_ddp is "python_reducer": '
            'set another one, or use the backend "talweg" without a hook'
        )
    client = _client.current()
    model = state or "model"
    buffer = bucket.buffer()
    # DDP makes new buckets after the first step, so a bucket's name contains its size.
    name = f"ddp.{model}.{bucket.index()}.{buffer.numel()}.{buffer.dtype}"
    if client.nodes_change:
        parts = _gradients_of(model, bucket)
    else:
        # Each rank may have a process group of its own, so torch may not have compared the models.
        shapes = tuple(tuple(parameter.shape) for parameter in bucket.parameters())
        parts = [_Part(name, buffer, shapes)]
    # Backward fills the last layers' buckets first. The next step needs the first layers first.
    return _shared_completer(client).start(name, buffer, bucket.index(), parts)
