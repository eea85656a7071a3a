# SPDX-License-Identifier: Apache-2.0
"""Makes the bytes of gRPC by hand, for clients that send what no gRPC library would send."""

from __future__ import annotations

import socket
import struct
from types import TracebackType

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0,
    1,
    3,
    4,
    6,
    7,
    8,
    9,
)
ACK, END_STREAM, END_HEADERS = 1, 1, 4
FRAME_BYTES_MAX = 16384
_WINDOW_BYTES = 65535
_FIRST_WINDOW = 4  # The setting of a stream's first window (SETTINGS_INITIAL_WINDOW_SIZE).


def number(value: int) -> bytes:
    """Returns a length in HPACK, with a prefix of seven bits."""
    if value < 127:
        return bytes([value])
    value -= 127
    out = bytearray([127])
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(name: str, value: bytes) -> bytes:
    """Returns a literal field of HPACK that is not stored in the table."""
    key = name.encode()
    return b"\0" + number(len(key)) + key + number(len(value)) + value


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + payload


def request(method: str) -> bytes:
    """Returns the fields with which the metadata of each call begins."""
    block = field(":method", b"POST") + field(":scheme", b"http")
    block += field(":path", method.encode()) + field(":authority", b"localhost")
    return block + field("content-type", b"application/grpc") + field("te", b"trailers")


class RawHttp2:
    """One connection to a gRPC port. It sends as much as the other end's windows allow."""

    def __init__(self, address: str, timeout_s: float, answer_window: int = _WINDOW_BYTES) -> None:
        """`answer_window` is how many bytes of each answer the other end may send."""
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._window = _WINDOW_BYTES  # The window of the connection.
        self._first_window = _WINDOW_BYTES  # The first window of each stream.
        self._windows: dict[int, int] = {}
        self.ended: set[int] = set()  # Streams that the other end has answered or reset.
        self.closed: set[int] = set()  # Streams on which nothing more will come.
        self.is_over = False
        self._received = b""
        self._next_stream = 1
        window = struct.pack(">HI", _FIRST_WINDOW, answer_window)
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0, window))

    def __enter__(self) -> RawHttp2:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._socket.close()

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            self.is_over = True

    def call(self, method: str, metadata: dict[str, bytes] | None = None) -> int:
        """Begins a call, and sends no message. Returns its stream."""
        stream = self._next_stream
        self._next_stream += 2
        block = request(method)
        for name, value in (metadata or {}).items():
            block += field(name, value)
        parts = [block[i : i + FRAME_BYTES_MAX] for i in range(0, len(block), FRAME_BYTES_MAX)]
        self._windows[stream] = self._first_window
        for i, part in enumerate(parts):
            flags = END_HEADERS if i == len(parts) - 1 else 0
            self._send(frame(HEADERS if i == 0 else CONTINUATION, flags, stream, part))
        return stream

    def send(self, stream: int, data: bytes) -> int:
        """Sends as much of the data as the windows allow now. Returns how much that was."""
        room = min(len(data), self._window, self._windows[stream])
        sent = 0
        while sent < room and not self.is_over and stream not in self.ended:
            part = data[sent : min(room, sent + FRAME_BYTES_MAX)]
            self._send(frame(DATA, 0, stream, part))
            sent += len(part)
        self._window -= sent
        self._windows[stream] -= sent
        return sent

    def ask(self, method: str, message: bytes) -> int:
        """Makes a whole call, whose answer may come. Returns its stream."""
        stream = self.call(method)
        self._send(frame(DATA, END_STREAM, stream, struct.pack(">BI", 0, len(message)) + message))
        return stream

    def take(self, timeout_s: float) -> bool:
        """Takes what has come, and waits for it for `timeout_s`. Returns False if nothing came."""
        self._socket.settimeout(timeout_s)
        try:
            data = self._socket.recv(1 << 20)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        if not data:
            self.is_over = True
            return False
        self._received += data
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + size:
                break
            kind, flags = self._received[3], self._received[4]
            stream = int.from_bytes(self._received[5:9], "big") & 0x7FFFFFFF
            self._on_frame(kind, flags, stream, self._received[9 : 9 + size])
            self._received = self._received[9 + size :]
        return True

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for i in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[i : i + 6])
                if name != _FIRST_WINDOW:
                    continue
                for each in self._windows:
                    self._windows[each] += value - self._first_window
                self._first_window = value
            self._send(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._send(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self._window += more
            elif stream in self._windows:
                self._windows[stream] += more
        elif kind in (HEADERS, RST_STREAM):
            self.ended.add(stream)
            if kind == RST_STREAM or flags & END_STREAM:
                self.closed.add(stream)
        elif kind == GOAWAY:
            self.is_over = True
