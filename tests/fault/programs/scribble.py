# SPDX-License-Identifier: Apache-2.0
"""A rank that writes random bytes into all memory that it shares, while it pushes.

    scribble.py SEED

It prints "mapped N bytes" before it begins. It ends by itself if its client does not crash before.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
import time

import numpy as np
import talweg

_WRITES = 30_000
_FORGED_PUSHES = 300
# Values that break counters, lengths and offsets.
_WORDS = (0, 1, 2, 3, 63, 64, 4096, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)


def shared_memory() -> list[tuple[int, int]]:
    """Returns begin and length of memory that this process may write and others see."""
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            addresses, rights, *_ = line.split(maxsplit=5)
            if rights == "rw-s":
                begin, end = (int(address, 16) for address in addresses.split("-"))
                found.append((begin, end - begin))
    return found


def scribble(places: list[tuple[int, int]], chance: random.Random) -> None:
    """Writes words anywhere, most of them near the begin of a segment or a buffer."""
    begin, length = chance.choice(places)
    reach = chance.choice((256, 4096, 65536, length))
    offset = chance.randrange(min(reach, length) // 8) * 8
    ctypes.c_uint64.from_address(begin + offset).value = word(chance)


def word(chance: random.Random) -> int:
    if chance.random() < 0.5:
        return chance.choice(_WORDS)
    return chance.getrandbits(64) >> chance.randrange(64)


def forge(control: int, chance: random.Random) -> None:
    """Writes a push that no client would make into the ring of docs/shared_memory.md."""
    capacity = ctypes.c_uint32.from_address(control + 16).value
    submitted = ctypes.c_uint64.from_address(control + 0x140)
    entry = (ctypes.c_uint64 * 4).from_address(control + 0x1000 + 32 * (submitted.value % capacity))
    for field in range(4):
        entry[field] = word(chance)
    submitted.value += 1


def write(chance: random.Random) -> None:
    """Writes in one of three manners. A rank that spoils the ring of pushes is soon thrown out. So
    one manner spares the control segment, which is the smallest.
    """
    places = sorted(shared_memory(), key=lambda place: place[1])
    manner = chance.choice(("all", "data", "forge"))
    if manner == "forge":
        for _ in range(_FORGED_PUSHES):
            forge(places[0][0], chance)
            time.sleep(0.001)
        return
    reached = places if manner == "all" else places[1:]
    for _ in range(_WRITES):
        scribble(reached, chance)


def main() -> int:
    chance = random.Random(int(sys.argv[1]))
    talweg.init()
    large: np.ndarray = np.ones(50_000, np.float32)

    def push(timeout_s: float) -> None:
        ones: np.ndarray = np.ones(3, np.int32)
        talweg.push_pull_inplace(large, op=talweg.Op.SUM, name="large", timeout_s=timeout_s)
        talweg.push_pull(ones, op=talweg.Op.SUM, name="small", timeout_s=timeout_s)

    push(60)  # The ranks beside it may still be starting.
    print(f"mapped {sum(length for _, length in shared_memory())} bytes", flush=True)
    writer = threading.Thread(target=write, args=[chance], daemon=True)
    writer.start()
    is_in = True
    while writer.is_alive() and is_in:
        try:
            push(1)
        except (talweg.JobFailed, talweg.AgentLost):
            is_in = False
        except talweg.TalwegError:
            writer.join(0.001)
    os._exit(7)  # It does not leave the job, because that might wait for overwritten words.


if __name__ == "__main__":
    sys.exit(main())
