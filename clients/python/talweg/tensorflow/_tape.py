# SPDX-License-Identifier: Apache-2.0
"""Makes a tf.GradientTape combine its gradients over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from talweg.errors import InvalidArgument
from talweg.tensorflow import _gradients
from talweg.tensorflow._gradients import Choices
from talweg.tensorflow._variables import tf_variable


class _Methods:
    """The methods that a tape gets."""

    _talweg_choices: Choices
    _talweg_name_of: Callable[[list[str]], str]

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
        local = self._talweg_choices.local
        texts = [_described(each) for each in variables if _gradients.key_of(each) not in local]
        name = self._talweg_name_of(texts)
        combined = _gradients.combine(flat, variables, self._talweg_choices, name)
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


def _described(source: Any) -> str:
    """Returns what a source has in common with the source of the same tape in the next step.

    That is a variable's dtype and shape. Other tensors may have another length in each step.
    """
    value = tf_variable(source)
    if isinstance(value, tf.Variable):
        return f"{value.dtype.name} {value.shape}"
    return f"{value.dtype.name} {value.shape.rank}" if tf.is_tensor(value) else ""


def distribute_tape(
    tape: tf.GradientTape, choices: Choices, name_of: Callable[[list[str]], str]
) -> tf.GradientTape:
    """Makes `tape` combine its gradients; returns the same object.

    `name_of` returns what the names of the gradients begin with. It gets the sources' texts. A tape
    lives for one step, and the next step's tape has the same texts.
    """
    if not isinstance(tape, tf.GradientTape):
        raise InvalidArgument(
            f"expected a tf.GradientTape, got {type(tape).__name__}: pass the tape of the step"
        )
    cls = type(tape)
    if not issubclass(cls, _Methods):
        tape.__class__ = type(cls.__name__, (_Methods, cls), {"__module__": cls.__module__})
    tape._talweg_choices = choices
    tape._talweg_name_of = name_of
    return tape
