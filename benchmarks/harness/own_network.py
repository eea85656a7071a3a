# SPDX-License-Identifier: Apache-2.0
"""Runs a command in a new network namespace, with its loopback up.

    own_network.py CONGESTION_CONTROL COMMAND [ARGUMENT...]

It calls the kernel itself, because a machine that cannot fetch packages may have no `ip`.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1  # linux/sockios.h, linux/if.h


def bring_up(interface: str) -> None:
    request = struct.pack("16sh22x", interface.encode(), 0)  # struct ifreq
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        name, flags = struct.unpack("16sh22x", fcntl.ioctl(asked, _SIOCGIFFLAGS, request))
        fcntl.ioctl(asked, _SIOCSIFFLAGS, struct.pack("16sh22x", name, flags | _IFF_UP))


def main() -> None:
    bring_up("lo")
    with open("/proc/sys/net/ipv4/tcp_congestion_control", "w") as congestion_control:
        congestion_control.write(sys.argv[1])
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
