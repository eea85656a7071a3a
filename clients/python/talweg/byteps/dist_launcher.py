# SPDX-License-Identifier: Apache-2.0
"""BytePS's ssh launcher: runs a command as the scheduler, on each worker and on each server.

    dist_launcher.py -WH WORKERS -SH SERVERS --scheduler-ip HOST --scheduler-port PORT COMMAND...

The hostfiles have a line `host` or `host:sshport` for each machine. COMMAND is usually bpslaunch
with a program. The output of each command goes to sshlog/. The launcher ends when all commands have
ended. If one fails, it ends the others.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talweg._node.hosts import Ssh
from talweg.byteps import _shell
from talweg.errors import InvalidArgument, TalwegError

_LOG = Path("sshlog")
_ASK_S = 0.1
_GRACE_S = 20.0
_LAST_LINES = 5
# Runs the command in a session of its own, and ends that when ssh's stdin closes. sshd would leave it
# running. A shell that runs a line ends before what it has started: this waits for the rest, 20 s.
_REMOTE = (
    "exec 3<&0; setsid {command} </dev/null 3<&- & p=$!; "
    "(cat <&3; kill -s TERM -- -$p || kill -s TERM $p) >/dev/null 2>&1 & w=$!; "
    "wait $p; s=$?; kill $w 2>/dev/null; n=0; "
    "while [ $s = 143 ] && [ $n -lt 200 ] && kill -0 -- -$p 2>/dev/null; "
    "do sleep 0.1; n=$((n + 1)); done; exit $s"
)


@dataclass(frozen=True)
class _Place:
    host: str
    port: int


def _places(path: str) -> list[_Place]:
    found = []
    for line in Path(path).read_text().splitlines():
        text = line.strip()
        if not text:
            continue
        host, _, port = text.partition(":")
        # ssh would take a host that begins with a dash as an option.
        if not re.fullmatch(r"[\w.][\w.-]*", host) or not re.fullmatch("[0-9]{0,5}", port):
            raise InvalidArgument(f"{path}: '{text}' is not a host: write `host` or `host:sshport`")
        found.append(_Place(host, int(port or 22)))
    if not found:
        raise InvalidArgument(f"{path} names no host: write one a line")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dist_launcher.py", description=__doc__)
    parser.add_argument("-WH", "--worker-hostfile", required=True, help="a worker's host a line")
    parser.add_argument("-SH", "--server-hostfile", required=True, help="a server's host a line")
    parser.add_argument("--scheduler-ip", required=True, help="the scheduler's host")
    parser.add_argument("--scheduler-port", required=True, type=int, help="the scheduler's port")
    parser.add_argument("--interface", default="eth0", help="DMLC_INTERFACE. Default: eth0.")
    parser.add_argument("--env", action="append", default=[], help="K:V, a variable for all")
    parser.add_argument("--username", help="the user on the hosts. Default: as ssh has it.")
    parser.add_argument("--scheduler-ssh-port", type=int, default=22, help="Default: 22.")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    return parser


def _shared(options: Any, workers: int, servers: int) -> dict[str, str]:
    found = {
        name: os.environ[name] for name in ("OMP_NUM_THREADS", "KMP_AFFINITY") if name in os.environ
    }
    for pair in options.env:
        name, colon, value = pair.partition(":")
        if not colon or not name.isidentifier():
            raise InvalidArgument(f"--env {pair}: write NAME:VALUE")
        found[name] = value
    return {
        **found,
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_INTERFACE": options.interface,
        "DMLC_PS_ROOT_URI": options.scheduler_ip,
        "DMLC_PS_ROOT_PORT": str(options.scheduler_port),
    }


def remote_line(variables: dict[str, str], command: list[str]) -> str:
    """Returns the line for a host's shell. A single word is a line of shell. Several are quoted."""
    exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in variables.items())
    line = shlex.quote(_shell.becoming(command))
    return exports + _REMOTE.format(command=f"/bin/sh -c {line}")


class _Launch:
    def __init__(self, options: Any) -> None:
        self._options = options
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> int:
        options = self._options
        workers, servers = _places(options.worker_hostfile), _places(options.server_hostfile)
        shared = _shared(options, len(workers), len(servers))
        _LOG.mkdir(exist_ok=True)
        status = 0
        try:
            scheduler = _Place(options.scheduler_ip, options.scheduler_ssh_port)
            self._start("scheduler", scheduler, {**shared, "DMLC_ROLE": "scheduler"})
            for number, place in enumerate(workers):
                own = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(number)}
                self._start(f"worker{number}", place, {**shared, **own})
            for number, place in enumerate(servers):
                self._start(f"server{number}", place, {**shared, "DMLC_ROLE": "server"})
            while self._running and status == 0:
                status = self._ended()
                time.sleep(_ASK_S)
        finally:
            self._end()
        return status

    def _start(self, name: str, place: _Place, variables: dict[str, str]) -> None:
        ssh = Ssh(place.port, None, self._options.username)
        line = ssh.line(place.host, remote_line(variables, self._options.command))
        with open(_LOG / f"{name}.stdout", "wb") as out, open(_LOG / f"{name}.stderr", "wb") as err:
            try:
                self._running[name] = subprocess.Popen(
                    line,
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,  # Ctrl-C reaches it when this process closes its stdin.
                )
            except OSError as error:
                raise TalwegError(f"{line[0]} cannot be started: {error}") from None

    def _ended(self) -> int:
        """Reports the first command that has failed, and returns its status; 0 if none has."""
        for name, process in list(self._running.items()):
            status = process.poll()
            if status is None:
                continue
            del self._running[name]
            if status != 0:
                how = "ssh failed" if status == 255 else f"exit status {status}"
                lines = (_LOG / f"{name}.stderr").read_text(errors="replace").splitlines()
                print(
                    f"dist_launcher: {name} failed: {how}; all others were ended", file=sys.stderr
                )
                for line in lines[-_LAST_LINES:]:
                    print(f"    {line}", file=sys.stderr)
                return status
        return 0

    def _end(self) -> None:
        for process in self._running.values():
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        end = time.monotonic() + _GRACE_S
        for process in self._running.values():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main() -> int:
    options = _parser().parse_args()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        if not options.command:
            raise InvalidArgument(
                "there is no command: dist_launcher.py ... bpslaunch python train.py"
            )
        return _Launch(options).run()
    except (TalwegError, OSError) as error:
        print(f"dist_launcher: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
