# SPDX-License-Identifier: Apache-2.0
"""Finds, checks and registers libtalweg_jax.so: the handlers that XLA calls."""

from __future__ import annotations

import ctypes
import threading

import jax

from talweg import _client, errors
from talweg._client import Client
from talweg._library import native
from talweg.jax import _errors

START = "talweg_start"
COLLECT = "talweg_collect"

_HANDLERS = {START: "talweg_jax_start", COLLECT: "talweg_jax_collect"}
_NAME = "libtalweg_jax.so"
_lock = threading.Lock()
_registered = False


def _open() -> ctypes.CDLL:
    native.library()  # The handlers call the libtalweg.so that this loads.
    tried = native.places_of("clients/jax", _NAME)
    path = next((each for each in tried if each.is_file()), None)
    if path is None:
        raise errors.TalwegError(
            f"{_NAME} was not found at {tried[0]}: install the wheel, or build //clients/jax:{_NAME}"
        )
    library = ctypes.CDLL(str(path))
    library.talweg_jax_use.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.talweg_jax_use.restype = None
    library.talweg_jax_versions.restype = None
    return library


def check_versions(own: list[int], of_xla: list[int], failure: Exception | None = None) -> None:
    """Raises VersionMismatch if XLA cannot call the handlers, or has refused them with `failure`.

    Each list holds the major and minor version of XLA's foreign function interface, the bytes of a
    call's frame, and the bytes of the table of functions.
    """
    fits = of_xla[0] == own[0] and of_xla[2] >= own[2] and of_xla[3] >= own[3]
    if fits and failure is None:
        return
    theirs = "an XLA of an unknown version"
    if of_xla[0] >= 0:
        theirs = f"version {of_xla[0]}.{of_xla[1]} (frames of {of_xla[2]} bytes, {of_xla[3]} of functions)"
    reason = f" It says: {failure}" if failure is not None else ""
    raise errors.VersionMismatch(
        f"talweg.jax was built for version {own[0]}.{own[1]} of XLA's foreign function interface "
        f"(frames of {own[2]} bytes, {own[3]} of functions), but jaxlib {jax.lib.__version__} has "
        f"{theirs}: install a jaxlib that talweg.jax works with (0.10.2), or a newer Talweg.{reason}"
    )


def register() -> None:
    """Registers the handlers with XLA, and the process's client with the handlers. Cheap if
    repeated.
    """
    global _registered
    with _lock:
        if _registered:
            return
        library = _open()
        failure: Exception | None = None
        try:
            jax.local_devices(backend="cpu")  # XLA looks at handlers once there is a backend.
            for target, function in _HANDLERS.items():
                handler = jax.ffi.pycapsule(getattr(library, function))
                jax.ffi.register_ffi_target(target, handler, platform="cpu")
        except Exception as error:
            failure = error
        own, of_xla = (ctypes.c_int64 * 4)(), (ctypes.c_int64 * 4)()
        library.talweg_jax_versions(own, of_xla)
        check_versions(list(own), list(of_xla), failure)
        _registered = True

    def use(client: Client) -> None:
        # Programs of an earlier client end first, because they must not push rounds of the new
        # client.
        _errors.forget_failures()
        handle = client.connection.handle
        library.talweg_jax_use(handle, int(handle == 0))
        client.call_when_closed(lambda: library.talweg_jax_use(None, 0))

    _client.follow(use)
    _client.call_at_end_of_step(_errors.finish_programs)
