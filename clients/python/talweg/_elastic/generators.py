# SPDX-License-Identifier: Apache-2.0
"""Random generators among a State's values: a joiner's go on where the others' are."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from talweg.errors import Mismatch


def _is_of_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Generator)


def _kind(value: Any) -> str:
    if isinstance(value, np.random.Generator):
        return f"Generator of {type(value.bit_generator).__name__}"
    return type(value).__name__


def take_over(name: str, own: Any, given: Any) -> bool:
    """Gives `own` the state of `given`. Returns False if `own` is no generator.

    Whoever draws from `own` goes on with the same object. Raises Mismatch if `given` is of another
    kind.
    """
    if isinstance(own, random.SystemRandom):  # A SystemRandom has no state.
        return isinstance(given, random.SystemRandom)
    kinds = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
    if not isinstance(own, kinds) and not _is_of_torch(own):
        return False
    if _kind(own) != _kind(given):
        raise Mismatch(
            f"State: '{name}' is a {_kind(own)} at this rank, and a {_kind(given)} in the job: start "
            "the same program at every rank"
        )
    if isinstance(own, random.Random):
        own.setstate(given.getstate())
    elif isinstance(own, np.random.Generator):
        own.bit_generator.state = given.bit_generator.state
    elif isinstance(own, np.random.BitGenerator):
        own.state = given.state
    else:
        own.set_state(given.get_state())
    return True
