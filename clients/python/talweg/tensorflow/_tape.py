# SPDX-License-Identifier: Apache-2.0
"""Makes a tf.GradientTape combine its gradients over the ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from talweg.errors import InvalidArgument
from talweg.tensorflow import _gradients
from talweg.tensorflow._gradients import Choices


class _Methods:
    """The methods that a tape gets."""

    _talweg_choices: Choices
    _talweg_name: str

    def gradient(
        self,
        target: Any,
        sources: Any,
        *arguments: Any,
        use_generic_names: bool = False,
        **keywords: Any,
    ) -> Any:
        """Returns the gradients that tf.GradientTape computes, combined over the ranks.

        `use_generic_names` has no effect: ranks find each other's gradients by numbers, always.
        """
        own = super().gradient(target, sources, *arguments, **keywords)  # type: ignore[misc]
        return self._talweg_combined(own, sources)

    def _talweg_combined(self, own: Any, sources: Any) -> Any:
        flat = tf.nest.flatten(own)
        variables = tf.nest.flatten(sources)
        combined = _gradients.combine(flat, variables, self._talweg_choices, self._talweg_name)
        return tf.nest.pack_sequence_as(own, combined)

    def register_local_source(self, source: Any) -> None:
        """Keeps this variable's gradients at this rank: they are not combined."""
        self._talweg_choices.add_local([source])

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[Any], list[Any]]:
        """Returns the pairs (source, its gradient) of local sources, and those of all others."""
        both = self.gradient(target, sources, output_gradients)
        local = self._talweg_choices.local
        pairs = list(zip(tf.nest.flatten(sources), tf.nest.flatten(both)))
        return (
            [pair for pair in pairs if _gradients.key_of(pair[0]) in local],
            [pair for pair in pairs if _gradients.key_of(pair[0]) not in local],
        )


def distribute_tape(
    tape: tf.GradientTape, choices: Choices, name: str = "tape.gradient"
) -> tf.GradientTape:
    """Makes `tape` combine its gradients, whose names begin with `name`; returns the same object.

    A tape lives for one step, and the tape of the next step has the same name.
    """
    if not isinstance(tape, tf.GradientTape):
        raise InvalidArgument(
            f"expected a tf.GradientTape, got {type(tape).__name__}: pass the tape of the step"
        )
    cls = type(tape)
    if not issubclass(cls, _Methods):
        tape.__class__ = type(cls.__name__, (_Methods, cls), {"__module__": cls.__module__})
    tape._talweg_choices = choices
    tape._talweg_name = name
    return tape
