# SPDX-License-Identifier: Apache-2.0
"""What a framework's module adds to the exchange is little, and no framework is needed for it."""

from __future__ import annotations

import sys
import unittest
from typing import Any
from unittest import mock

from talweg._collectives.process_sets import ProcessSet
from talweg._exchange.adapter import ClientAdapter, Parameter, Pushed, Tensor
from talweg._exchange.exchange import GradientExchange


class _Given(ClientAdapter):
    """As for a framework whose program hands all gradients over in one call."""

    def __init__(self, client: Any, process_set: ProcessSet | None = None) -> None:
        super().__init__(client, process_set)
        self.exchange = GradientExchange(self, "x")
        self.exchange.add([Parameter(name, 4, "f32") for name in "ab"])
        self.exchange.activate()
        self.given: list[Any] = []

    def average(self, gradients: list[Any]) -> list[Any]:
        self.given = gradients
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                self.exchange.on_gradient(index)
        self.exchange.on_pass_end()
        self.exchange.synchronize()
        self.exchange.on_step()
        return self.given

    def start(self, tensor: Tensor, has_gradient: bool) -> Pushed:
        gradient = self.given[tensor.index] if has_gradient else "zeros"
        return Pushed(self.client.push(tensor.name, gradient, tensor.priority))  # type: ignore

    def put(self, index: int, average: Any) -> None:
        self.given[index] = average

    def dtype_of(self, index: int) -> str:
        return "f32"


class ClientAdapterTest(unittest.TestCase):
    def test_three_methods_make_a_framework(self) -> None:
        client = mock.Mock(ranks_sum=True, rank=0, size=3)
        client.push.side_effect = lambda name, *_, **__: name
        client.synchronize.side_effect = lambda name: f"average of {name}"
        adapter = _Given(client)
        for _ in range(2):
            averages = adapter.average([None, "gradient"])
            self.assertEqual(averages, [None, "average of x.gradient.b"])
        pushes = [call.args for call in client.push.call_args_list]
        of_b, of_a, of_marks = pushes[3:]
        self.assertEqual(of_b, ("x.gradient.b", "gradient", -1))
        self.assertEqual(of_a, ("x.gradient.a", "zeros", 0))
        self.assertEqual(of_marks[0], "x.used")

    def test_marks_are_written_where_they_lie(self) -> None:
        client = mock.Mock(ranks_sum=True, rank=0, size=3)
        adapter = _Given(client)
        marks = bytearray(3)
        ticket = adapter.start_marks("m", marks, 5)
        name, declaration, address, out_address, priority = client.push.call_args.args
        self.assertEqual((name, str(declaration), priority), ("m", "u8[3] max", 5))
        self.assertEqual(address, out_address)
        client.push.call_args.kwargs["keep"][1] = 1
        self.assertEqual(marks, b"\0\1\0")
        self.assertIs(adapter.finish(ticket), client.synchronize.return_value)
        client.synchronize.assert_called_once_with(client.push.return_value)
        self.assertIs(adapter.is_there(ticket), client.poll.return_value)
        self.assertTrue(adapter.comes_in_order())
        with mock.patch("talweg._exchange.adapter.objects.all_gather_object") as gather:
            self.assertIs(adapter.gather(3, "g"), gather.return_value)
        gather.assert_called_once_with(client, 3, "g", None)

    def test_the_ranks_that_take_part_are_said_with_each_round(self) -> None:
        client = mock.Mock(rank=2, size=3)
        some = ProcessSet([0, 2])
        adapter = _Given(client, some)
        adapter.start_marks("m", bytearray(1), 0)
        name, declaration = client.push.call_args.args[:2]
        self.assertEqual(name, "m" + some.suffix)  # Other sets' marks have other names.
        self.assertEqual(declaration.ranks, (0, 2))
        with mock.patch("talweg._exchange.adapter.objects.all_gather_object") as gather:
            adapter.gather(3, "g")
        gather.assert_called_once_with(client, 3, "g", some)

    def test_no_framework_is_needed(self) -> None:
        self.assertEqual({"torch", "tensorflow", "keras", "jax", "mxnet"} & set(sys.modules), set())


if __name__ == "__main__":
    unittest.main()
