# SPDX-License-Identifier: Apache-2.0
"""Starts a job's ranks on several hosts by ssh, and ends with them.

ranks.py does it there. What it needs goes over ssh's stdin: no secret and no variable is on a
command line. The ranks' init() brings up the daemons, and the nodes meet at the first host.
"""

from __future__ import annotations

import base64
import contextlib
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
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from talweg._node.meeting import own_addresses
from talweg.errors import InvalidArgument, TalwegError

_START = "import sys; sys.path.insert(0, sys.argv[1]); from _node import ranks; ranks.main()"
_GRACE_S = 15.0
# What is one machine's own, or would name another's rank.
_NOT_SENT = re.compile(
    "(BASH_FUNC_|SSH_|XDG_|OMPI_|PMI|SLURM_|TALWEG_AGENT_SOCKET|TORCHELASTIC_)|"
    "(CUDA_VISIBLE_DEVICES|DBUS_SESSION_BUS_ADDRESS|DISPLAY|HOSTNAME|OLDPWD|PWD|SHLVL|TMPDIR|TERM|_)$"
)


@dataclass(frozen=True)
class Host:
    name: str
    slots: int


@dataclass
class Ssh:
    """How hosts are reached. `program` stands for ssh."""

    port: int | None = None
    identity_file: str | None = None
    user: str | None = None
    program: str = "ssh"

    def line(self, host: str, command: str) -> list[str]:
        options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new"]
        options += ["-p", str(self.port)] if self.port else []
        options += ["-i", self.identity_file] if self.identity_file else []
        options += ["-l", self.user] if self.user else []
        return [self.program, *options, host, command]


@dataclass
class Launch:
    """`say` gets what ranks write: rank, "stdout" or "stderr", a line."""

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
    """`failure` says who failed first; results are what ranks have left, by rank."""

    status: int = 0
    failure: str = ""
    results: dict[int, bytes] = field(default_factory=dict)


def parse_hosts(text: str) -> list[Host]:
    """ "a:2,b:4"; a host without a number has one slot."""
    found = []
    for part in text.split(","):
        name, _, slots = part.strip().partition(":")
        if not re.fullmatch(r"[\w.-]+", name) or (slots and not slots.isdecimal()):
            raise InvalidArgument(f"-H: '{part}' is no host: write host:slots, as in a:2,b:4")
        found.append(Host(name, int(slots or 1)))
    return found


def parse_hostfile(text: str) -> list[Host]:
    """Lines `host slots=n`."""
    found = []
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        slots = words[1].partition("=")[2] if len(words) > 1 else "1"
        if len(words) > 2 or not slots.isdecimal():
            raise InvalidArgument(f"--hostfile: '{line}' is no host: write `host slots=n`")
        found.append(Host(words[0], int(slots)))
    return found


def deal(hosts: Sequence[Host], ranks: int) -> list[Host]:
    """The hosts with as many slots as ranks; they are filled in order."""
    dealt: list[Host] = []
    left = ranks
    for host in hosts:
        if left > 0 and host.slots > 0:
            dealt.append(Host(host.name, min(host.slots, left)))
            left -= dealt[-1].slots
    if left > 0:
        total = sum(host.slots for host in hosts)
        raise InvalidArgument(
            f"-np is {ranks}, and the hosts have {total} slots: name more hosts, or more slots"
        )
    return dealt


def is_here(host: str) -> bool:
    return host in {"localhost", "127.0.0.1", socket.gethostname(), socket.getfqdn()}


def _variables(launch: Launch, hosts: Sequence[Host]) -> dict[str, str]:
    """What all ranks have."""
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


class _Run:
    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._hosts = deal(launch.hosts, launch.ranks)
        self._selector = selectors.DefaultSelector()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
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
            while self._processes:
                for key, _ in self._selector.select(0.2):
                    self._read(key)
        finally:
            self._end()
        missing = sorted(set(range(self._launch.ranks)) - self._ended)
        if missing and not self._outcome.status:
            self._fail(1, f"rank {missing[0]} has not said how it ended")
        return self._outcome

    def _start(self, host: Host, own: dict[str, dict[str, str]], secret: str) -> None:
        launch = self._launch
        kept = {
            name: value for name, value in launch.environment.items() if not _NOT_SENT.match(name)
        }
        here = is_here(host.name)
        task = {
            "command": list(launch.command),
            "directory": os.getcwd(),
            "environment": dict(launch.environment) if here else kept,
            "variables": own,
            "secret": secret,
            "interfaces": list(launch.interfaces),
            "files": {name: base64.b64encode(data).decode() for name, data in launch.files.items()},
        }
        line = [launch.python, "-I", "-S", "-c", _START, str(Path(__file__).parents[1])]
        if not here:
            line = launch.ssh.line(host.name, shlex.join(line))
        try:
            process = subprocess.Popen(
                line,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is passed on by closing its stdin.
            )
        except OSError as error:
            raise TalwegError(f"{line[0]} cannot be started: {error}") from None
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.flush()
        os.set_blocking(process.stdout.fileno(), False)
        self._processes[host.name] = process
        self._selector.register(process.stdout, selectors.EVENT_READ, [host.name, b""])

    def _read(self, key: selectors.SelectorKey) -> None:
        name, before = key.data
        part = os.read(key.fd, 1 << 20)
        *lines, key.data[1] = (before + part).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        if part:
            return
        self._selector.unregister(key.fileobj)
        process = self._processes.pop(name)
        status = process.wait()
        if status != 0:
            how = "ssh to it failed" if status == 255 else f"exit status {status}"
            self._fail(
                1, f"the ranks of host {name} could not be started or watched: {how} (above)"
            )

    def _take(self, message: dict[str, Any]) -> None:
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
        for process in self._processes.values():
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()

    def _end(self) -> None:
        """Also after an interrupt."""
        self._ask_to_end()
        end = time.monotonic() + _GRACE_S
        for process in self._processes.values():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def run(launch: Launch) -> Outcome:
    """Returns when all ranks have ended. SIGTERM ends them, as Ctrl-C does: KeyboardInterrupt.

    InvalidArgument when the hosts have too few slots; TalwegError when ssh is not there.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        return _Run(launch).run()
    finally:
        signal.signal(signal.SIGTERM, before)
