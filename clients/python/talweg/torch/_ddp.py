# SPDX-License-Identifier: Apache-2.0
"""A communication hook for torch's DistributedDataParallel."""

# No `from __future__ import annotations` here: DistributedDataParallel compares a hook's annotations
# with the types themselves.

import queue
import threading
from typing import Any, Optional

import torch
import torch.distributed as dist

from talweg import _client
from talweg._client import Client, Handle, Op
from talweg.torch._tensors import finish, start


class _Completer:
    """One thread that waits for rounds, in the order they were started, and fulfils futures."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queue: queue.SimpleQueue[tuple[Handle, torch.futures.Future]] = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, name="talweg-ddp", daemon=True)
        thread.start()

    def put(self, handle: Handle, future: torch.futures.Future[torch.Tensor]) -> None:
        self._queue.put((handle, future))

    def _run(self) -> None:
        while True:
            handle, future = self._queue.get()
            try:
                future.set_result(finish(self._client, handle))
            except Exception as error:  # The trainer's thread raises it from backward().
                future.set_exception(error)


_completer: Optional[_Completer] = None
_completer_lock = threading.Lock()


def _shared_completer(client: Client) -> _Completer:
    global _completer
    with _completer_lock:
        if _completer is None or _completer._client is not client:
            _completer = _Completer(client)
        return _completer


def ddp_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages DDP's gradient buckets over Talweg's ranks instead of the process group's.

        model = DistributedDataParallel(model)          # any process group, gloo for instance
        model.register_comm_hook(None, talweg.torch.ddp_hook)

    The process group must have the same ranks as the job. `state` names the model where a process
    has several (a str), else None.
    """
    client = _client.current()
    tensor = bucket.buffer()
    # DDP cuts its buckets anew after the first step, so their sizes belong to their names.
    name = f"ddp.{state or 'model'}.{bucket.index()}.{tensor.numel()}.{tensor.dtype}"
    # Backward fills the last layers' buckets first; the first layers' are needed first.
    handle = start(client, tensor, tensor, Op.AVERAGE, name, priority=bucket.index())
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    _shared_completer(client).put(handle, future)
    return future
