# SPDX-License-Identifier: Apache-2.0
"""push_pull of NDArrays by BytePS's signatures."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from talweg import _client
from talweg._compat.mxnet import rounds
from talweg._compat.mxnet.errors import internal
from talweg._compat.mxnet.rounds import Reduction
from talweg._declaration import Op
from talweg.byteps.common import surface
from talweg.byteps.common.surface import *  # noqa: F403
from talweg.errors import InvalidArgument, Unsupported

__all__ = [
    "byteps_declare_tensor",
    "byteps_push_pull",
]
__all__ += surface.__all__


def byteps_push_pull(
    tensor: mx.nd.NDArray,
    version: int = 0,
    priority: int = 0,
    name: str | None = None,
    is_average: bool = True,
) -> None:
    """Makes `tensor` its average, or its sum, over all ranks. Returns at once.

    Code that reads the tensor waits for the result. It raises MXNetError if ranks disagree on the
    tensor. Calls without a name are matched by their order. `version` has no effect. Averages of
    integers are rounded towards zero.
    """
    if not isinstance(version, int) or isinstance(version, bool):
        raise InvalidArgument(f"version is {version!r}; it must be a number, which has no effect")
    reduction = Reduction(Op.AVERAGE if is_average else Op.SUM)
    wire_name = None if name is None else f"byteps.{name}"
    internal(lambda: rounds.start(tensor, reduction, wire_name, priority, "byteps_push_pull"))


def byteps_declare_tensor(name: str, **kwargs: Any) -> None:
    """Does nothing: ranks agree on a tensor by name, at its first push_pull, in any order.

    `kwargs` say how BytePS compresses the tensor. Raises Unsupported if there are any.
    """
    internal(_client.current)  # Raises MXNetError before init(), as every call.
    if not isinstance(name, str):
        raise InvalidArgument(f"a tensor's name is a str, not {type(name).__name__}")
    if kwargs:
        raise Unsupported(
            f"byteps_declare_tensor('{name}'): {', '.join(sorted(kwargs))}: compression is not offered "
            "by Talweg yet: leave these out, or push float16 arrays"
        )
