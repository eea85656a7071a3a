# SPDX-License-Identifier: Apache-2.0
"""A real sshd with keys of its own, for tests. Only root can run one."""

from __future__ import annotations

import os
import subprocess
import time
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path

from permitted import needs, skip

_CONFIGURATION = """
Port {port}
{addresses}
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
"""
# sshd wants /run/sshd, which is then this one's own.
_SCRIPT = 'mount -t tmpfs none /run && mkdir /run/sshd && exec "$@"'
# Far above what anything here takes: it ends a hang.
_TIMEOUT_S = 120.0


def make_keys(directory: Path, *others: str) -> None:
    """`host_key`, `user_key`, and others that no sshd knows."""
    if os.getuid() != 0:
        skip("sshd is root's")
    for program in ("ssh", "sshd"):
        needs(program)
    for name in ("host_key", "user_key", *others):
        line = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
        subprocess.run(line, check=True, timeout=_TIMEOUT_S)


def start(
    test: unittest.TestCase,
    directory: Path,
    addresses: Sequence[str],
    port: int,
    answers: Callable[[], bool],
    enter: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Starts an sshd with the keys of the directory, which ends with the test; returns when it
    answers. `enter` goes before the command.
    """
    name = addresses[0]
    configuration = directory / f"sshd_config.{name}"
    lines = "\n".join(f"ListenAddress {address}" for address in addresses)
    configuration.write_text(_CONFIGURATION.format(port=port, addresses=lines, directory=directory))
    line = ["unshare", "--mount", "sh", "-c", _SCRIPT, "sh", needs("sshd"), "-D", "-e", "-f"]
    log_path = directory / f"sshd.log.{name}"
    with log_path.open("wb") as log:
        daemon = subprocess.Popen(
            [*enter, *line, str(configuration)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    test.addCleanup(daemon.wait)
    test.addCleanup(daemon.terminate)
    end = time.monotonic() + _TIMEOUT_S
    while not answers():
        if daemon.poll() is not None or time.monotonic() > end:
            test.fail(f"no sshd: {log_path.read_text()}")
        time.sleep(0.05)
    return daemon


def client(directory: Path, *options: str) -> str:
    """The text of a program to call ssh by, which knows hosts by a file of the directory.

    That a host is new is no news.
    """
    own = ["-o LogLevel=ERROR", f"-o UserKnownHostsFile={directory}/known_hosts", *options]
    return f'#!/bin/sh\nexec {needs("ssh")} {" ".join(own)} "$@"\n'
