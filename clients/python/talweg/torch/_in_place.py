# SPDX-License-Identifier: Apache-2.0
"""Averages gradients, and gives out the averages where the ranks have summed them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from talweg import _interrupts
from talweg._client import Client, Declared, Handle
from talweg._client.handles import PushedRound
from talweg._client.in_place import Buffer
from talweg._declaration import Op
from talweg._library import native
from talweg.torch import _cuda
from talweg.torch._checks import is_in_ram
from talweg.torch._tensors import NUMBERS, start

# For a smaller gradient a copy costs less than a new tensor object.
BYTES_MIN = 64 << 10


def is_worth_it(parameter: torch.Tensor) -> bool:
    """Whether ranks sum the parameter's gradient in place. All ranks get the same answer."""
    return parameter.dtype in NUMBERS and parameter.numel() * parameter.element_size() >= BYTES_MIN


@dataclass(eq=False)
class _Round(PushedRound):
    """A round whose result is a tensor over the buffer. take() makes that tensor, of the shape of
    the gradient that is kept.
    """

    buffer: Buffer | None = None

    def take(self, connection: native.Connection, timeout_s: float | None) -> None:
        super().take(connection, timeout_s)
        if self.keep is not None and self.buffer is not None:
            self.result = _view(self.buffer, self.keep)


def _view(buffer: Buffer, like: torch.Tensor) -> torch.Tensor:
    return torch.frombuffer(buffer.memory, dtype=like.dtype).view(like.shape)


def start_average(client: Client, gradient: torch.Tensor, name: str, priority: int) -> Handle:
    """Starts the average of a gradient. The ranks have compared its shape before.

    finish() returns the tensor that takes the gradient's place: the gradient itself, or the memory
    that the ranks have summed it in. Nobody writes to that memory before the tensor's next round. A
    result that somebody still has then keeps its values.
    """
    declared = client.tensors.declared_on_host(name)
    if declared is None or declared.buffer is None or not _fits(gradient, declared):
        return start(client, gradient, gradient, Op.AVERAGE, name, priority, says_shape=False)
    buffer = declared.buffer
    if not _cuda.is_plain(gradient):
        # The gradient's elements have another order in memory, so they are copied in and out.
        buffer.claim()
        _cuda.copy(_view(buffer, gradient), gradient)

        def take() -> None:
            _cuda.copy(gradient, _view(buffer, gradient))

        return client.push_declared(declared, buffer.address, 0, priority, gradient, finish=take)
    address = gradient.data_ptr()
    if address == buffer.address:  # The gradient was accumulated onto the last average.
        return client.push_declared(declared, address, 0, priority, gradient, gradient)
    buffer.claim()
    if not buffer.gives_views:
        return client.push_declared(declared, address, address, priority, gradient, gradient)
    with _interrupts.held:  # A handle that an interrupt then drops is a round that is left.
        client.before_push(declared, address)
        round_ = client.connection.push_pull(declared.tensor, address, priority)
        client.count_push(declared.declaration)
        return _Round(client, declared.tensor, round_, declared.name, keep=gradient, buffer=buffer)


def _fits(gradient: torch.Tensor, declared: Declared) -> bool:
    dtype, count = NUMBERS.get(gradient.dtype), gradient.numel()
    return is_in_ram(gradient) and declared.declaration.is_of(dtype, count, Op.AVERAGE, 0)
