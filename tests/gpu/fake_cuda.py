# SPDX-License-Identifier: Apache-2.0
"""torch tensors on fake GPUs, for a build of torch without CUDA.

A tensor here says that it is a CUDA tensor. It lies in host memory that the stub of the driver gave
out (libs/gpu/cuda/stub/shared_driver.cc). So torch computes with it at once, on the CPU, whatever the
current stream. A test gives the driver what a stream is to do later.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed import distributed_c10d

_SEGMENT_BYTES = 16 << 20
_ALIGNMENT = 512

_plain = torch._C.DisableTorchFunctionSubclass


class FakeCudaTensor(torch.Tensor):
    """Results of its operations lie on the same GPU."""

    gpu: Gpu

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self.gpu.ordinal)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        result = super().__torch_function__(function, types, arguments, keywords or {})
        if isinstance(result, FakeCudaTensor) and not hasattr(result, "gpu"):
            gpu = next(a.gpu for a in _tensors(arguments) if isinstance(a, FakeCudaTensor))
            result = gpu.adopt(result)
        return result


def _tensors(arguments: Any) -> Iterator[torch.Tensor]:
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _tensors(argument)


class Gpu:
    """A fake GPU, through the driver's functions. Its tensors come out of a few large segments."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.stream = 0  # The current one.
        self._context = ctypes.c_void_p()
        device = ctypes.c_int()
        self._check(self.driver.cuInit(0))
        self._check(self.driver.cuDeviceGet(ctypes.byref(device), ordinal))
        self._check(self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device))
        self._segments: list[tuple[int, int]] = []
        self._free = range(0)
        _gpus[ordinal] = self

    def _call(self, name: str, *arguments: Any) -> None:
        """In the GPU's context."""
        self._check(self.driver.cuCtxPushCurrent_v2(self._context))
        try:
            self._check(getattr(self.driver, name)(*arguments))
        finally:
            self._check(self.driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))

    def _check(self, result: int) -> None:
        if result != 0:
            raise AssertionError(f"the stub answered {result}")

    # ----- Memory -----

    def allocate(self, nbytes: int, managed: bool = False) -> int:
        """A segment of its own."""
        address = ctypes.c_uint64()
        if managed:
            self._call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(nbytes), 1)
        else:
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        self._segments.append((address.value, nbytes))
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))
        self._segments = [segment for segment in self._segments if segment[0] != address]

    def at(self, address: int, like: torch.Tensor) -> torch.Tensor:
        """A tensor like `like` at that place. What lies there is its value."""
        with _plain():
            nbytes = max(1, like.untyped_storage().nbytes())
            memory = (ctypes.c_char * nbytes).from_address(address)
            flat = torch.frombuffer(memory, dtype=torch.uint8)
            flat = flat[: nbytes // like.element_size() * like.element_size()].view(like.dtype)
            tensor = flat.as_strided(like.size(), like.stride(), like.storage_offset())
            tensor = tensor.as_subclass(FakeCudaTensor)
        tensor.gpu = self
        return tensor

    def put(self, values: torch.Tensor) -> torch.Tensor:
        """A copy of a CPU tensor, with its strides."""
        with _plain():
            nbytes = max(1, values.untyped_storage().nbytes())
            length = (nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
            if len(self._free) < length:
                begin = self.allocate(max(length, _SEGMENT_BYTES))
                self._free = range(begin, begin + max(length, _SEGMENT_BYTES))
            tensor = self.at(self._free[0], values)
            self._free = self._free[length:]
            plain = tensor.as_subclass(torch.Tensor)
            plain.copy_(values)
        return tensor

    def adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """The result of an operation: itself if it lies on this GPU, else a copy."""
        address = tensor.data_ptr()
        if any(begin <= address < begin + nbytes for begin, nbytes in self._segments):
            tensor.gpu = self  # type: ignore[attr-defined]
            return tensor
        return self.put(tensor)

    # ----- Streams -----

    def new_stream(self) -> int:
        stream = ctypes.c_void_p()
        self._call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
        assert stream.value is not None
        return stream.value

    @contextlib.contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Makes the stream the current one within the block."""
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def fill(self, tensor: torch.Tensor, byte: int) -> None:
        """Has the current stream write this byte all over the tensor."""
        self._call(
            "cuMemsetD8Async",
            ctypes.c_uint64(tensor.data_ptr()),
            ctypes.c_ubyte(byte),
            ctypes.c_size_t(tensor.numel() * tensor.element_size()),
            ctypes.c_void_p(self.stream),
        )

    def hold(self, stream: int, held: bool) -> None:
        """Whether the stream keeps what it is given for later."""
        self.driver.fakeHold(ctypes.c_void_p(stream), int(held))

    def capture(self, stream: int, capturing: bool) -> None:
        self.driver.fakeCapture(ctypes.c_void_p(stream), int(capturing))

    def refuse_events(self, refuses: bool) -> None:
        """Whether other processes' events cannot be opened."""
        self.driver.fakeRefuseEvents(int(refuses))

    def waits(self, stream: int) -> int:
        """How many events the stream has waited for."""
        self.driver.fakeWaits.restype = ctypes.c_uint64
        return int(self.driver.fakeWaits(ctypes.c_void_p(stream)))


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A copy as an ordinary CPU tensor."""
    with _plain():
        return tensor.detach().as_subclass(torch.Tensor).clone()


_gpus: dict[int, Gpu] = {}  # By ordinal.
torch.cuda.current_stream = lambda device: SimpleNamespace(  # type: ignore
    cuda_stream=_gpus[device.index].stream
)
torch.cuda.get_device_capability = lambda device=None: (9, 0)  # type: ignore
# The backend is given these tensors as they are, not as what they lie in.
distributed_c10d.has_torch_function = lambda arguments: False  # type: ignore
