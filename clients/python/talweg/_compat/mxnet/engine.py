# SPDX-License-Identifier: Apache-2.0
"""Operations in MXNet's engine, through its C API: nothing is compiled.

The engine begins an operation when the arrays that it changes are complete and nobody reads them
any more, and has whoever reads them afterwards wait until the operation is over. So a gradient
leaves while backward still computes others, and no Python code waits for it. An operation that
fails has whoever reads the array raise MXNetError.

An operation is begun on one of the engine's threads for urgent work. It must not wait there: it
returns, and whoever ends it calls its Completion.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, check_call

from talweg.errors import Unsupported

if not mx.__version__.startswith("1.9."):
    raise Unsupported(
        f"this is MXNet {mx.__version__}; Talweg's module for it needs 1.9: install mxnet==1.9.1 "
        "with numpy==1.23.5"
    )


class _Context(ctypes.Structure):
    """mxnet::Context."""

    _fields_ = (("dev_type", ctypes.c_int32), ("dev_id", ctypes.c_int32))


class _OnComplete(ctypes.Structure):
    """mxnet::engine::CallbackOnComplete."""

    _fields_ = (
        ("callback", ctypes.c_void_p),
        ("engine", ctypes.c_void_p),
        ("parameter", ctypes.c_void_p),
    )


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_BEGIN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_OnComplete), ctypes.c_void_p)
_FORGET = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CPU = _Context(1, 0)
_PRIORITIZED = ctypes.c_int(3)  # FnProperty::kCPUPrioritized: not behind what backward computes.
_ERROR_BYTES = 16  # sizeof(std::runtime_error), which dmlc::Error is and adds nothing to.

IS_NAIVE = os.environ.get("MXNET_ENGINE_TYPE", "") == "NaiveEngine"
"""Whether the engine runs each operation to its end before it takes the next."""


class Completion:
    """Ends one operation, once; any thread may call it."""

    def __init__(self, on_complete: _OnComplete) -> None:
        self._on_complete = _OnComplete.from_buffer_copy(on_complete)

    def end(self, failure: Exception | None = None) -> None:
        """The operation is over; with a failure its arrays are worth nothing."""
        told = self._on_complete
        if failure is None:
            _CALLBACK(told.callback)(told.engine, told.parameter, None)
            return
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        _LIB["_ZNSt13runtime_errorC1EPKc"](error, str(failure).encode())
        _CALLBACK(told.callback)(told.engine, told.parameter, ctypes.addressof(error))
        _LIB["_ZNSt13runtime_errorD1Ev"](error)


class _Operation:
    def __init__(self, arrays: Sequence[Any], begin: Callable[[Completion], None]) -> None:
        self.arrays = arrays  # Kept until it is over.
        self.begin = begin


_numbers = itertools.count(1)
_operations: dict[int, _Operation] = {}
_none_left = threading.Condition()


@_BEGIN
def _on_begin(run_context: int, on_complete: Any, number: int) -> None:
    completion = Completion(on_complete.contents)
    try:
        _operations[number].begin(completion)
    except Exception as failure:
        completion.end(failure)


@_FORGET
def _on_forget(number: int) -> None:
    """It is over, or the engine has left it out, as an operation before it has failed."""
    with _none_left:
        del _operations[number]
        if not _operations:
            _none_left.notify_all()


def push(
    arrays: Sequence[mx.nd.NDArray],
    begin: Callable[[Completion], None],
    priority: int,
    name: str,
) -> None:
    """Has `begin` called when all `arrays` may be changed. What it raises the operation fails with.

    The caller's handles of the arrays may go; these may not be anybody else's, see alias().
    """
    number = next(_numbers)
    _operations[number] = _Operation(arrays, begin)
    handles = (ctypes.c_void_p * len(arrays))(*[array.handle for array in arrays])
    check_call(
        _LIB.MXEnginePushAsyncND(
            _on_begin,
            ctypes.c_void_p(number),
            _on_forget,
            ctypes.byref(_CPU),
            None,
            0,
            handles,
            len(arrays),
            ctypes.byref(_PRIORITIZED),
            ctypes.c_int(priority),
            name.encode(),
            ctypes.c_bool(False),
        )
    )


def alias(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """The same memory under a handle of its own, which the caller's thread does not touch."""
    return array.detach()


def address_of(array: mx.nd.NDArray) -> int:
    """Where an array's elements lie; for an operation that may change it.

    Unsupported where oneDNN keeps it in a layout of its own. (MXNDArrayGetData would then wait for
    the operation that asks.)
    """
    managed = ctypes.c_void_p()
    if _LIB.MXNDArrayToDLPack(array.handle, ctypes.byref(managed)) != 0:
        raise Unsupported(
            f"an array of shape {array.shape} lies in a layout of oneDNN's: set "
            "MXNET_MKLDNN_ENABLED=0, or push a copy of it"
        )
    assert managed.value is not None
    tensor = ctypes.cast(managed, ctypes.POINTER(ctypes.c_void_p))  # Begins with `void* data`.
    address = int(tensor[0] or 0)
    check_call(_LIB.MXNDArrayCallDLPackDeleter(managed))
    return address


def keeps_own_layouts() -> bool:
    """Whether oneDNN may keep arrays in layouts of its own."""
    return (
        mx.runtime.Features().is_enabled("MKLDNN")
        and os.environ.get("MXNET_MKLDNN_ENABLED", "1") != "0"
    )


def wait_for_all(timeout_s: float) -> bool:
    """Whether all operations are over by then."""
    with _none_left:
        return _none_left.wait_for(lambda: not _operations, timeout_s)


def forget_failures() -> None:
    """Lets arrays be used again that an operation which has failed was to change, or one after it.

    They have what they had before. Returns when all operations are over.
    """
    with contextlib.suppress(mx.MXNetError):
        mx.nd.waitall()


@atexit.register
def _quiet() -> None:
    """No operation may call Python when there is none any more. By now the client is closed, so
    what is left fails when its turn comes."""
    if _operations:
        with contextlib.suppress(mx.MXNetError):
            mx.nd.waitall()
