# SPDX-License-Identifier: Apache-2.0
"""Brings a text from rank 0 to other ranks through PMIx, which mpirun (and srun --mpi=pmix) offers.

It needs only the library libpmix, which Open MPI needs as well. An MPI library of the same process
may call PMIx before or after, because PMIx counts the calls of PMIx_Init.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from talweg.errors import TalwegError

_SUCCESS = 0
_STRING = 3  # PMIX_STRING
_GLOBAL = 3  # PMIX_GLOBAL
_INT = 6  # PMIX_INT
_NAMESPACE_BYTES = 256
_KEY_BYTES = 512


class _Process(ctypes.Structure):
    _fields_ = [("namespace", ctypes.c_char * _NAMESPACE_BYTES), ("rank", ctypes.c_uint32)]


class _Value(ctypes.Structure):
    # A union of at most three words comes after the type.
    _fields_ = [
        ("type", ctypes.c_uint16),
        ("_aligned", ctypes.c_uint16 * 3),
        ("data", ctypes.c_uint64 * 3),
    ]


class _Info(ctypes.Structure):
    _fields_ = [
        ("key", ctypes.c_char * _KEY_BYTES),
        ("flags", ctypes.c_uint32),
        ("value", _Value),
    ]


def library() -> ctypes.CDLL | None:
    for name in ("libpmix.so.2", "libpmix.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def is_offered(environment: Mapping[str, str]) -> bool:
    """Whether the launcher offers PMIx and this host has the library."""
    return bool(environment.get("PMIX_NAMESPACE")) and library() is not None


class Pmix:
    """This process as a PMIx client of the launcher, until close()."""

    def __init__(self) -> None:
        found = library()
        assert found is not None
        self._library = found
        self._self = _Process()
        self._check(
            found.PMIx_Init(ctypes.byref(self._self), None, ctypes.c_size_t(0)), "PMIx_Init"
        )

    def _check(self, status: int, call: str) -> None:
        if status != _SUCCESS:
            text = self._library.PMIx_Error_string
            text.restype = ctypes.c_char_p
            raise TalwegError(
                f"{call}: {text(status).decode()} ({status}): the launcher's PMIx does not answer; "
                "TALWEG_RENDEZVOUS=HOST:PORT lets the nodes meet without it"
            )

    def put(self, key: str, text: str) -> None:
        buffer = ctypes.create_string_buffer(text.encode())
        value = _Value(type=_STRING)
        value.data[0] = ctypes.addressof(buffer)
        put = self._library.PMIx_Put(ctypes.c_uint8(_GLOBAL), key.encode(), ctypes.byref(value))
        self._check(put, "PMIx_Put")
        self._check(self._library.PMIx_Commit(), "PMIx_Commit")

    def get_of_rank_0(self, key: str, timeout_s: float) -> str | None:
        """Returns the text that rank 0 has put; None if it has not within `timeout_s`."""
        process = _Process(self._self.namespace, 0)
        limit = _Info(b"pmix.timeout")
        limit.value.type = _INT
        limit.value.data[0] = max(1, int(timeout_s))
        found = ctypes.POINTER(_Value)()
        status = self._library.PMIx_Get(
            ctypes.byref(process),
            key.encode(),
            ctypes.byref(limit),
            ctypes.c_size_t(1),
            ctypes.byref(found),
        )
        if status != _SUCCESS:
            return None
        return ctypes.string_at(found.contents.data[0]).decode()

    def close(self) -> None:
        self._library.PMIx_Finalize(None, ctypes.c_size_t(0))
