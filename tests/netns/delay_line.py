# SPDX-License-Identifier: Apache-2.0
"""A long cable between two interfaces. Each way, a frame comes out of the other one a while later.

    delay_line.py INTERFACE INTERFACE MICROSECONDS

It says "ready", and ends with its stdin. The kernel cuts large frames into packets only at the hardware (TSO).
Here they pass in one piece, with checksums unfilled, so that a gigabit is a few thousand frames a second.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import sys
import time

_ETH_P_ALL = 3
_SOL_PACKET = 263
_PACKET_VNET_HDR = 15  # A header before each frame says what is left to do.
_PACKET_IGNORE_OUTGOING = 23
_SO_RCVBUFFORCE = 33
_BUFFER_BYTES = 32 << 20
_FRAME_BYTES_MAX = 1 << 17
_FRAMES_AT_ONCE = 64


class _Direction:
    """Frames on their way from one end to the other."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self._target = target
        self._frames: collections.deque[tuple[float, bytes]] = collections.deque()

    def take(self, delay_s: float) -> None:
        for _ in range(_FRAMES_AT_ONCE):
            try:
                frame = self.source.recv(_FRAME_BYTES_MAX)
            except BlockingIOError:
                return
            self._frames.append((time.monotonic() + delay_s, frame))

    def give(self) -> None:
        while self._frames and self._frames[0][0] <= time.monotonic():
            # A full queue after this end (ENOBUFS) loses the frame, as a switch's does.
            with contextlib.suppress(OSError):
                self._target.send(self._frames[0][1])
            self._frames.popleft()

    @property
    def due_s(self) -> float:
        """When the next frame comes out. Infinity: none is on its way."""
        return self._frames[0][0] if self._frames else float("inf")


def _end(interface: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    end.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    end.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    end.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    end.bind((interface, 0))
    end.setblocking(False)
    return end


def main() -> None:
    one, other, delay_s = _end(sys.argv[1]), _end(sys.argv[2]), int(sys.argv[3]) * 1e-6
    directions = [_Direction(one, other), _Direction(other, one)]
    print("ready", flush=True)
    while True:
        due_s = min(direction.due_s for direction in directions)
        timeout_s = None if due_s == float("inf") else max(0.0, due_s - time.monotonic())
        readable, _, _ = select.select([one, other, sys.stdin], [], [], timeout_s)
        if sys.stdin in readable:
            return
        for direction in directions:
            if direction.source in readable:
                direction.take(delay_s)
            direction.give()


if __name__ == "__main__":
    main()
