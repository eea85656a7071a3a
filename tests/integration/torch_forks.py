# SPDX-License-Identifier: Apache-2.0
"""Ranks that do not import torch each: one process has imported it and forks for every rank.

Importing torch takes seconds of processor time a process, which is most of what a small training job costs. A rank
that `talweg run` starts as `torch_forks.py SOCKET PROGRAM...` sends its arguments, environment and descriptors to the
process that `TorchForks` started, which runs PROGRAM in a fork of its own and sends the exit status back. A test that
starts ranks itself calls `TorchForks.start()`. Nothing of Talweg is loaded before the fork; a rank whose starter ends
is killed.
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
    """The forking process; ends, with all its ranks, when the `with` block is left.

    `modules` are what it imports instead of torch, for another framework's ranks.
    """

    def __init__(self, modules: tuple[str, ...] = ("torch",)) -> None:
        self._modules = modules

    def __enter__(self) -> TorchForks:
        self._directory = tempfile.TemporaryDirectory(prefix="talweg.")
        path = os.path.join(self._directory.name, "forks")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, f"--listen={listener.fileno()}", *self._modules],
                stdin=subprocess.PIPE,
                # Threads of a numerical library would not be there after a fork.
                env=dict(os.environ, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1"),
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
        """Starts `python ARGUMENTS` as a fork, which talks through pipes."""
        return Fork(self._path, arguments, environment)

    def rank_of(self, starter: int) -> int | None:
        """The pid of the rank that runs for the process that `talweg run` has started for it."""
        try:
            return int(os.readlink(_name_of(self._path, starter)))
        except FileNotFoundError:
            return None

    def starter_of(self, rank: int) -> int:
        """The other way around; the rank itself where it is no fork of these."""
        for starter in (int(name) for name in os.listdir(self._directory.name) if name.isdigit()):
            if self.rank_of(starter) == rank:
                return starter
        return rank


@functools.cache
def torch_forks() -> TorchForks:
    """Those that have imported torch, for all tests of a program. They end after the last test."""
    import unittest  # A rank's own process needs it not.

    forks = TorchForks().__enter__()
    unittest.addModuleCleanup(forks.__exit__)
    return forks


class Fork:
    """A program in a fork. It has what tests use of `subprocess.Popen`, and does it alike."""

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
        """The exit status, negative where a signal has ended it."""
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
    """A link beside the socket, to the pid of the rank that runs for this process."""
    return os.path.join(os.path.dirname(path), str(starter))


def _request(
    path: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Sequence[int],
) -> socket.socket:
    """Asks for a fork with these as its standard input, output and error."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.connect(path)
    request = json.dumps({"arguments": [*arguments], "environment": dict(environment)})
    socket.send_fds(server, [request.encode() + b"\n"], descriptors)
    return server


def _receive_pid(server: socket.socket) -> tuple[int, int]:
    """The fork's pid, and a descriptor that stands for it."""
    text, [pidfd], _, _ = socket.recv_fds(server, 16, 1)
    return int(text), pidfd


def _receive_status(server: socket.socket) -> int:
    status = server.recv(16)
    return int(status) if status else -signal.SIGKILL  # The forking process has ended, and it too.


def _ask(path: str, arguments: list[str]) -> int:
    """What a rank's own process does: has the program run elsewhere, and ends as that did."""
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
    """The pid of the process at the other end."""
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Returns a request in the process that was forked for it, None in the parent at the end."""
    # By pid: its pidfd, its starter, and the link that names it.
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
                if key.data is not None:  # The rank has ended, or its starter has.
                    pid = key.data
                    if pid in ranks:
                        if key.fd != ranks[pid][0]:
                            os.kill(pid, signal.SIGKILL)
                        forget(pid)
                    continue
                client, _ = listener.accept()
                request = _receive(client)
                request["directory"] = os.path.dirname(listener.getsockname())
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
                name = _name_of(listener.getsockname(), _peer(client))
                with contextlib.suppress(FileExistsError):  # A test starts many itself.
                    os.symlink(str(pid), name)
                ranks[pid] = (pidfd, client, name)
                selector.register(pidfd, selectors.EVENT_READ, pid)
                selector.register(client, selectors.EVENT_READ, pid)
                with contextlib.suppress(OSError):
                    socket.send_fds(client, [str(pid).encode()], [pidfd])


def _leave_at_the_end() -> None:
    """The end of this process takes apart what has come since the fork, and nothing else.

    It would take apart all of torch, in memory that the forks share, for a third of a second.
    """
    import ctypes

    names = [name for name, module in sys.modules.items() if _is_installed(module)]

    def keep() -> None:
        kept = [sys.modules.pop(name, None) for name in names]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))

    # What is registered first is called last, by Python and by libc.
    atexit.register(keep)
    if "TALWEG_SANITIZER" not in os.environ:  # A sanitizer's own end is from before the fork.
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)


def _become(request: dict[str, Any]) -> None:
    """Runs the program as `python PROGRAM...` would."""
    import runpy

    _leave_at_the_end()
    for number, descriptor in enumerate(request["descriptors"]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(request["environment"])
    # What TensorFlow writes there, one that is killed leaves there.
    tempfile.tempdir = None if "TMPDIR" in os.environ else request["directory"]
    sys.argv = request["arguments"]
    # What the server's own PYTHONPATH did not name.
    for directory in os.environ.get("PYTHONPATH", "").split(":"):
        if directory and directory not in sys.path:
            sys.path.append(directory)
    runpy.run_path(sys.argv[0], run_name="__main__")


def _is_installed(module: object) -> bool:
    """Whether it is of a package that the environment has, and not Python's own."""
    return "site-packages" in (getattr(module, "__file__", None) or "")


def main() -> int:
    if not sys.argv[1].startswith("--listen="):
        return _ask(sys.argv[1], sys.argv[2:])
    for name in sys.argv[2:]:
        module = importlib.import_module(name)
        if name == "torch":  # The rest of it is imported by the first optimizer.
            module.optim.SGD([module.nn.Parameter(module.zeros(1))])
    listener = socket.socket(fileno=int(sys.argv[1].partition("=")[2]))
    # Else each rank's end takes a second of its own: it would visit, and so copy, all of torch.
    gc.collect()
    gc.freeze()
    request = _serve(listener)
    if request is not None:
        _become(request)
    return 0


if __name__ == "__main__":
    sys.exit(main())
