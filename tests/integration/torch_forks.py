# SPDX-License-Identifier: Apache-2.0
"""Forks each rank from one process that has imported torch, so ranks need not import it.

Importing torch takes seconds of processor time a process, which is most of what a small training
job costs. A rank that `talweg run` starts as `torch_forks.py SOCKET PROGRAM...` sends its
arguments, environment and descriptors to the process that `TorchForks` started, which runs PROGRAM
in a fork of its own and sends the exit status back. A test that starts ranks itself calls
`TorchForks.start()`. Nothing of Talweg is loaded before the fork; a rank whose starter ends is
killed. A rank is on its starter's host, if that is a network namespace with a name of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

_REQUEST_BYTES_MAX = 1 << 20
# Longer than an import of torch takes on a busy machine; ends a hang.
_START_S = 240.0


class TorchForks:
    """The forking process. It ends, with all its ranks, when the `with` block is left.

    `modules` are the modules that it imports instead of torch, for another framework's ranks. While
    it imports them it has `variables`.
    """

    def __init__(
        self, modules: tuple[str, ...] = ("torch",), variables: Mapping[str, str] | None = None
    ) -> None:
        self._modules = modules
        self._variables = variables or {}

    def __enter__(self) -> TorchForks:
        self._directory = tempfile.TemporaryDirectory(prefix="talweg.")
        path = os.path.join(self._directory.name, "forks")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, f"--listen={listener.fileno()}", *self._modules],
                stdin=subprocess.PIPE,
                # A fork would lack the threads of a numerical library.
                env={
                    **os.environ,
                    **self._variables,
                    "OPENBLAS_NUM_THREADS": "1",
                    "OMP_NUM_THREADS": "1",
                },
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        self._path = path
        self.prefix = [__file__, path]
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_START_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._directory.cleanup()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Fork:
        """Starts `python ARGUMENTS` as a fork, whose input and output are pipes."""
        return Fork(self._path, arguments, environment)

    def rank_of(self, starter: int) -> int | None:
        """Returns the PID of the rank that runs for `starter`, which `talweg run` has started."""
        try:
            return int(os.readlink(_name_of(self._path, starter)))
        except FileNotFoundError:
            return None

    def starter_of(self, rank: int) -> int:
        """Returns the starter of a rank, or the rank itself if it is no fork of these."""
        for starter in (int(name) for name in os.listdir(self._directory.name) if name.isdigit()):
            if self.rank_of(starter) == rank:
                return starter
        return rank


@functools.cache
def torch_forks(*further: str) -> TorchForks:
    """Returns forks with torch, for all tests of a program. They end after the last test.

    `further` names modules that they have as well.
    """
    import unittest  # A rank's own process does not need it.

    forks = TorchForks(("torch", *further)).__enter__()
    unittest.addModuleCleanup(forks.__exit__)
    return forks


class Fork:
    """A program in a fork. It has the methods of `subprocess.Popen` that tests use."""

    stdin: TextIO
    stdout: TextIO

    def __init__(self, path: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        its_input, own_output = os.pipe()
        own_input, its_output = os.pipe()
        self.stdin, self.stdout = os.fdopen(own_output, "w"), os.fdopen(own_input)
        self.returncode: int | None = None
        try:
            descriptors = [its_input, its_output, its_output]
            self._server = _request(path, arguments, environment, descriptors)
        finally:
            os.close(its_input)
            os.close(its_output)
        self.pid, self._pidfd = _receive_pid(self._server)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit status, which is negative if a signal has ended the fork."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._server, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0)
            self.returncode = _receive_status(self._server)
            os.close(self._pidfd)
            self._server.close()
        return self.returncode


def _name_of(path: str, starter: int) -> str:
    """Returns the path of a link beside the socket. It names the PID of the starter's rank."""
    return os.path.join(os.path.dirname(path), str(starter))


def _request(
    path: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Sequence[int],
) -> socket.socket:
    """Asks for a fork that has these descriptors as its standard input, output and error."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.connect(path)
    request = json.dumps({"arguments": [*arguments], "environment": dict(environment)})
    socket.send_fds(server, [request.encode() + b"\n"], descriptors)
    return server


def _receive_pid(server: socket.socket) -> tuple[int, int]:
    """Returns the fork's PID, and its pidfd."""
    text, [pidfd], _, _ = socket.recv_fds(server, 16, 1)
    return int(text), pidfd


def _receive_status(server: socket.socket) -> int:
    status = server.recv(16)
    return int(status) if status else -signal.SIGKILL  # The fork has ended with its parent.


def _ask(path: str, arguments: list[str]) -> int:
    """Has a fork run the program for this process, and returns the fork's exit status."""
    with _request(path, arguments, os.environ, [0, 1, 2]) as server:
        _, pidfd = _receive_pid(server)
        os.close(pidfd)
        status = _receive_status(server)
    return status if status >= 0 else 128 - status


def _receive(client: socket.socket) -> dict[str, Any]:
    data, descriptors, _, _ = socket.recv_fds(client, _REQUEST_BYTES_MAX, 3)
    while not data.endswith(b"\n"):
        more = client.recv(_REQUEST_BYTES_MAX)
        if not more:
            raise ConnectionError("half a request")
        data += more
    return dict(json.loads(data), descriptors=descriptors)


def _peer(client: socket.socket) -> int:
    """Returns the PID of the process at the other end."""
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Returns a request in the process that was forked for it; None in the parent at the end."""
    # For each PID of a rank: its pidfd, its starter, and the link that names it.
    ranks: dict[int, tuple[int, socket.socket, str]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ, None)
        selector.register(0, selectors.EVENT_READ, None)

        def forget(pid: int) -> None:
            pidfd, client, name = ranks.pop(pid)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            with contextlib.suppress(OSError):
                client.sendall(str(status).encode())
            for each in (pidfd, client):
                selector.unregister(each)
            os.close(pidfd)
            client.close()

        while True:
            for key, _ in selector.select():
                if key.fd == 0:
                    for pid in list(ranks):
                        os.kill(pid, signal.SIGKILL)
                        forget(pid)
                    return None
                if key.data is not None:  # The rank or its starter has ended.
                    pid = key.data
                    if pid in ranks:
                        if key.fd != ranks[pid][0]:
                            os.kill(pid, signal.SIGKILL)
                        forget(pid)
                    continue
                client, _ = listener.accept()
                request = _receive(client)
                request["directory"] = os.path.dirname(listener.getsockname())
                request["starter"] = _peer(client)
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    for pidfd, other, _ in ranks.values():
                        os.close(pidfd)
                        other.close()
                    client.close()
                    listener.close()
                    return request
                for descriptor in request["descriptors"]:
                    os.close(descriptor)
                pidfd = os.pidfd_open(pid)
                name = _name_of(listener.getsockname(), request["starter"])
                with contextlib.suppress(FileExistsError):  # A test may start many forks itself.
                    os.symlink(str(pid), name)
                ranks[pid] = (pidfd, client, name)
                selector.register(pidfd, selectors.EVENT_READ, pid)
                selector.register(client, selectors.EVENT_READ, pid)
                with contextlib.suppress(OSError):
                    socket.send_fds(client, [str(pid).encode()], [pidfd])


def _leave_at_the_end() -> None:
    """Has this process, at its end, free only what has come since the fork.

    Otherwise it would free all of torch, in memory that the forks share, for a third of a second.
    """
    import ctypes

    names = [name for name, module in sys.modules.items() if _is_installed(module)]

    def keep() -> None:
        kept = [sys.modules.pop(name, None) for name in names]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))

    # Python and libc call the function that is registered first last.
    atexit.register(keep)
    if "TALWEG_SANITIZER" not in os.environ:  # A sanitizer registered its end before the fork.
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)


def _enter_host_of(starter: int) -> None:
    """Has this process see the network and the host name that the starter sees."""
    import ctypes

    for kind in ("net", "uts"):
        path = f"/proc/{starter}/ns/{kind}"
        if os.readlink(path) == os.readlink(f"/proc/self/ns/{kind}"):
            continue
        descriptor = os.open(path, os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
        os.close(descriptor)


def _become(request: dict[str, Any]) -> None:
    """Runs the program as `python PROGRAM...` would."""
    import runpy

    _enter_host_of(request["starter"])
    _leave_at_the_end()
    for number, descriptor in enumerate(request["descriptors"]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(request["environment"])
    # TensorFlow writes files there, and a killed process leaves them.
    tempfile.tempdir = None if "TMPDIR" in os.environ else request["directory"]
    sys.argv = request["arguments"]
    # Directories that the forking process's own PYTHONPATH did not name.
    for directory in os.environ.get("PYTHONPATH", "").split(":"):
        if directory and directory not in sys.path:
            sys.path.append(directory)
    runpy.run_path(sys.argv[0], run_name="__main__")


def _is_installed(module: object) -> bool:
    """Whether the module is of an installed package, and not of Python's own library."""
    return "site-packages" in (getattr(module, "__file__", None) or "")


def main() -> int:
    if not sys.argv[1].startswith("--listen="):
        return _ask(sys.argv[1], sys.argv[2:])
    for name in sys.argv[2:]:
        module = importlib.import_module(name)
        if name == "torch":  # The first optimizer imports the rest of torch.
            module.optim.SGD([module.nn.Parameter(module.zeros(1))])
    listener = socket.socket(fileno=int(sys.argv[1].partition("=")[2]))
    # Without it each rank's end takes a second, because it would visit, and so copy, all of torch.
    gc.collect()
    gc.freeze()
    request = _serve(listener)
    if request is not None:
        _become(request)
    return 0


if __name__ == "__main__":
    sys.exit(main())
