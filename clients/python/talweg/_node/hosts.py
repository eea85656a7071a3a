# SPDX-License-Identifier: Apache-2.0
"""Starts a job's ranks on several hosts by ssh, and ends with them.

ranks.py starts them on each host. It gets its Task through ssh's stdin, so no secret and no
variable is on a command line. The ranks' init() starts the daemons, and the nodes meet at the first
host.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import re
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from talweg._counted import counted
from talweg._node import ranks
from talweg._node.listed_hosts import Host
from talweg._node.meeting import own_addresses
from talweg._node.signals import Signals
from talweg._node.stderr import say
from talweg.errors import InvalidArgument, TalwegError

_START = "import sys; sys.path.insert(0, sys.argv[1]); from _node import ranks; ranks.main()"
# How a message of ranks.py begins, and the fields that each kind of message has.
_BEGIN = re.compile(rb'\{"(?:rank|here)": ')
_KINDS = ({"rank", "stream", "text"}, {"rank", "status"}, {"rank", "result", "place"}, {"here"})
# How long a host's ranks may take to end.
GRACE_S = 15.0
# Variables that belong to one machine, or that name a rank of another launcher.
_NOT_SENT = re.compile(
    "(BASH_FUNC_|SSH_|XDG_|OMPI_|PMI|SLURM_|TALWEG_AGENT_SOCKET|TORCHELASTIC_)|"
    "(CUDA_VISIBLE_DEVICES|DBUS_SESSION_BUS_ADDRESS|DISPLAY|HOSTNAME|OLDPWD|PWD|SHLVL|TMPDIR|TERM|_)$"
)


@dataclass
class Ssh:
    """How the launcher reaches hosts. `program` is the command to run as ssh."""

    port: int | None = None
    identity_file: str | None = None
    user: str | None = None
    program: str = "ssh"
    # A host that says nothing for so long counts as gone.
    silence_s: float = 30.0

    def line(self, host: str, command: str) -> list[str]:
        options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new"]
        options += ["-o", f"ServerAliveInterval={max(1, round(self.silence_s / 3))}"]
        options += ["-o", "ServerAliveCountMax=3"]
        options += ["-o", f"ConnectTimeout={max(1, round(self.silence_s))}"]
        options += ["-p", str(self.port)] if self.port else []
        options += ["-i", self.identity_file] if self.identity_file else []
        options += ["-l", self.user] if self.user else []
        return [self.program, *options, host, command]


@dataclass
class Launch:
    """The ranks to start, and where.

    `say` is called with what ranks write: the rank, "stdout" or "stderr", and a line, or a part of
    a line that ends with a carriage return.
    """

    command: Sequence[str]
    ranks: int
    hosts: Sequence[Host]
    say: Callable[[int, str, str], None]
    ssh: Ssh = field(default_factory=Ssh)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    interfaces: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    python: str = sys.executable


@dataclass
class Outcome:
    """How a launch has ended. `failure` names the first rank or host that failed. `report` says
    which hosts the job has ended well without. `results` has the files that ranks have left, by
    rank.
    """

    status: int = 0
    failure: str = ""
    report: str = ""
    results: dict[int, bytes] = field(default_factory=dict)


def deal(hosts: Sequence[Host], ranks: int) -> list[Host]:
    """Returns the hosts to use, each with the slots that get a rank. Hosts are filled in order.

    Raises InvalidArgument if the hosts have fewer slots than `ranks`.
    """
    dealt: list[Host] = []
    left = ranks
    for host in hosts:
        if left > 0 and host.slots > 0:
            dealt.append(Host(host.name, min(host.slots, left)))
            left -= dealt[-1].slots
    if left > 0:
        total = sum(host.slots for host in hosts)
        raise InvalidArgument(
            f"-np is {ranks}, and the hosts have {counted(total, 'slot')}: name more hosts, or more slots"
        )
    return dealt


@functools.cache
def _full_name() -> str:
    """Returns this host's name with its domain. A name server may keep this waiting for long."""
    return socket.getfqdn()


def is_here(host: str) -> bool:
    return host in {"localhost", "127.0.0.1", socket.gethostname()} or host == _full_name()


def _variables(launch: Launch, hosts: Sequence[Host]) -> dict[str, str]:
    """Returns the variables that all ranks get."""
    first = hosts[0].name
    own = [address for address in own_addresses() if ":" not in address]
    addresses = own if is_here(first) else [first]
    if len(hosts) == 1:
        addresses = ["127.0.0.1"]
    return {
        "WORLD_SIZE": str(launch.ranks),
        "GROUP_WORLD_SIZE": str(len(hosts)),
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": str(20000 + secrets.randbelow(12000)),
        "TALWEG_RENDEZVOUS": ",".join(addresses),
        "TALWEG_RUN_ID": secrets.token_hex(8),
        "PYTHONUNBUFFERED": "1",
    }


def sent(environment: Mapping[str, str], is_here: bool) -> dict[str, str]:
    """Returns the variables of an environment that the ranks of a host get."""
    if is_here:
        return dict(environment)
    return {name: value for name, value in environment.items() if not _NOT_SENT.match(name)}


def end_of(text: str) -> str:
    """Returns the end of a text that a rank has written: empty for a part of a line."""
    return "" if text.endswith("\r") else "\n"


def _parted(line: bytes) -> tuple[str, dict[str, Any] | None]:
    """Returns what stands in a line before a message of ranks.py, and the message, if there is one.

    A host's shell may print text when ssh starts it, also without the end of a line.
    """
    message: Any = None
    end = len(line)
    for begin in _BEGIN.finditer(line):
        with contextlib.suppress(ValueError, RecursionError):
            message = json.loads(line[begin.start() :])
            end = begin.start()
            break
    if message is None or not any(kind <= message.keys() for kind in _KINDS):
        message, end = None, len(line)
    return line[:end].decode(errors="replace").strip(), message


class OnHost:
    """A ranks.py that runs on one host, here or by ssh. It ends when this process does.

    `task` is its Task, and `python` the interpreter on that host. Raises TalwegError if there is no
    ssh. Any thread may call beat(). All else belongs to one thread.
    """

    def __init__(self, host: str, task: Mapping[str, Any], ssh: Ssh, python: str) -> None:
        self.host = host
        self._text: list[bytes] = []  # Parts of a line whose end has not come.
        # With a large environment the task does not fit into a pipe, and nobody reads it before ssh
        # has reached the host.
        self._unsent = bytearray(json.dumps(task).encode() + b"\n")
        self._unsent_lock = threading.Lock()  # It also protects stdin.
        self._selectors: list[selectors.BaseSelector] = []
        line = [python, "-I", "-S", "-c", _START, str(Path(__file__).parents[1])]
        if not is_here(host):
            line = ssh.line(host, shlex.join(line))
        try:
            self._process = subprocess.Popen(
                line,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C reaches it when this process closes its stdin.
            )
        except OSError as error:
            raise TalwegError(f"{line[0]} cannot be started: {error}") from None
        assert self._process.stdin is not None and self._process.stdout is not None
        for stream in (self._process.stdout, self._process.stdin):
            os.set_blocking(stream.fileno(), False)
        self.send()

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read(self) -> list[dict[str, Any]] | None:
        """Returns the messages that have come, without waiting; None if no more will come.

        A text that another program has printed there is a message {"printed"}.
        """
        try:
            part = os.read(self.fileno(), 1 << 20)
        except BlockingIOError:
            return []
        if not part:
            return None
        *lines, rest = part.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._text, lines[0]])
            self._text.clear()
        self._text += [rest] if rest else []
        messages: list[dict[str, Any]] = []
        for line in lines:
            printed, message = _parted(line)
            if printed:
                messages.append({"printed": f"host {self.host} printed: {printed}"})
            if message is not None:
                messages.append(message)
        return messages

    def failure(self) -> str:
        """Returns, after the last message, why it could not do its work; empty if it could."""
        status = self._process.wait()
        self._close()
        if status == 0:
            return ""
        how = "ssh to it failed" if status == 255 else f"exit status {status}"
        return f"the ranks of host {self.host} could not be started or watched: {how} (above)"

    def begin(self, words: str) -> None:
        """Has a task that waits start its ranks. `words` complete its command."""
        self._add(ranks.BEGIN + words.encode() + b"\n")

    def tell_of_hosts(self, has_come: bool, has_gone: bool) -> None:
        """Tells the ranks that the list of hosts has changed."""
        self._add(ranks.NEWS + str(has_gone + 2 * has_come).encode() + b"\n")

    def beat(self) -> None:
        """Tells a task that has a `silence_s` that this launcher still reaches it."""
        with self._unsent_lock:
            if not self._unsent:
                self._unsent += ranks.BEAT
                self._write()

    def _add(self, text: bytes) -> None:
        with self._unsent_lock:
            self._unsent += text
            self._write()

    def send(self) -> None:
        """Sends as much of the unsent text as the pipe has room for."""
        with self._unsent_lock:
            self._write()

    def _write(self) -> None:
        stdin = self._process.stdin
        if stdin is None or stdin.closed:
            return
        try:
            while self._unsent:
                del self._unsent[: os.write(stdin.fileno(), self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # The process is ending.
            self._unsent.clear()

    def wake(self, selector: selectors.BaseSelector) -> None:
        """Has the selector wake when more can be sent, while text is unsent. The data of the
        selector's key is None.
        """
        stdin = self._process.stdin
        is_in = selector in self._selectors
        if stdin is None or stdin.closed or bool(self._unsent) == is_in:
            return
        if is_in:
            self._selectors.remove(selector)
            selector.unregister(stdin)
        else:
            self._selectors.append(selector)
            selector.register(stdin, selectors.EVENT_WRITE)

    def ask_to_end(self) -> None:
        stdin = self._process.stdin
        if stdin is None or stdin.closed:
            return
        for selector in self._selectors:
            selector.unregister(stdin)
        self._selectors.clear()
        with self._unsent_lock, contextlib.suppress(OSError):
            stdin.close()

    def kill(self) -> None:
        """Kills it. The connection breaks then, and what it has started on the host ends."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self, deadline_s: float) -> None:
        """Returns when it has ended. Kills it when time.monotonic() is `deadline_s`."""
        try:
            self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        self.ask_to_end()
        assert self._process.stdout is not None
        self._process.stdout.close()


class _Run:
    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._hosts = deal(launch.hosts, launch.ranks)
        self._selector = selectors.DefaultSelector()
        self._running: list[OnHost] = []
        self._outcome = Outcome()
        self._ended: set[int] = set()

    def run(self) -> Outcome:
        shared = _variables(self._launch, self._hosts)
        secret = secrets.token_hex(32)
        base = 0
        try:
            for node, host in enumerate(self._hosts):
                own = {
                    str(base + local): {
                        **shared,
                        "RANK": str(base + local),
                        "LOCAL_RANK": str(local),
                        "LOCAL_WORLD_SIZE": str(host.slots),
                        "GROUP_RANK": str(node),
                    }
                    for local in range(host.slots)
                }
                base += host.slots
                self._start(host, own, secret)
            while self._running:
                for key, _ in self._selector.select(0.2):
                    if key.data is not None:
                        self._read(key.data)
                for on_host in self._running:
                    on_host.send()
                    on_host.wake(self._selector)
        finally:
            self._end()
        missing = sorted(set(range(self._launch.ranks)) - self._ended)
        if missing and not self._outcome.status:
            self._fail(1, f"rank {missing[0]} has not said how it ended")
        return self._outcome

    def _start(self, host: Host, own: dict[str, dict[str, str]], secret: str) -> None:
        launch = self._launch
        task = {
            "command": list(launch.command),
            "directory": os.getcwd(),
            "environment": sent(launch.environment, is_here(host.name)),
            "variables": own,
            "secret": secret,
            "interfaces": list(launch.interfaces),
            "files": {name: base64.b64encode(data).decode() for name, data in launch.files.items()},
        }
        started = OnHost(host.name, task, launch.ssh, launch.python)
        self._running.append(started)
        self._selector.register(started, selectors.EVENT_READ, started)

    def _read(self, on_host: Any) -> None:
        messages = on_host.read()
        for message in messages or []:
            self._take(message)
        if messages is not None:
            return
        self._selector.unregister(on_host)
        self._running.remove(on_host)
        failure = on_host.failure()
        if failure:
            self._fail(1, failure)

    def _take(self, message: dict[str, Any]) -> None:
        if "printed" in message:
            say(message["printed"])
            return
        rank = int(message["rank"])
        if "text" in message:
            self._launch.say(rank, message["stream"], message["text"])
        elif "result" in message:
            self._outcome.results[rank] = base64.b64decode(message["result"])
        else:
            self._ended.add(rank)
            status = int(message["status"])
            if status != 0:
                self._fail(status, f"rank {rank} failed first, with exit status {status}")

    def _fail(self, status: int, text: str) -> None:
        if not self._outcome.status:
            self._outcome.status, self._outcome.failure = status, text
        self._ask_to_end()

    def _ask_to_end(self) -> None:
        for on_host in self._running:
            on_host.ask_to_end()

    def _end(self) -> None:
        """Ends all hosts. It is also called after an interrupt."""
        self._ask_to_end()
        deadline_s = time.monotonic() + GRACE_S
        for on_host in self._running:
            on_host.end(deadline_s)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Has SIGTERM raise KeyboardInterrupt, as Ctrl-C does; a repeat within a second does not. In
    other threads than the main one it does nothing, because they get no signals.
    """
    signals = Signals()

    def interrupt(number: int, _: object) -> None:
        if signals.add(number, time.monotonic()):
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run(launch: Launch) -> Outcome:
    """Starts the ranks, and returns when all have ended.

    SIGTERM and Ctrl-C end the ranks, and raise KeyboardInterrupt. Raises InvalidArgument if the
    hosts have too few slots, and TalwegError if there is no ssh.
    """
    with interruptible():
        return _Run(launch).run()
