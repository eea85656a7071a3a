# SPDX-License-Identifier: Apache-2.0
"""Builds and loads the asynchronous kernel, which carries operations in TensorFlow's graphs.

It is built once for the installed TensorFlow, if g++ is installed. TALWEG_TENSORFLOW_OPS chooses
what carries operations in a graph: `kernel` (an error if it cannot be built), `python` (the
functions of _engine.py), or `auto`, the default: the kernel if it can be built, else the functions.
Both use the same names, so some ranks may use the kernel and others the functions.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import itertools
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from talweg import _client, errors
from talweg._client import Client, Declared, Handle
from talweg._collectives import rounds
from talweg._collectives.process_sets import Group
from talweg._collectives.scaling import Factors
from talweg._declaration import Declaration, Op, numpy_dtype
from talweg._library import native
from talweg._node import places
from talweg.errors import InvalidArgument
from talweg.tensorflow._rounds import Reduction, keeps_own

_VARIABLE = "TALWEG_TENSORFLOW_OPS"
_SOURCE = Path(__file__).resolve().parent / "kernel" / "reduce_op.cc"
_HEADERS = ("clients/c/talweg.h", "clients/c/talweg_gpu.h", "clients/c/completion_loop.h")
_TEXT_BYTES = 2048


class _Resolution(ctypes.Structure):
    """What an operation pushes. The layout is that of reduce_op.cc."""

    _fields_ = [
        ("client", ctypes.c_uint64),
        ("generation", ctypes.c_uint64),
        ("signature", ctypes.c_uint64),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("tensor", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        ("priority", ctypes.c_int32),
        ("broadcasts", ctypes.c_uint32),
        ("notifies", ctypes.c_uint32),
        ("by_python", ctypes.c_uint32),
    ]


# The arguments that say which operation, and its tensor's shape.
_OPERATION = (ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.c_uint64)
_Resolve = ctypes.CFUNCTYPE(
    ctypes.c_int, *_OPERATION, ctypes.POINTER(_Resolution), ctypes.POINTER(ctypes.c_char)
)
_Ended = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
_Begin = ctypes.CFUNCTYPE(None, *_OPERATION, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
_Disagreed = ctypes.CFUNCTYPE(None, *_OPERATION, ctypes.POINTER(ctypes.c_char))


class _Callbacks(ctypes.Structure):
    """The functions that the kernel calls. The layout is that of reduce_op.cc."""

    _fields_ = [
        ("resolve", _Resolve),
        ("ended", _Ended),
        ("begin", _Begin),
        ("disagreed", _Disagreed),
    ]


class _Site(NamedTuple):
    """An operation in a graph."""

    name: str
    dtype: np.dtype
    how: Reduction


class Kernel:
    """The loaded library of the kernel, and the operations that it carries."""

    def __init__(self, path: Path) -> None:
        native.library()  # The kernel finds libtalweg by its name, so it must be loaded already.
        self._ops = tf.load_op_library(str(path))
        library = ctypes.CDLL(str(path))
        library.talweg_tf_generation.restype = ctypes.c_uint64
        library.talweg_tf_pushed_bytes.restype = ctypes.c_uint64
        self._library = library
        self._sites: dict[int, _Site] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._client: Client | None = None
        # What operations push, by the operation's number and the tensor's shape.
        self._declared: dict[tuple[int, tuple[int, ...]], Declared] = {}
        library.talweg_tf_over.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p]
        self._callbacks = _Callbacks(
            _Resolve(self._resolve),
            _Ended(self._on_end),
            _Begin(self._begin),
            _Disagreed(self._disagreed),
        )
        library.talweg_tf_install(ctypes.byref(self._callbacks))
        # Operations then ask again what they push: a broadcast may have another root.
        _client.call_when_numbers_change(library.talweg_tf_forget)

    def reduce(self, tensor: tf.Tensor, name: str, how: Reduction) -> tf.Tensor:
        """Adds a reduction to the current graph, and returns its result."""
        number = next(self._numbers)
        self._sites[number] = _Site(name, np.dtype(tensor.dtype.as_numpy_dtype), how)
        result = self._ops.talweg_reduce(tensor=tensor, site=number)
        run_independently(result.op)
        return result

    def check(self, code: tf.Tensor, text: tf.Tensor) -> tf.Operation:
        """Adds an operation to the current graph that fails if `code`, of tf.errors, is not 0."""
        return self._ops.talweg_check(code=code, text=text)

    def _resolve(self, number: int, lengths: Any, dimensions: int, out: Any, text: Any) -> int:
        """Tells an operation which tensor it pushes now; returns 0, or a code of tf.errors."""
        try:
            out[0] = self._resolution(number, tuple(lengths[:dimensions]))
            return 0
        except Exception as failure:
            _write(text, str(failure))
            return code_of(failure)

    def _declaration(
        self, client: Client, site: _Site, shape: tuple[int, ...]
    ) -> tuple[Declaration, Group]:
        group = Group(client, site.how.process_set, site.how.operation)
        op, _ = site.how.on_wire(site.dtype)
        dtype, count = numpy_dtype(site.dtype), math.prod(shape)
        return Declaration(dtype, count, op, site.how.root_rank, group.listed, shape), group

    def _resolution(self, number: int, shape: tuple[int, ...]) -> _Resolution:
        client, site = _client.current(), self._sites[number]
        self._follow(client)
        declaration, group = self._declaration(client, site, shape)
        name, tensors = site.name + group.suffix, client.tensors
        if keeps_own(client, name, site.how):
            # As in a job of one rank; the operation asks again at its next execution.
            return _Resolution(prescale=1.0, postscale=1.0, dtype=int(declaration.dtype))
        generation = int(self._library.talweg_tf_generation())
        mismatch = tensors.disagreed(name)
        if mismatch is not None:
            raise mismatch
        resolution = _Resolution(
            client=client.connection.handle,
            generation=generation,
            prescale=site.how.prescale,
            postscale=site.how.on_wire(site.dtype)[1],
            dtype=int(declaration.dtype),
            priority=site.how.priority,
            broadcasts=int(declaration.op is Op.BROADCAST),
            notifies=int(bool(client.watchers)),
        )
        is_otherwise = tensors.settled_otherwise(name, declaration) is not None
        if is_otherwise or tensors.is_free(name) or site.how.averages_integers(site.dtype):
            resolution.by_python = 1
            return resolution
        declared = tensors.declare(name, declaration, site.how.priority)
        if declared.buffer is not None:
            raise InvalidArgument(
                f"tensor '{name}' is summed in place for torch: give TensorFlow's another name"
            )
        self._declared[number, shape] = declared
        resolution.tensor, resolution.signature = declared.tensor, declared.signature
        return resolution

    def _begin(
        self,
        number: int,
        lengths: Any,
        dimensions: int,
        source: int | None,
        out: int | None,
        execution: int,
    ) -> None:
        """Carries out an average of integers, or an operation whose name no longer stands for one
        tensor.
        """
        try:
            client, site = _client.current(), self._sites[number]
            declaration, group = self._declaration(client, site, tuple(lengths[:dimensions]))
            how = site.how
            factors = Factors(how.prescale, how.on_wire(site.dtype)[1])
            brought = rounds.Brought(
                declaration, source or 0, out or 0, None, None, how.priority, factors, stays=True
            )
            handle = rounds.start(client, site.name, group, brought)

            def over(failure: Exception | None) -> None:
                if failure is None and out and how.averages_integers(site.dtype):
                    memory = (ctypes.c_char * declaration.nbytes).from_address(out)
                    how.average(np.frombuffer(memory, site.dtype), handle, group.size)
                self._over(execution, failure)

            rounds.call_when_over(handle, over)
        except Exception as failure:
            self._over(execution, failure)

    def _disagreed(self, number: int, lengths: Any, dimensions: int, text: Any) -> None:
        """Puts the mismatch's text for Python into `text`, which brings the one of the library."""
        declared = self._declared[number, tuple(lengths[:dimensions])]
        words = ctypes.string_at(text).decode(errors="replace")
        told = rounds.disagreed(_client.current(), declared, errors.Mismatch(words))
        _write(text, str(told))

    def _over(self, execution: int, failure: Exception | None) -> None:
        code, text = (0, b"") if failure is None else (code_of(failure), str(failure).encode())
        self._library.talweg_tf_over(execution, code, text)

    def _follow(self, client: Client) -> None:
        """Forgets the earlier client, and counts the kernel's bytes among those of this one."""
        with self._lock:
            if client is self._client:
                return
            self._library.talweg_tf_forget()
            self._client = client
            before = int(self._library.talweg_tf_pushed_bytes())
            client.byte_counters.append(
                lambda: int(self._library.talweg_tf_pushed_bytes()) - before
            )
            client.call_when_closed(self._library.talweg_tf_forget)
            client.tensors.freed.append(self._library.talweg_tf_ask_again)

    def _on_end(self, number: int, begin_ns: int) -> None:
        client, site = self._client, self._sites[number]
        if client is None:
            return
        handle = Handle(client, 0, 0, site.name, begin_ns=begin_ns, done=True)
        for watch in client.watchers:
            watch(handle)


def run_independently(op: tf.Operation) -> None:
    """Lets each execution run the operation once, outside the program's order.

    The ranks' programs may have different orders.
    """
    manager = getattr(op.graph, "experimental_acd_manager", None)
    if manager is not None:
        manager.run_independently(op)


def _write(text: Any, words: str) -> None:
    """Writes words into the kernel's buffer, and cuts what is too long."""
    cut = words.encode()[: _TEXT_BYTES - 1] + b"\0"
    ctypes.memmove(text, cut, len(cut))


def code_of(failure: Exception) -> int:
    """Returns the code of tf.errors for a failure."""
    if isinstance(failure, (errors.Mismatch, errors.NotInitialized)):
        return int(tf.errors.FAILED_PRECONDITION)
    if isinstance(failure, ValueError):
        return int(tf.errors.INVALID_ARGUMENT)
    if isinstance(failure, errors.Aborted):
        return int(tf.errors.ABORTED)
    return int(tf.errors.UNKNOWN)


# ----- Building -----


def _include_directory() -> Path:
    """Returns the folder of the headers: in the wheel beside this package, else the source tree."""
    here = Path(__file__).absolute()
    places = [here.parents[1] / "include", *here.parents, *Path(__file__).resolve().parents]
    for place in places:
        if all((place / header).is_file() for header in _HEADERS):
            return place
    raise errors.TalwegError(f"{_HEADERS[0]} was not found at {places[0]}: install the wheel again")


def _cache_directory() -> Path:
    told = os.environ.get("XDG_CACHE_HOME")
    if told and Path(told).is_absolute():
        return Path(told) / "talweg"
    home = Path(os.path.expanduser("~"))
    if os.access(home, os.W_OK):
        return home / ".cache" / "talweg"
    return Path(tempfile.gettempdir()) / f"talweg-cache-{os.getuid()}"


def _line(compiler: str, include: Path, out: Path) -> list[str]:
    return [
        compiler,
        "-shared",
        "-fPIC",
        "-O2",
        "-fvisibility=hidden",
        "-w",
        str(_SOURCE),
        f"-I{include}",
        *tf.sysconfig.get_compile_flags(),
        str(native.library()._name),
        *tf.sysconfig.get_link_flags(),
        "-o",
        str(out),
    ]


def build() -> Path:
    """Returns the path of the kernel's library, and builds it first if it is missing.

    If several processes call this, one builds and the others wait. The finished library is moved to
    its path in one step. Raises TalwegError if it cannot be built.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise errors.TalwegError(
            f"there is no g++ on the PATH: install it, or set {_VARIABLE}=python"
        )
    include = _include_directory()
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    key = hashlib.sha256(
        b"\0".join(
            [
                tf.version.GIT_VERSION.encode() if isinstance(tf.version.GIT_VERSION, str) else b"",
                tf.__version__.encode(),
                " ".join(tf.sysconfig.get_compile_flags()[1:]).encode(),
                version,
                _SOURCE.read_bytes(),
                *((include / header).read_bytes() for header in _HEADERS),
            ]
        )
    ).hexdigest()[:24]
    cache = _cache_directory()
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    places.check_own(cache)  # This process runs the code that lies there.
    directory = cache / f"tensorflow-{tf.__version__}-{key}"
    library = directory / "reduce_op.so"
    if library.is_file():
        return library
    directory.mkdir(mode=0o700, exist_ok=True)
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # The lock ends with the process.
        if not library.is_file():
            _build(compiler, include, library)
    return library


def _build(compiler: str, include: Path, library: Path) -> None:
    print(
        f"talweg: building the kernel for TensorFlow {tf.__version__}, once, about a minute: {library}",
        file=sys.stderr,
        flush=True,
    )
    partial = library.with_name(f"partial.{os.getpid()}.so")
    try:
        done = subprocess.run(
            _line(compiler, include, partial), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            log = library.with_name("build.log")
            log.write_text(done.stderr)
            raise errors.TalwegError(
                f"the kernel for TensorFlow {tf.__version__} could not be built: see {log}"
            )
        os.replace(partial, library)
    finally:
        partial.unlink(missing_ok=True)


_loaded: dict[str, Kernel | None] = {}
_loading = threading.Lock()


def kernel() -> Kernel | None:
    """Returns the kernel, or None if Python functions carry the operations."""
    wanted = os.environ.get(_VARIABLE, "auto") or "auto"
    if wanted == "python":
        return None
    if wanted not in ("auto", "kernel"):
        raise InvalidArgument(f"{_VARIABLE} is '{wanted}'; it must be auto, kernel or python")
    with _loading:
        if wanted not in _loaded:
            try:
                _loaded[wanted] = _loaded.get("auto") or Kernel(build())
            except (errors.TalwegError, OSError, tf.errors.OpError) as failure:
                if wanted == "kernel":
                    raise
                print(
                    f"talweg: Python functions carry TensorFlow's operations: {failure}",
                    file=sys.stderr,
                )
                _loaded[wanted] = None
        return _loaded[wanted]


def reduce_many(
    loaded: Kernel,
    tensors: Sequence[tf.Tensor],
    names: Sequence[str | None],
    hows: Sequence[Reduction],
) -> list[tf.Tensor]:
    """Reduces all tensors by the kernel, in a graph. Each must have a name."""
    return [
        loaded.reduce(tensor, name or "", how) for tensor, name, how in zip(tensors, names, hows)
    ]
