# SPDX-License-Identifier: Apache-2.0
"""The names of the gradients that ddp_hook averages where nodes come and go."""

from __future__ import annotations

import re
import unittest
from typing import Any

import torch
from talweg.errors import InvalidArgument
from talweg.torch import _ddp


class _Bucket:
    """A bucket of these parameters, as DistributedDataParallel gives it to a hook."""

    def __init__(self, parameters: list[torch.nn.Parameter], is_last: bool) -> None:
        self._parameters = parameters
        self._is_last = is_last

    def parameters(self) -> list[torch.nn.Parameter]:
        return self._parameters

    def buffer(self) -> torch.Tensor:
        return torch.cat([each.detach().flatten() for each in self._parameters])

    def is_last(self) -> bool:
        return self._is_last


def _parameters(*sizes: int) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(size)) for size in sizes]


class NumbersTest(unittest.TestCase):
    def _names(self, *buckets: list[torch.nn.Parameter]) -> list[str]:
        """Returns the names of a backward pass over these buckets."""
        names = []
        for number, bucket in enumerate(buckets, 1):
            given: Any = _Bucket(bucket, number == len(buckets))
            names += [part.name for part in _ddp._gradients_of(self.id(), given)]
        return [each.removeprefix(f"ddp.{self.id()}.gradient.") for each in names]

    def test_a_model_keeps_the_numbers_of_its_first_pass(self) -> None:
        a, b, c = _parameters(2, 3, 4)
        expected = ["0.2.torch.float32", "1.3.torch.float32", "2.4.torch.float32"]
        self.assertEqual(self._names([a], [b, c]), expected)
        self.assertEqual(self._names([c, b], [a]), expected[::-1])

    def test_a_model_that_takes_the_name_of_one_that_is_gone(self) -> None:
        """Its gradients have the numbers that they have at a rank that had no other model."""
        first = _parameters(2, 3)
        self._names(first)
        first[0].itself = first  # type: ignore[attr-defined]  # Only the collector finds it.
        del first
        self.assertEqual(self._names(_parameters(5)), ["0.5.torch.float32"])

    def test_a_second_model_while_the_first_lives(self) -> None:
        first, second = _parameters(2, 3), _parameters(2, 3)
        before = self._names(first)
        with self.assertRaisesRegex(
            InvalidArgument, f"two models under the name '{re.escape(self.id())}'"
        ):
            self._names(second)
        self.assertEqual(self._names(first), before)


if __name__ == "__main__":
    unittest.main()
