# SPDX-License-Identifier: Apache-2.0
"""Measures what one TCP stream carries between two hosts: the B of the optimum's formula."""

from __future__ import annotations

import subprocess
import sys

from netns import Network

from harness.contender import ContenderFailed

_TIMEOUT_S = 120.0
# The bytes that a link of 1 Mb/s carries in one and a half seconds.
_BYTES_PER_MEGABIT_PER_S = 187_500

# It counts after the first tenth, when the token buckets are empty and the window is open.
_RECEIVE = """
import socket, sys, time
wanted = int(sys.argv[2])
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
buffer, total, begin, counted_from = bytearray(1 << 20), 0, 0, 0
while count := connection.recv_into(buffer):
    total += count
    if not begin and total >= wanted // 10:
        begin, counted_from = time.monotonic_ns(), total
    end = time.monotonic_ns()
print((total - counted_from) / (end - begin) * 1e9, flush=True)
"""
_SEND = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
left, chunk = int(sys.argv[3]), bytes(1 << 20)
while left > 0:
    connection.sendall(chunk[:left])
    left -= len(chunk)
"""


def goodput_bytes_per_s(
    network: Network, source: str, target: str, megabits_per_s: int, count_max: int | None = None
) -> float:
    """Returns the bytes a second of one stream of at most `count_max` bytes over such links."""
    count = megabits_per_s * _BYTES_PER_MEGABIT_PER_S
    if count_max is not None:
        count = min(count, count_max)
    receive = [*network.enter(target), sys.executable, "-c", _RECEIVE, network.address(target)]
    with subprocess.Popen([*receive, str(count)], stdout=subprocess.PIPE, text=True) as receiver:
        try:
            assert receiver.stdout is not None
            port = receiver.stdout.readline().strip()
            send = [*network.enter(source), sys.executable, "-c", _SEND, network.address(target)]
            subprocess.run([*send, port, str(count)], check=True, timeout=_TIMEOUT_S)
            return float(receiver.communicate(timeout=_TIMEOUT_S)[0])
        except (subprocess.SubprocessError, ValueError) as error:
            raise ContenderFailed(f"one TCP stream from {source} to {target}: {error}") from None
        finally:
            receiver.kill()
