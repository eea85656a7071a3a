# SPDX-License-Identifier: Apache-2.0
"""Names of optimizers that a program has not named."""

from __future__ import annotations

import weakref
from collections import Counter

from talweg._client import Client

# A closed client's counts end with it. Its id() may be that of a later one.
_counts: weakref.WeakKeyDictionary[Client, Counter[str]] = weakref.WeakKeyDictionary()


def next_name(client: Client, kind: str) -> str:
    """Returns a new name for each optimizer of a client. Every rank gets the same ones."""
    counts = _counts.setdefault(client, Counter())
    counts[kind] += 1
    return kind if counts[kind] == 1 else f"{kind}.{counts[kind]}"
