# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of results, as functions of numbers."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_UNITS.update({"KiB": 2**10, "MiB": 2**20, "GiB": 2**30})


def parse_bytes(text: str) -> int:
    """Returns the number for a text like 4096, 64KiB or 25MB. Raises ValueError for others."""
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip())
    if not match or match[2] not in _UNITS:
        raise ValueError(f"'{text}' is not a size; write 4096, 64KiB or 25MB")
    return int(match[1]) * _UNITS[match[2]]


def format_bytes(count: float) -> str:
    """Returns the shortest exact name of a size, or three digits of it."""
    whole = int(count)
    if whole == count:
        for unit in ("GB", "GiB", "MB", "MiB", "KB", "KiB"):
            if whole and whole % _UNITS[unit] == 0 and whole < 1024 * _UNITS[unit]:
                return f"{whole // _UNITS[unit]} {unit}"
    for unit in ("GB", "MB", "KB"):
        if count >= _UNITS[unit]:
            return f"{count / _UNITS[unit]:.3g} {unit}"
    return f"{count:.3g} B"


def format_seconds(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def median(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("no values, no median")
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` of all values do not exceed."""
    if not values:
        raise ValueError("no values, no quantile")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def interval(
    estimate: Callable[[Sequence[int]], float], count: int, share: float = 0.9
) -> tuple[float, float]:
    """Returns the bounds between which `estimate` lies for random draws of the repetitions.

    `estimate` takes the indexes of `count` repetitions, some of them several times. The bounds
    leave out (1 - share) / 2 of 1000 draws on each side (Efron 1979, the percentile bootstrap). The
    same repetitions give the same bounds.
    """
    draw = random.Random(0)
    drawn = [estimate(draw.choices(range(count), k=count)) for _ in range(1000)]
    return quantile(drawn, (1 - share) / 2), quantile(drawn, (1 + share) / 2)


def rounds_for(round_s: float, wanted_s: float, rounds_min: int, rounds_max: int) -> int:
    """Returns how many rounds of `round_s` seconds fill `wanted_s`, within the bounds."""
    if round_s <= 0:
        return rounds_max
    return max(rounds_min, min(rounds_max, round(wanted_s / round_s)))


def curve(smallest: int, largest: int, per_decade: int = 1) -> list[int]:
    """Returns sizes at even distances of their logarithm, multiples of 4 bytes, with both ends."""
    steps = max(1, round(math.log10(largest / smallest) * per_decade))
    sizes = [smallest * (largest / smallest) ** (step / steps) for step in range(steps + 1)]
    return sorted({round(size / 4) * 4 for size in sizes})


def servers_useful(hosts: int, servers: int) -> int:
    """Returns how many extra servers help. As many as hosts carry everything (see optimum_s())."""
    return min(hosts, servers)


def optimum_s(hosts: int, servers: int, gradient_bytes: float, link_bytes_per_s: float) -> float:
    """Returns the least time of an all-reduce over equal full-duplex links (BytePS, OSDI'20).

    n = `hosts` machines have ranks, and k = `servers` more machines only sum. Each extra server
    sums 2(n-1)M / (n^2 + kn - 2k) of the M bytes, each host (n-k)M / (n^2 + kn - 2k), and all are
    done at t = 2n(n-1)M / ((n^2 + kn - 2k) B). At k = n the hosts' share is 0, and the formula ends
    there.
    """
    if hosts < 2:
        return 0.0
    n, k = hosts, servers_useful(hosts, servers)
    return 2 * n * (n - 1) * gradient_bytes / ((n * n + k * n - 2 * k) * link_bytes_per_s)


def optimal_shares(hosts: int, servers: int) -> tuple[float, float]:
    """Returns the shares of the gradient that each extra server and each host sums."""
    n, k = hosts, servers_useful(hosts, servers)
    whole = n * n + k * n - 2 * k
    return (2 * (n - 1) / whole if k else 0.0), (n - k) / whole


def ring_s(hosts: int, gradient_bytes: float, link_bytes_per_s: float) -> float:
    """Returns the least time of a ring all-reduce over the same links."""
    return 2 * (hosts - 1) * gradient_bytes / (hosts * link_bytes_per_s)
