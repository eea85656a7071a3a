# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver through ctypes: the few calls that tensors on GPUs need.

Nothing here knows frameworks: memory is an address, a stream is a handle, a GPU is an ordinal of
this process. The symbols below take stream 0 for the legacy default stream, as frameworks do.
ctypes lets other Python threads run during every call.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

from talweg.errors import GpuError

_LIBRARY = "libcuda.so.1"
_HANDLE_BYTES = 64

# The values of cuda.h.
_ERROR_NOT_READY = 600
_ERROR_STREAM_CAPTURE_IMPLICIT = 906
_POINTER_ATTRIBUTE_BUFFER_ID = 7
_EVENT_BLOCKING_SYNC = 1
_EVENT_DISABLE_TIMING = 2
_STREAM_NON_BLOCKING = 1
_HOST_PORTABLE = 1


class _IpcHandle(ctypes.Structure):
    """Names memory or an event to another process. Only the driver knows what the bytes mean."""

    _fields_ = [("reserved", ctypes.c_ubyte * _HANDLE_BYTES)]


class _Uuid(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * 16)]


_int, _uint, _size, _u64 = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_uint64
_pointer = ctypes.c_void_p  # To host memory, or to an object of the driver.
_out = ctypes.POINTER

# The arguments of each symbol. All return a CUresult. CUDA 11.4 and later have all of them.
_PROTOTYPES = {
    "cuInit": [_uint],
    "cuGetErrorName": [_int, _out(ctypes.c_char_p)],
    "cuGetErrorString": [_int, _out(ctypes.c_char_p)],
    "cuDeviceGet": [_out(_int), _int],
    "cuDeviceGetUuid_v2": [_out(_Uuid), _int],
    "cuDevicePrimaryCtxRetain": [_out(_pointer), _int],
    "cuCtxPushCurrent_v2": [_pointer],
    "cuCtxPopCurrent_v2": [_out(_pointer)],
    "cuPointerGetAttribute": [_pointer, _int, _u64],
    "cuMemGetAddressRange_v2": [_out(_u64), _out(_size), _u64],
    "cuMemHostAlloc": [_out(_pointer), _size, _uint],
    "cuMemFreeHost": [_pointer],
    "cuMemcpyDtoHAsync_v2": [_pointer, _u64, _size, _pointer],
    "cuMemcpyHtoDAsync_v2": [_u64, _pointer, _size, _pointer],
    "cuIpcGetMemHandle": [_out(_IpcHandle), _u64],
    "cuIpcOpenEventHandle": [_out(_pointer), _IpcHandle],
    "cuStreamCreateWithPriority": [_out(_pointer), _uint, _int],
    "cuStreamDestroy_v2": [_pointer],
    "cuStreamWaitEvent": [_pointer, _pointer, _uint],
    "cuStreamIsCapturing": [_pointer, _out(_int)],
    "cuEventCreate": [_out(_pointer), _uint],
    "cuEventDestroy_v2": [_pointer],
    "cuEventRecord": [_pointer, _pointer],
    "cuEventSynchronize": [_pointer],
    "cuEventQuery": [_pointer],
}


class Driver:
    """The opened driver. Any thread may call any method.

    All but context() and uuid() must be called within context(). A failed call raises GpuError.
    """

    def __init__(self, library: str = _LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise GpuError(f"no NVIDIA driver: {error}; install it, or push CPU tensors") from None
        for name, arguments in _PROTOTYPES.items():
            function = getattr(self._library, name, None)
            if function is None:
                raise GpuError(
                    f"{library} has no {name}: a driver for CUDA 11.4 or later is needed"
                )
            function.restype = ctypes.c_int
            function.argtypes = arguments
        self._lock = threading.Lock()
        self._contexts: dict[int, _pointer] = {}
        self._call("cuInit", 0)

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise GpuError(f"{name} failed: {self._describe(result)}")

    def _describe(self, result: int) -> str:
        texts = []
        for function in (self._library.cuGetErrorName, self._library.cuGetErrorString):
            text = ctypes.c_char_p()
            if function(result, ctypes.byref(text)) == 0 and text.value:
                texts.append(text.value.decode(errors="replace"))
        return f"{texts[0]} ({', '.join([str(result), *texts[1:]])})" if texts else str(result)

    # ----- GPUs and contexts -----

    def _device(self, ordinal: int) -> int:
        device = _int()
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        return device.value

    def uuid(self, ordinal: int) -> bytes:
        """Returns the GPU's 16 bytes of UUID, which mean the same GPU in every process."""
        uuid = _Uuid()
        self._call("cuDeviceGetUuid_v2", ctypes.byref(uuid), self._device(ordinal))
        return bytes(uuid.reserved)

    @contextlib.contextmanager
    def context(self, ordinal: int) -> Iterator[None]:
        """Makes the GPU's primary context, which every framework uses, current on this thread."""
        with self._lock:
            context = self._contexts.get(ordinal)
            if context is None:
                context = _pointer()
                self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(ordinal))
                self._contexts[ordinal] = context  # Retained for as long as the process lives.
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(_pointer()))

    # ----- Memory -----

    def buffer_id(self, address: int) -> int | None:
        """Returns the number of the allocation at `address`; None if nothing is allocated there.

        No other allocation of the process ever has the same number.
        """
        number = _u64()
        result = self._library.cuPointerGetAttribute(
            ctypes.byref(number), _POINTER_ATTRIBUTE_BUFFER_ID, address
        )
        return number.value if result == 0 else None

    def allocation(self, address: int) -> tuple[int, int]:
        """Returns the start address and the bytes of the allocation around `address`."""
        base, nbytes = _u64(), _size()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(nbytes), address)
        return base.value, nbytes.value

    def memory_handle(self, base: int) -> bytes:
        """Returns the handle by which another process maps the allocation that begins at `base`."""
        handle = _IpcHandle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), base)
        return bytes(handle.reserved)

    def allocate_host(self, nbytes: int) -> int:
        """Returns the address of new pinned host memory, which the GPU copies without the CPU."""
        address = _pointer()
        self._call("cuMemHostAlloc", ctypes.byref(address), nbytes, _HOST_PORTABLE)
        assert address.value is not None
        return address.value

    def free_host(self, address: int) -> None:
        self._call("cuMemFreeHost", address)

    # ----- Streams and events -----

    def new_stream(self) -> int:
        """Returns a new stream that does not wait for the default stream."""
        stream = _pointer()
        self._call("cuStreamCreateWithPriority", ctypes.byref(stream), _STREAM_NON_BLOCKING, 0)
        assert stream.value is not None
        return stream.value

    def destroy_stream(self, stream: int) -> None:
        self._call("cuStreamDestroy_v2", stream)

    def is_capturing(self, stream: int) -> bool:
        """Whether the stream's work goes into a CUDA graph that is being captured."""
        status = _int()
        result = self._library.cuStreamIsCapturing(stream, ctypes.byref(status))
        if result == _ERROR_STREAM_CAPTURE_IMPLICIT:  # Another stream is capturing.
            return True
        if result != 0:
            raise GpuError(f"cuStreamIsCapturing failed: {self._describe(result)}")
        return status.value != 0

    def new_event(self) -> int:
        """Returns a new event. synchronize() sleeps until it is done."""
        event = _pointer()
        flags = _EVENT_BLOCKING_SYNC | _EVENT_DISABLE_TIMING
        self._call("cuEventCreate", ctypes.byref(event), flags)
        assert event.value is not None
        return event.value

    def open_event(self, handle: bytes) -> int:
        """Returns another process's event by its handle."""
        event = _pointer()
        self._call("cuIpcOpenEventHandle", ctypes.byref(event), _IpcHandle.from_buffer_copy(handle))
        assert event.value is not None
        return event.value

    def destroy_event(self, event: int) -> None:
        self._call("cuEventDestroy_v2", event)

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", event, stream)

    def wait(self, stream: int, event: int) -> None:
        """Makes the stream wait for the event as it is recorded now. No CPU waits."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    def synchronize(self, event: int) -> None:
        """Waits until the event is done."""
        self._call("cuEventSynchronize", event)

    def is_done(self, event: int) -> bool:
        """Whether the event is done."""
        result: int = self._library.cuEventQuery(event)
        if result not in (0, _ERROR_NOT_READY):
            raise GpuError(f"cuEventQuery failed: {self._describe(result)}")
        return result == 0

    def copy_to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._call("cuMemcpyDtoHAsync_v2", target, source, nbytes, stream)

    def copy_to_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._call("cuMemcpyHtoDAsync_v2", target, source, nbytes, stream)
