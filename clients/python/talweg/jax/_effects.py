# SPDX-License-Identifier: Apache-2.0
"""The effect by which JAX keeps calls of one name in order."""

from __future__ import annotations

from jax._src import effects  # JAX has no other way to an effect of one's own.


class RoundEffect(effects.Effect):
    """Groups of rounds of one key happen in the order in which the program has them."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RoundEffect) and self.key == other.key

    def __hash__(self) -> int:
        return hash((RoundEffect, self.key))

    def __repr__(self) -> str:
        return f"Talweg<{self.key}>"


for _kind in (
    effects.lowerable_effects,
    effects.ordered_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _kind.add_type(RoundEffect)
