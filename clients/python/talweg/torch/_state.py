# SPDX-License-Identifier: Apache-2.0
"""Makes parameters and optimizer state equal on all ranks before training.

Parameters in host memory travel together, as one stream of bytes. The root first tells which
tensors the stream has. Otherwise hundreds of small tensors would take a round and a declaration
each, for this one broadcast. Parameters on GPUs stay where they are, and each has a round of its
own.
"""

from __future__ import annotations

import ctypes
import io
import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch

from talweg import _client
from talweg._client import Client, Handle
from talweg._collectives import objects
from talweg._collectives.lost_ranks import lost_rank
from talweg._collectives.objects import ByteStream, Payload
from talweg._declaration import Op
from talweg.errors import InvalidArgument, Mismatch, TalwegError
from talweg.torch import _cuda
from talweg.torch._checks import has_memory
from talweg.torch._tensors import finish, for_autograd, mark_changed, start

# How errors name the calls.
_PARAMETERS, _STATE = "broadcast_parameters", "broadcast_optimizer_state"


@dataclass(frozen=True)
class _Entry:
    """A tensor, as the root describes it to the other ranks."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    is_streamed: bool

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"

    def is_like(self, other: _Entry) -> bool:
        """Whether the two are alike; the devices may differ."""
        return self.dtype == other.dtype and self.shape == other.shape


def _entry_of(name: str, tensor: torch.Tensor) -> _Entry:
    if tensor.layout != torch.strided:
        raise InvalidArgument(
            f"parameter '{name}': a tensor of layout {tensor.layout} cannot be pushed: use "
            "tensor.to_dense()"
        )
    if not has_memory(tensor):
        remedy = "broadcast parameters after their initialization, at every rank"
        if hasattr(tensor, "to_local"):
            remedy = "pass its to_local(), or broadcast parameters before they are distributed"
        raise InvalidArgument(
            f"parameter '{name}' has no memory (it is {type(tensor).__name__} on '{tensor.device}'): "
            f"{remedy}"
        )
    dtype = str(tensor.dtype).replace("torch.", "")
    nbytes = tensor.numel() * tensor.element_size()
    return _Entry(name, dtype, tuple(tensor.shape), nbytes, tensor.is_cpu)


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, torch.Tensor]], root_rank: int = 0
) -> None:
    """Makes every rank's parameters the root's, byte for byte, in place.

    `params` is model.state_dict(), or model.named_parameters(). Entries of a state_dict that are no
    tensors are left alone. Raises Mismatch at every rank, which names the first entry that differs,
    if a rank's entries are not like the root's. Entries that are alike have been made equal by
    then.
    """
    client = _client.current()
    items = params.items() if isinstance(params, Mapping) else params
    tensors = [(str(name), value) for name, value in items if isinstance(value, torch.Tensor)]
    entries = [_entry_of(name, tensor) for name, tensor in tensors]
    stream, theirs = _tell(client, entries, root_rank)
    # Looked up by name, because the order may differ. Several models may use a name several times.
    own: dict[str, deque[tuple[_Entry, torch.Tensor]]] = {}
    for entry, (_, tensor) in zip(entries, tensors):
        own.setdefault(entry.name, deque()).append((entry, tensor))

    # The other ranks wait for this rank's part in all rounds, so an error must not end it early.
    failures: list[Exception] = []
    alone: list[tuple[_Entry, torch.Tensor]] = []
    for entry in theirs:
        same_name = own.get(entry.name)
        mine, tensor = same_name.popleft() if same_name else (None, None)
        if tensor is None or mine is None or not mine.is_like(entry):
            here = mine or "is not there"
            text = f"{entry} at rank {root_rank}, but {here} at rank {client.rank}"
            failures.append(_mismatch(entry.name, text))
            tensor = _stand_in(entry)
        if not entry.is_streamed:
            alone.append((entry, tensor))
            continue
        whole = _whole(tensor, stream.is_root)
        stream.carry(_memory(whole))
        if whole is not tensor and not stream.is_root:
            try:
                _cuda.copy(tensor, whole)
            except RuntimeError as failure:  # torch refuses to write to the tensor.
                failures.append(failure)
        mark_changed(tensor)
    _broadcast_alone(client, alone, root_rank)
    for same_name in own.values():
        for mine, _ in same_name:
            text = f"{mine} at rank {client.rank}, but is not there at rank {root_rank}"
            failures.append(_mismatch(mine.name, text))
    _raise_at_all(client, failures)


def _raise_at_all(client: Client, failures: list[Exception]) -> None:
    """Raises this rank's first failure. Without one, raises that of the first rank that has one."""
    own = failures[0] if failures else None
    told = "" if own is None else str(own)
    everybodys = objects.all_gather_object(
        client, (isinstance(own, Mismatch), told), "talweg.parameters.end", call=_PARAMETERS
    )
    if own is not None:
        raise own
    for rank, (is_mismatch, text) in enumerate(everybodys):
        if text:
            raise Mismatch(text) if is_mismatch else InvalidArgument(f"rank {rank}: {text}")


def _stand_in(entry: _Entry) -> torch.Tensor:
    """Returns a tensor for this rank's part in the root's rounds, if it has no such tensor."""
    dtype = getattr(torch, entry.dtype, None)  # This torch may lack a dtype of the root's torch.
    if entry.is_streamed or dtype is None:
        return torch.empty(entry.nbytes, dtype=torch.uint8, device="cpu")
    return torch.empty(entry.shape, dtype=dtype, device="cpu")


def _mismatch(name: str, text: str) -> Mismatch:
    return Mismatch(f"parameter '{name}' is {text}: build the same model at every rank")


def _tell(client: Client, entries: list[_Entry], root_rank: int) -> tuple[ByteStream, list[_Entry]]:
    """Begins the stream, in which the root tells its entries first. Returns both."""
    header = json.dumps([astuple(entry) for entry in entries]).encode()
    streamed = sum(entry.nbytes for entry in entries if entry.is_streamed)
    size = np.array([len(header)], dtype=np.int64)
    length = size.nbytes + len(header) + streamed
    stream = ByteStream(client, root_rank, f"parameters.{root_rank}", length, call=_PARAMETERS)
    stream.carry(size.view(np.uint8))
    told: np.ndarray = np.empty(int(size[0]), dtype=np.uint8)
    if stream.is_root:
        told[:] = np.frombuffer(header, dtype=np.uint8)
    stream.carry(told)
    return stream, [
        _Entry(name, dtype, tuple(shape), nbytes, is_streamed)
        for name, dtype, shape, nbytes, is_streamed in json.loads(told.tobytes())
    ]


def _whole(tensor: torch.Tensor, is_root: bool) -> torch.Tensor:
    """Returns the tensor itself if its elements lie in their order in host memory. Otherwise
    returns a copy at the root, and memory for the root's elements at other ranks.
    """
    if tensor.is_cpu and _cuda.is_plain(tensor) and not tensor.is_conj():
        return tensor
    if is_root:
        return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def _memory(tensor: torch.Tensor) -> np.ndarray:
    """Returns the bytes of a contiguous tensor. The array does not keep the tensor alive."""
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes == 0:
        return np.empty(0, dtype=np.uint8)
    memory = (ctypes.c_char * nbytes).from_address(tensor.data_ptr())
    return np.frombuffer(memory, dtype=np.uint8)


def _broadcast_alone(
    client: Client, tensors: list[tuple[_Entry, torch.Tensor]], root_rank: int
) -> None:
    """Broadcasts each tensor in a round of its own."""
    handles: dict[str, Handle] = {}
    for entry, tensor in tensors:
        if entry.nbytes == 0:
            continue
        # Two models of one program may use a name twice, and a root may change.
        name = f"parameter.{entry.name}.{entry.shape}.{entry.dtype}.{root_rank}"
        if name in handles:  # Several models in one call use the name.
            finish(client, handles.pop(name))
        handle = start(client, tensor, tensor, Op.BROADCAST, name, 0, root_rank)
        handles[name] = for_autograd(handle, tensor)
    failure: TalwegError | None = None
    for handle in handles.values():  # All are finished: an open name could not be pushed again.
        try:
            finish(client, handle)
        except TalwegError as error:
            failure = failure or error
    if failure is not None:
        raise lost_rank(failure, _PARAMETERS)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Makes every rank's optimizer state the root's: hyperparameters, step counts, moments."""
    client = _client.current()

    def saved() -> memoryview:
        buffer = io.BytesIO()
        torch.save(optimizer.state_dict(), buffer)
        return buffer.getbuffer()

    payload = Payload.of(saved) if client.rank == root_rank else Payload()
    name = f"optimizer_state.{root_rank}"
    data = objects.broadcast_bytes(client, payload, root_rank, name, call=_STATE)
    if client.rank != root_rank:
        # To host memory first, and not to the root's GPU. The optimizer moves it to its own device.
        # Hyperparameters may be any objects, such as NumPy's numbers, and a rank of the job is trusted.
        state = torch.load(io.BytesIO(data.data), map_location="cpu", weights_only=False)
        optimizer.load_state_dict(state)
    local_steps = vars(optimizer).get("_talweg_local")
    if local_steps is not None:
        local_steps.agree_anew()  # As load_state_dict() has the other ranks do.
