# SPDX-License-Identifier: Apache-2.0
"""Ranks that do not import torch each: one process has imported it and forks for every rank.

Importing torch takes seconds of processor time a process, which is most of what a small training job costs. A rank
that `talweg run` starts as `torch_forks.py SOCKET PROGRAM...` sends its arguments, environment and descriptors to the
process that `TorchForks` started, which runs PROGRAM in a fork of its own and sends the exit status back. Nothing of
Talweg is loaded before the fork; a rank whose starter ends is killed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

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


def _ask(path: str, arguments: list[str]) -> int:
    """What a rank's own process does: has the program run elsewhere, and ends as that did."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(path)
        request = json.dumps({"arguments": arguments, "environment": dict(os.environ)})
        socket.send_fds(server, [request.encode() + b"\n"], [1, 2])
        status = server.recv(16)
    return int(status) if status else 1


def _receive(client: socket.socket) -> dict[str, Any]:
    data, descriptors, _, _ = socket.recv_fds(client, _REQUEST_BYTES_MAX, 2)
    while not data.endswith(b"\n"):
        more = client.recv(_REQUEST_BYTES_MAX)
        if not more:
            raise ConnectionError("half a request")
        data += more
    return dict(json.loads(data), descriptors=descriptors)


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Returns a request in the process that was forked for it, None in the parent at the end."""
    ranks: dict[int, tuple[int, socket.socket]] = {}  # By pid: its pidfd and its starter.
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ, None)
        selector.register(0, selectors.EVENT_READ, None)

        def forget(pid: int) -> None:
            pidfd, client = ranks.pop(pid)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(OSError):
                client.sendall(str(status if status >= 0 else 128 - status).encode())
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
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    for pidfd, other in ranks.values():
                        os.close(pidfd)
                        other.close()
                    client.close()
                    listener.close()
                    return request
                for descriptor in request["descriptors"]:
                    os.close(descriptor)
                pidfd = os.pidfd_open(pid)
                ranks[pid] = (pidfd, client)
                selector.register(pidfd, selectors.EVENT_READ, pid)
                selector.register(client, selectors.EVENT_READ, pid)


def _become(request: dict[str, Any]) -> None:
    """Runs the program as `python PROGRAM...` would."""
    import runpy

    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((null, 0), *zip(request["descriptors"], (1, 2))):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    # What the server's own PYTHONPATH did not name.
    for directory in os.environ.get("PYTHONPATH", "").split(":"):
        if directory and directory not in sys.path:
            sys.path.append(directory)
    runpy.run_path(sys.argv[0], run_name="__main__")


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
