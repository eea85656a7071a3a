# SPDX-License-Identifier: Apache-2.0
"""What the names of gradients begin with, for each optimizer of a process."""

from __future__ import annotations

from typing import Any

from talweg._compat.names import names
from talweg.tensorflow import _optimizer
from talweg.tensorflow._gradients import Choices


def of_optimizer(optimizer: Any, choices: Choices) -> str:
    """Returns the name of an optimizer: that which it has, or else the next one.

    An optimizer of a rank outside its process set combines nothing, and is not counted.
    """
    own = _optimizer.name_of(optimizer)
    if own is not None or not choices.takes_part():
        return own or "gradient"
    # Each process set counts apart, because ranks outside it may not make its optimizers.
    suffix = "" if choices.process_set is None else choices.process_set.suffix
    return names.next(f"gradient{suffix}")
