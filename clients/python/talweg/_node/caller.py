# SPDX-License-Identifier: Apache-2.0
"""Files for the ranks of a run on hosts that come and go, and the results that ranks leave.

A program starts `talweg run` by run(), and reads the results from what run() returns. The launcher
(hosts_run.py) has a Caller, which speaks with that program through a socket:

    {"files"}               the program's one line: files for TALWEG_TASK_DIR of each host, in base64
    {"report", "results"}   the launcher's one line, at its end: why the run has failed, and the
                            results by "node.local rank", in base64

When the program ends, the socket closes, and the launcher ends the run.
"""

from __future__ import annotations

import base64
import codecs
import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

from talweg import _programs
from talweg._node import hosts

_VARIABLE = "TALWEG_RUN_CALLER"  # The socket's descriptor. No rank gets the variable.
_TURN_S = 0.2
_PART_BYTES = 1 << 16


class Caller:
    """The launcher's side. A launcher whose starter wants no results has a Caller, too."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Blocks until the starter has sent its files. Takes the variable out of `environment`."""
        self.files: dict[str, str] = {}
        self._socket: socket.socket | None = None
        self._results: dict[str, str] = {}
        told = environment.pop(_VARIABLE, "")
        if told:
            self._socket = socket.socket(fileno=int(told))
            self._socket.set_inheritable(False)
            with self._socket.makefile("rb") as lines:
                line = lines.readline()
            # It is empty if the starter has ended: is_gone() says so.
            self.files = dict(json.loads(line)["files"]) if line else {}

    def is_gone(self) -> bool:
        """Whether the program that has started the run has ended."""
        if self._socket is None:
            return False
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def keep(self, results: Mapping[str, str]) -> None:
        """Keeps the results of a node that has ended well."""
        self._results |= results

    def answer(self, report: str) -> None:
        if self._socket is None:
            return
        line = json.dumps({"report": report, "results": self._results}).encode()
        with self._socket, contextlib.suppress(OSError):
            self._socket.setblocking(True)
            self._socket.sendall(line + b"\n")


class _Shown:
    """Shows what a pipe of the launcher brings, in this program's own output."""

    def __init__(self, stream: Any, is_error: bool) -> None:
        self.stream = stream
        self._is_error = is_error
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def read(self) -> bool:
        """Returns whether more may come."""
        part = os.read(self.stream.fileno(), _PART_BYTES)
        text = self._decoder.decode(part, final=not part)
        shown = sys.stderr if self._is_error else sys.stdout
        print(text, end="", file=shown, flush=True)
        return bool(part)


class _Answer:
    """What the launcher says at its end. It is empty if the launcher could not begin."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self._parts: list[bytes] = []

    def read(self) -> bool:
        try:
            part = self.stream.recv(1 << 20)
        except ConnectionResetError:
            return False
        self._parts += [part] if part else []
        return bool(part)

    def outcome(self, status: int) -> hosts.Outcome:
        text = b"".join(self._parts)
        said: dict[str, Any] = json.loads(text) if text.endswith(b"\n") else {}
        outcome = hosts.Outcome(status, report=said.get("report", ""))
        if status != 0:
            outcome.failure = outcome.report or f"exit status {status} (above)"
        # Ranks are numbered by their nodes, and nodes by their starts.
        places = sorted(
            (tuple(map(int, place.split("."))), text)
            for place, text in said.get("results", {}).items()
        )
        outcome.results = {
            rank: base64.b64decode(result) for rank, (_, result) in enumerate(places)
        }
        return outcome


def run(
    line: Sequence[str], environment: Mapping[str, str], files: Mapping[str, bytes]
) -> hosts.Outcome:
    """Runs a command line of `talweg run` for hosts that come and go. Returns when it has ended.

    `results` has what the ranks that have ended well have left, in the order of their numbers at
    the end. SIGTERM and Ctrl-C end the run, and raise KeyboardInterrupt.
    """
    own, its = socket.socketpair()
    with hosts.interruptible(), own:
        with its:
            process = subprocess.Popen(
                line,
                env={**environment, _VARIABLE: str(its.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[its.fileno()],
                start_new_session=True,  # Ctrl-C reaches it through this process.
            )
        with process:
            answer = _Answer(own)
            try:
                encoded = {name: base64.b64encode(each).decode() for name, each in files.items()}
                with contextlib.suppress(OSError):  # It has ended already.
                    own.sendall(json.dumps({"files": encoded}).encode() + b"\n")
                _follow(process, answer)
            except BaseException:
                _end(process, answer)
                raise
        return answer.outcome(_programs.shell_status(process.returncode))


def _follow(process: subprocess.Popen[bytes], answer: _Answer) -> None:
    """Returns when the launcher has ended, and all that it has written has been read."""
    readers: list[_Shown | _Answer] = [
        _Shown(process.stdout, False),
        _Shown(process.stderr, True),
        answer,
    ]
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader.stream, selectors.EVENT_READ, reader.read)
        while selector.get_map():
            has_ended = process.poll() is not None
            ready = selector.select(0.0 if has_ended else _TURN_S)
            if has_ended and not ready:
                return  # A process that outlives the launcher, such as ssh's master, has a pipe.
            for key, _ in ready:
                read: Callable[[], bool] = key.data
                if not read():
                    selector.unregister(key.fileobj)
    process.wait()


def _end(process: subprocess.Popen[bytes], answer: _Answer) -> None:
    """Ends the run. Shows how it ends, unless that fails or is interrupted, too."""
    process.terminate()
    try:
        _follow(process, answer)
    except BaseException:
        process.terminate()  # After a second signal the launcher kills all.
        raise
