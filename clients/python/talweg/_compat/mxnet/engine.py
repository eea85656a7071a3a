# SPDX-License-Identifier: Apache-2.0
"""Runs operations in MXNet's engine, through its C API. Nothing is compiled.

The engine begins an operation when the arrays that it changes are complete and have no readers
left. Whoever reads the arrays later waits until the operation is over. So a gradient leaves while
backward still computes others, and no Python code waits for it. If an operation fails, reading its
arrays raises MXNetError.

An operation begins on one of the engine's threads for urgent work. It must not wait there: it
returns, and its Completion is called when it is over.
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
    """The layout of mxnet::Context."""

    _fields_ = (("dev_type", ctypes.c_int32), ("dev_id", ctypes.c_int32))


class _OnComplete(ctypes.Structure):
    """The layout of mxnet::engine::CallbackOnComplete."""

    _fields_ = (
        ("callback", ctypes.c_void_p),
        ("engine", ctypes.c_void_p),
        ("parameter", ctypes.c_void_p),
    )


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_BEGIN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_OnComplete), ctypes.c_void_p)
_FORGET = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CPU = _Context(1, 0)
_PRIORITIZED = ctypes.c_int(3)  # FnProperty::kCPUPrioritized: does not queue after backward's work.
_ERROR_BYTES = 16  # sizeof(std::runtime_error). dmlc::Error derives from it and adds no member.

IS_NAIVE = os.environ.get("MXNET_ENGINE_TYPE", "") == "NaiveEngine"
"""Whether the engine runs each operation to its end before it takes the next."""


class Completion:
    """Ends one operation. Any thread may call end(), once."""

    def __init__(self, on_complete: _OnComplete) -> None:
        self._on_complete = _OnComplete.from_buffer_copy(on_complete)

    def end(self, failure: Exception | None = None) -> None:
        """Ends the operation. After a failure its arrays have no defined content."""
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
        self.arrays = arrays  # Kept alive until the operation is over.
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
    """Called when the operation is over, or when the engine skips it after an earlier failure."""
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
    """Calls `begin` when all `arrays` may be changed. If `begin` raises, the operation fails.

    The operation keeps the arrays, so the caller may drop them. Nobody else may use these handles,
    so pass aliases: see alias().
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
    """Returns the same memory under another handle, for use on another thread."""
    return array.detach()


def address_of(array: mx.nd.NDArray) -> int:
    """Returns the address of an array's elements. Call it in an operation that may change them.

    Raises Unsupported if oneDNN keeps the array in a layout of its own. (MXNDArrayGetData would
    wait there for the operation that calls it.)
    """
    managed = ctypes.c_void_p()
    if _LIB.MXNDArrayToDLPack(array.handle, ctypes.byref(managed)) != 0:
        raise Unsupported(
            f"an array of shape {array.shape} lies in a layout of oneDNN's: set "
            "MXNET_MKLDNN_ENABLED=0, or push a copy of it"
        )
    assert managed.value is not None
    # The structure begins with `void* data`.
    tensor = ctypes.cast(managed, ctypes.POINTER(ctypes.c_void_p))
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
    """Waits at most `timeout_s`; returns whether all operations are over."""
    with _none_left:
        return _none_left.wait_for(lambda: not _operations, timeout_s)


def forget_failures() -> None:
    """Makes arrays usable again whose operation has failed, or was skipped after a failure.

    They hold what they held before. Returns when all operations are over.
    """
    with contextlib.suppress(mx.MXNetError):
        mx.nd.waitall()


@atexit.register
def _quiet() -> None:
    """Waits until no operation is left, because none may call Python after it has ended.

    The client is closed by now, so the operations that are left fail when they begin.
    """
    if _operations:
        with contextlib.suppress(mx.MXNetError):
            mx.nd.waitall()
