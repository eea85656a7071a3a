# SPDX-License-Identifier: Apache-2.0
"""The effects of calls. They make JAX keep calls of one name in order, and run every call."""

from __future__ import annotations

from jax._src import effects  # JAX has no public way to define an effect.


class RoundEffect(effects.Effect):
    """Keeps the groups of rounds of one key in the program's order."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RoundEffect) and self.key == other.key

    def __hash__(self) -> int:
        return hash((RoundEffect, self.key))

    def __repr__(self) -> str:
        return f"Talweg<{self.key}>"


class AnyRound(effects.Effect):
    """Marks a program that has any call. It gives no order.

    With ordered effects alone, JAX 0.10 gives a program that was compiled ahead of time
    (`jit(...).lower(...).compile()`) no token from its second run on.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyRound)

    def __hash__(self) -> int:
        return hash(AnyRound)

    def __repr__(self) -> str:
        return "Talweg"


effects.ordered_effects.add_type(RoundEffect)
for _kind in (
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _kind.add_type(RoundEffect)
    _kind.add_type(AnyRound)
