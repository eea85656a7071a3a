# SPDX-License-Identifier: Apache-2.0
"""Rounds of gradients that go on without late ranks."""

from __future__ import annotations

import numpy as np
import torch

from talweg._client import Client, Handle
from talweg._declaration import Declaration, DType, Op
from talweg._exchange.adapter import Tensor


def start_patient(
    client: Client, gradient: torch.Tensor, tensor: Tensor, declaration: Declaration
) -> Handle:
    """Starts the average of a gradient in host memory; the average replaces its values.

    If the round goes on without this rank, the library adds these values to the next ones.
    """
    client.check_push(declaration)
    declared = client.tensors.declare(tensor.name, declaration, tensor.priority)
    whole = gradient.resolve_neg().contiguous()  # A negative view's memory has the other signs.

    def put_back() -> None:
        if whole is not gradient:
            gradient.copy_(whole)

    address = whole.data_ptr()
    return client.push_declared(
        declared, address, address, tensor.priority, gradient, whole, finish=put_back
    )


def start_patient_sum(
    client: Client,
    values: np.ndarray,
    name: str,
    ranks: tuple[int, ...],
    priority: int,
    patience_ms: int,
) -> Handle:
    """Starts the sum of f64 numbers, which replaces them. Late ranks are left out in the same way."""
    declaration = Declaration(
        DType.F64, values.size, Op.SUM, 0, tuple(ranks), patience_ms=patience_ms
    )
    client.check_push(declaration)
    declared = client.tensors.declare(name, declaration, priority)
    address = int(values.ctypes.data)
    return client.push_declared(declared, address, address, priority, keep=values)
