# SPDX-License-Identifier: Apache-2.0
"""Reads lists of hosts: from text, from a file that may change, and from a script's output."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from talweg.errors import InvalidArgument, TalwegError

_SCRIPT_S = 60.0
_LAST_LINES = 5
# How long the text of a script or a file may be.
_TEXT_BYTES_MAX = 1 << 20
_SHOWN_MAX = 100


@dataclass(frozen=True)
class Host:
    name: str
    slots: int


def _host(text: str, slots_default: int) -> Host | None:
    name, _, slots = text.partition(":")
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("-"):
        return None
    if slots and not re.fullmatch(r"[0-9]{1,6}", slots):
        return None
    return Host(name, int(slots or slots_default))


def _shown(line: str) -> str:
    return repr(line if len(line) <= _SHOWN_MAX else line[:_SHOWN_MAX] + "...")


def parse_hosts(text: str, slots_default: int = 1) -> list[Host]:
    """Returns the hosts of a text like "a:2,b:4"."""
    found = []
    for part in text.split(","):
        host = _host(part.strip(), slots_default)
        if host is None:
            raise InvalidArgument(
                f"hosts: {_shown(part)} is not a host: write host:slots, as in a:2,b:4"
            )
        found.append(host)
    return found


def parse_lines(text: str, source: str, slots_default: int = 1) -> list[Host]:
    """Returns the hosts of lines `host`, `host:slots` or `host slots=n`. Skips text after a #."""
    found: dict[str, Host] = {}
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        host = _host(words[0], slots_default)
        if host is not None and len(words) == 2:
            told = re.fullmatch(r"slots=([0-9]{1,6})", words[1])
            host = Host(host.name, int(told[1])) if told and ":" not in words[0] else None
        if host is None or len(words) > 2:
            raise InvalidArgument(
                f"{source}: {_shown(line)} is not a host: write `host`, `host:slots` or `host slots=n`"
            )
        if host.name in found:
            raise InvalidArgument(f"{source}: host {host.name} is there twice: name it once")
        found[host.name] = host
    return list(found.values())


class HostList(Protocol):
    """A source of a job's hosts. No call blocks."""

    def poll(self, now_s: float) -> list[Host] | None:
        """Returns the list if it may have changed since the last call, else None.

        Raises TalwegError or OSError if there is no list now. The next call tries again.
        """

    def close(self) -> None: ...


class FixedHosts:
    """A list that does not change. Raises InvalidArgument if it names a host twice."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        names = [host.name for host in hosts]
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgument(f"--hosts: host {name} is there twice: name it once")
        self._hosts: list[Host] | None = list(hosts)

    def poll(self, now_s: float) -> list[Host] | None:
        hosts, self._hosts = self._hosts, None
        return hosts

    def close(self) -> None:
        pass


class HostFile:
    """A file of hosts. A change counts when the file has stayed the same for one more poll."""

    def __init__(self, path: str, every_s: float, slots_default: int) -> None:
        self._path = path
        self._every_s = every_s
        self._slots_default = slots_default
        self._due_s = 0.0
        self._text: str | None = None
        self._read: str | None = None  # The text that was read last.

    def poll(self, now_s: float) -> list[Host] | None:
        if now_s < self._due_s:
            return None
        self._due_s = now_s + self._every_s
        try:
            with Path(self._path).open(errors="replace") as file:
                text = file.read(_TEXT_BYTES_MAX + 1)
        except OSError as error:
            raise TalwegError(f"--hostfile={self._path}: {error.strerror}") from None
        if len(text) > _TEXT_BYTES_MAX:
            raise InvalidArgument(
                f"--hostfile={self._path} has more than {_TEXT_BYTES_MAX >> 20} MiB: let it have a "
                "line for each host"
            )
        before, self._read = self._read, text
        if text == self._text or (before is not None and text != before):
            return None  # Somebody may be writing the file.
        hosts = parse_lines(text, f"--hostfile={self._path}", self._slots_default)
        self._text = text
        return hosts

    def close(self) -> None:
        pass


class HostScript:
    """A program that prints the hosts, and that is run every `every_s` seconds. `command` is its
    path, or a line for sh, such as one with arguments. A name without a / is a program on PATH, or
    else of this directory. sh also reads a program without a #! line.
    """

    def __init__(self, command: str, every_s: float, slots_default: int) -> None:
        self._command = command
        self._every_s = every_s
        self._slots_default = slots_default
        self._due_s = 0.0
        self._late_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def poll(self, now_s: float) -> list[Host] | None:
        if self._process is None:
            if now_s >= self._due_s:
                self._start(now_s)
            return None
        assert self._output is not None and self._errors is not None
        status = self._process.poll()
        sizes = [os.fstat(file.fileno()).st_size for file in (self._output, self._errors)]
        if max(sizes) > _TEXT_BYTES_MAX:
            self._end()
            raise TalwegError(
                f"--host-discovery-script={self._command} has printed more than "
                f"{_TEXT_BYTES_MAX >> 20} MiB, and was killed: let it print a line for each host"
            )
        if status is None and now_s < self._late_s:
            return None
        if status is None:
            self._end()
            raise TalwegError(
                f"--host-discovery-script={self._command} has not ended within {_SCRIPT_S:g} s, and "
                "was killed: let it print the hosts and end"
            )
        texts = []
        for file in (self._output, self._errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        self._end()
        if status != 0:
            lines = "".join(f"\n    {line}" for line in texts[1].splitlines()[-_LAST_LINES:])
            how = f"exit status {status}" if status > 0 else f"signal {-status}"
            raise TalwegError(f"--host-discovery-script={self._command} failed: {how}{lines}")
        return parse_lines(texts[0], "--host-discovery-script", self._slots_default)

    def _start(self, now_s: float) -> None:
        self._due_s, self._late_s = now_s + self._every_s, now_s + _SCRIPT_S
        self._output, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        words = self._words()
        try:
            try:
                self._process = self._popen(words)
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                self._process = self._popen(["/bin/sh", *words])
        except OSError as error:
            self._end()
            raise TalwegError(
                f"--host-discovery-script={self._command} cannot be started: {error.strerror}; it "
                "must be the path of a program that may be run (chmod +x)"
            ) from None

    def _popen(self, words: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            start_new_session=True,
        )

    def _words(self) -> list[str]:
        command = self._command
        if not Path(command).exists():
            is_line = shlex.quote(command) != command
            return ["/bin/sh", "-c", command] if is_line else [command]
        is_found = "/" in command or shutil.which(command) is not None
        return [command if is_found else f"./{command}"]

    def _end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for file in (self._output, self._errors):
            if file is not None:
                file.close()
        self._process = self._output = self._errors = None

    def close(self) -> None:
        self._end()
