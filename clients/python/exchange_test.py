# SPDX-License-Identifier: Apache-2.0
"""The exchange of gradients, without a framework and without a job: one rank's side of it."""

from __future__ import annotations

import random
import sys
import unittest
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from talweg import _exchange_adapter
from talweg._exchange import GradientExchange
from talweg._exchange_adapter import Adapter, ClientAdapter, Parameter, Refusal, Tensor
from talweg._exchange_states import IN_PASS, LEFT_OPEN, TRANSITIONS, Event, State
from talweg.errors import Busy, InternalError, InvalidArgument


@dataclass
class _Gradient:
    """What autograd would have left, and what others do to it."""

    value: float
    is_noted: bool = False
    version: int = 0
    noted_version: int = -1


@dataclass(eq=False)
class _Ticket:
    name: str
    value: float = 0.0
    gradient: _Gradient | None = None
    version: int = 0
    marks: bytearray | None = None
    is_open: bool = True


class _Framework(Adapter):
    """A model of numbers at one of two ranks; tests say what the other rank does."""

    def __init__(self, names: Iterable[str] = "abc", passes: int = 1, name: str = "x") -> None:
        self.log: list[str] = []
        self.gradients: dict[int, _Gradient | None] = {}
        self.dtypes: dict[int, Hashable] = {}
        self.frozen: set[int] = set()
        self.watched: list[int] = []
        self.watched_passes = 0
        self.open: dict[str, _Ticket] = {}
        self.rounds: Counter[str] = Counter()
        self.others: dict[str, float] = {}  # The other rank's gradients, by their tensors.
        self.others_marks: dict[int, int] = {}  # -1: the rank's own.
        self.late: set[str] = set()  # Tensors whose averages are not there yet.
        self.in_order = False
        self.others_steps = 0
        self.failures: dict[str, BaseException] = {}  # Of the next start or finish of a tensor.
        self.exchange = GradientExchange(self, name, passes)
        self.add(names)

    def add(self, names: Iterable[str], nbytes: int = 4) -> list[int | None]:
        indices = self.exchange.add(Parameter(name, nbytes, "f32") for name in names)
        for index in indices:
            if index is not None:
                self.gradients[index] = None
                self.dtypes[index] = "f32"
        self.exchange.activate()
        return indices

    def _fail(self, what: str) -> None:
        failure = self.failures.pop(what, None)
        if failure is not None:
            raise failure

    def declare(self, tensors: Sequence[Tensor]) -> None:
        self.log.append("declare " + " ".join(tensor.name for tensor in tensors))

    def _start(self, ticket: _Ticket, priority: int) -> _Ticket:
        self._fail(f"push {ticket.name}")
        if ticket.name in self.open:
            raise Busy(f"{ticket.name} is open")
        self.open[ticket.name] = ticket
        self.rounds[ticket.name] += 1
        self.log.append(f"push {ticket.name}={ticket.value:g} at {priority}")
        return ticket

    def start(self, tensor: Tensor, has_gradient: bool) -> _Ticket:
        gradient = self.gradients[tensor.index] if has_gradient else None
        ticket = _Ticket(tensor.name, gradient.value if gradient else 0.0, gradient)
        ticket.version = gradient.version if gradient else 0
        return self._start(ticket, tensor.priority)

    def start_marks(self, name: str, marks: bytearray, priority: int) -> _Ticket:
        ticket = self._start(_Ticket(name, marks=marks), priority)
        self.log[-1] = f"push {name}={list(marks)}"
        return ticket

    def finish(self, ticket: _Ticket) -> float:
        assert ticket.is_open, ticket.name
        self._fail(f"take {ticket.name}")
        ticket.is_open = False
        del self.open[ticket.name]
        self.log.append(f"take {ticket.name}")
        if ticket.marks is not None:
            for index, mark in self.others_marks.items():
                ticket.marks[index] = max(ticket.marks[index], mark)
        return (ticket.value + self.others.get(ticket.name, 0.0)) / 2

    def is_there(self, ticket: _Ticket) -> bool:
        return ticket.name not in self.late

    def comes_in_order(self) -> bool:
        return self.in_order

    def gather(self, number: int, name: str) -> list[int]:
        self.log.append(f"gather {name}={number}")
        return [number, self.others_steps]

    def put(self, index: int, average: float) -> None:
        self.gradients[index] = _Gradient(average)

    def dtype_of(self, index: int) -> Hashable:
        return self.dtypes[index]

    def is_trainable(self, index: int) -> bool:
        return index not in self.frozen

    def watch(self, index: int) -> None:
        self.watched.append(index)

    def watch_pass(self) -> None:
        self.watched_passes += 1

    def is_new(self, index: int) -> bool:
        gradient = self.gradients[index]
        return gradient is not None and gradient.noted_version != gradient.version

    def is_assigned(self, index: int) -> bool:
        gradient = self.gradients[index]
        return gradient is not None and not gradient.is_noted

    def is_as_pushed(self, index: int, ticket: _Ticket) -> bool:
        gradient = self.gradients[index]
        if gradient is not ticket.gradient:
            return False
        return gradient is None or gradient.version == ticket.version

    def note_gradients(self) -> None:
        for gradient in self.gradients.values():
            if gradient is not None:
                gradient.is_noted, gradient.noted_version = True, gradient.version

    # What a program does.

    def accumulate(self, index: int, value: float = 1.0) -> None:
        """As autograd does, which then tells of it."""
        gradient = self.gradients[index]
        if gradient is None:
            self.gradients[index] = _Gradient(value)
        else:
            gradient.value += value
            gradient.version += 1
        self.exchange.on_gradient(index)

    def backward(self, *indices: int) -> bool:
        for index in indices:
            self.accumulate(index)
        return self.exchange.on_pass_end()

    def zero_grad(self) -> None:
        self.gradients = dict.fromkeys(self.gradients)
        self.exchange.on_zero_grad()

    def values(self) -> list[float | None]:
        return [each and each.value for each in self.gradients.values()]

    def logged(self, word: str) -> list[str]:
        """What was logged of this kind since the last call of this."""
        found = [line.split(" ", 1)[1] for line in self.log if line.startswith(word + " ")]
        self.log.clear()
        return found


class StepTest(unittest.TestCase):
    def _is(self, framework: _Framework, state: State) -> None:
        self.assertIs(framework.exchange.state, state)

    def test_each_gradient_leaves_when_it_is_ready(self) -> None:
        it = _Framework()
        it.accumulate(2)
        self.assertEqual(it.logged("push"), ["x.gradient.c=1 at -2"])
        it.accumulate(0)
        self.assertEqual(it.logged("push"), ["x.gradient.a=1 at 0"])
        self._is(it, State.PUSHING)
        self.assertEqual(it.watched_passes, 1)
        # The end of the pass brings zeros for the rest, and who had a gradient.
        self.assertTrue(it.exchange.on_pass_end())
        self.assertEqual(it.logged("push"), ["x.gradient.b=0 at -1", "x.used=[1, 0, 1, 1]"])
        self._is(it, State.BEGUN)
        it.exchange.begin()
        self.assertEqual(it.log, [])

    def test_the_averages_take_the_gradients_places(self) -> None:
        it = _Framework()
        it.others = {"x.gradient.a": 3.0, "x.gradient.b": 5.0}
        it.others_marks = {0: 1, 1: 1, -1: 1}
        it.backward(0)
        self.assertFalse(it.exchange.averaged)
        it.exchange.synchronize()
        self.assertTrue(it.exchange.averaged)
        # Nobody had a gradient of the last one: it keeps what it had.
        self.assertEqual(it.values(), [2.0, 2.5, None])
        self.assertEqual(it.open, {})
        it.log.clear()
        it.exchange.synchronize()
        self.assertEqual(it.log, [])
        it.exchange.on_step()
        self._is(it, State.COLLECTING)
        self.assertEqual(it.exchange.steps, 1)

    def test_only_the_last_pass_pushes(self) -> None:
        it = _Framework("a", passes=3)
        for _ in range(2):
            self.assertFalse(it.backward(0))
            self._is(it, State.COLLECTING)
        it.accumulate(0)
        self._is(it, State.PUSHING)
        self.assertTrue(it.exchange.on_pass_end())
        self.assertEqual(it.logged("push"), ["x.gradient.a=3 at 0", "x.used=[1, 1]"])
        self.assertEqual(it.watched_passes, 3)
        it.exchange.synchronize()
        it.exchange.on_step()
        # And so in the next step; a step of fewer passes pushes what there is.
        it.zero_grad()
        self.assertFalse(it.backward(0))
        it.exchange.synchronize()
        self.assertEqual(it.logged("push"), ["x.gradient.a=1 at 0", "x.used=[1, 1]"])
        it.exchange.on_step()
        self.assertFalse(it.backward(0))

    def test_the_number_of_passes_may_change(self) -> None:
        it = _Framework("a")
        it.exchange.set_passes(2)
        self.assertFalse(it.backward(0))
        it.exchange.set_passes(1)
        self.assertTrue(it.backward(0))
        for passes in (0, -1):
            with self.assertRaisesRegex(InvalidArgument, f"passes_per_step is {passes};"):
                it.exchange.set_passes(passes)

    def test_zero_grad_forgets_what_was_accumulated(self) -> None:
        it = _Framework("ab", passes=2)
        it.backward(0)
        it.zero_grad()
        self.assertFalse(it.backward(1))
        self.assertTrue(it.backward(1))
        pushed = ["x.gradient.b=2 at -1", "x.gradient.a=0 at 0", "x.used=[0, 1, 1]"]
        self.assertEqual(it.logged("push"), pushed)
        it.exchange.synchronize()
        it.zero_grad()
        self._is(it, State.COLLECTING)

    def test_a_pass_that_has_failed(self) -> None:
        it = _Framework("ab")
        it.accumulate(1)
        # Nobody tells of its end; the next one cannot push what is under way.
        with self.assertRaisesRegex(InvalidArgument, "gradient of 'b' has left and has come again"):
            it.accumulate(1)
        it.zero_grad()
        self._is(it, State.PARTLY_PUSHED)
        self.assertTrue(it.exchange.has_left_open)
        with self.assertRaisesRegex(InvalidArgument, "gradient of 'b' has left and has come again"):
            it.accumulate(1)
        it.exchange.synchronize()
        self.assertTrue(it.exchange.averaged)
        self.assertEqual(it.rounds, {"x.gradient.b": 1, "x.gradient.a": 1, "x.used": 1})
        # A step, too, brings the rest of the rounds, when there was no synchronize() before.
        it.exchange.on_step()
        it.accumulate(1)
        it.exchange.begin()
        self._is(it, State.BEGUN)
        it.exchange.on_step()
        it.exchange.synchronize()
        self.assertEqual(set(it.rounds.values()), {2})

    def test_a_failed_pass_before_the_last_has_pushed_nothing(self) -> None:
        it = _Framework("ab", passes=2)
        it.accumulate(1)
        self._is(it, State.PASS)
        it.zero_grad()
        self._is(it, State.COLLECTING)
        self.assertFalse(it.exchange.has_left_open)

    def test_a_push_that_fails_is_made_again(self) -> None:
        it = _Framework("abc")
        it.failures = {"push x.gradient.b": Busy("b"), "push x.used": Busy("used")}
        with self.assertRaisesRegex(Busy, "b"):
            it.exchange.begin()
        self._is(it, State.PARTLY_PUSHED)
        with self.assertRaisesRegex(Busy, "used"):
            it.exchange.synchronize()
        it.exchange.synchronize()
        self.assertEqual(set(it.rounds.values()), {1})
        self.assertEqual(len(it.rounds), 4)

    def test_a_wait_that_is_interrupted_is_gone_on_with(self) -> None:
        for interrupted in ("x.gradient.b", "x.used"):
            with self.subTest(interrupted):
                it = _Framework("ab")
                it.others = {"x.gradient.a": 3.0, "x.gradient.b": 5.0}
                it.others_marks = {1: 1, -1: 1}
                it.backward(0)
                it.failures = {f"take {interrupted}": KeyboardInterrupt()}
                with self.assertRaises(KeyboardInterrupt):
                    it.exchange.synchronize()
                self._is(it, State.BEGUN)
                it.exchange.synchronize()
                self.assertEqual(it.values(), [2.0, 2.5])

    def test_an_optimizer_without_parameters(self) -> None:
        it = _Framework("")
        it.exchange.synchronize()
        self.assertEqual(it.log, ["push x.used=[1]", "take x.used"])
        it.exchange.on_step()
        self.assertEqual(it.exchange.steps, 1)

    def test_gradients_that_a_closure_computes_again(self) -> None:
        it = _Framework("a")
        for _ in range(2):
            it.exchange.on_evaluation()
            it.zero_grad()
            it.backward(0)
            it.exchange.synchronize()
        it.exchange.on_step()
        self.assertEqual((it.rounds["x.gradient.a"], it.exchange.steps), (2, 1))


class OrderTest(unittest.TestCase):
    def test_all_are_declared_before_the_first_is_pushed(self) -> None:
        it = _Framework("ab")
        it.backward(1)
        self.assertEqual(it.log[0], "declare x.gradient.a x.gradient.b")
        it.exchange.synchronize()
        it.zero_grad()
        it.backward(1)
        self.assertEqual(len(it.logged("declare")), 1)

    def test_priorities_may_be_the_frameworks(self) -> None:
        it = _Framework("ab")
        with mock.patch.object(it, "priority_of", lambda index: 7 + index):
            it.backward(1)
        self.assertEqual(
            it.logged("push")[:2], ["x.gradient.b=1 at 8", "x.gradient.a=0 at 7"]
        )

    def _taken(self, late: set[str], in_order: bool) -> str:
        it = _Framework("abcd")
        it.late = {f"x.gradient.{name}" for name in late}
        it.in_order = in_order
        it.backward(3, 2, 1, 0)
        it.log.clear()
        it.exchange.synchronize()
        taken = [name for name in it.logged("take") if name != "x.used"]
        return "".join(name[-1] for name in taken)

    def test_averages_are_taken_as_they_are_likely_to_come(self) -> None:
        self.assertEqual(self._taken(set(), in_order=True), "dcba")
        self.assertEqual(self._taken(set(), in_order=False), "dcba")
        self.assertEqual(self._taken({"c"}, in_order=False), "dabc")
        self.assertEqual(self._taken({"a", "b", "c", "d"}, in_order=False), "abcd")
        self.assertEqual(self._taken({"a", "b", "c", "d"}, in_order=True), "dcba")


class ParametersTest(unittest.TestCase):
    def test_one_that_is_frozen_takes_part_from_its_thaw_on(self) -> None:
        it = _Framework("")
        it.frozen = {0}
        it.add("ab")
        self.assertEqual((it.watched, list(it.exchange.active)), ([1], [1]))
        it.backward(1)
        self.assertEqual(it.logged("push"), ["x.gradient.b=1 at -1", "x.used.1=[0, 1, 1]"])
        it.exchange.synchronize()
        it.exchange.on_step()
        it.frozen = {1}  # It goes on with zeros.
        it.exchange.activate()
        self.assertEqual(it.watched, [1, 0])
        it.zero_grad()
        it.log.clear()
        it.backward(0)
        pushed = ["x.gradient.a=1 at 0", "x.gradient.b=0 at -1", "x.used.1=[1, 0, 1]"]
        self.assertEqual(it.logged("push"), pushed)

    def test_one_that_is_thawed_at_another_rank_alone_is_named(self) -> None:
        it = _Framework("")
        it.frozen = {0}
        it.add("ab")
        it.others_marks = {0: 1}
        it.backward(1)
        with self.assertRaisesRegex(InvalidArgument, "a gradient of 'a', which is frozen here"):
            it.exchange.synchronize()

    def test_those_that_are_added(self) -> None:
        it = _Framework("a")
        self.assertEqual(it.add("b", nbytes=0), [None])
        self.assertEqual(it.add("c"), [1])
        self.assertEqual(it.exchange.name_of(1), "c")
        it.backward(1)
        self.assertEqual(
            it.logged("push"), ["x.gradient.c=1 at -1", "x.gradient.a=0 at 0", "x.used.2=[0, 1, 1]"]
        )
        # Between backward and step: the exchange that is under way knows nothing of it.
        it.frozen = {2}
        it.add("d")
        it.exchange.synchronize()
        self.assertTrue(it.exchange.averaged)

    def test_another_dtype_is_another_tensor(self) -> None:
        it = _Framework("a")
        for dtype, name in (("f32", "x.gradient.a"), ("bf16", "x.gradient.a.bf16")) * 2:
            it.dtypes[0] = dtype
            it.zero_grad()
            it.backward(0)
            self.assertEqual(it.logged("push")[0], f"{name}=1 at 0")
            it.exchange.synchronize()


class AssignedTest(unittest.TestCase):
    def test_what_was_assigned_counts_once(self) -> None:
        it = _Framework("ab")
        it.gradients[1] = _Gradient(4.0)
        it.exchange.synchronize()
        self.assertEqual(it.logged("push")[-1], "x.used=[0, 1, 1]")
        self.assertEqual(it.values(), [None, 2.0])
        it.exchange.on_step()
        # It stays, and is what it was; then it is changed.
        it.exchange.synchronize()
        self.assertEqual(it.logged("push")[-1], "x.used=[0, 0, 1]")
        it.exchange.on_step()
        gradient = it.gradients[1]
        assert gradient is not None
        gradient.version += 1
        it.exchange.synchronize()
        self.assertEqual(it.logged("push")[-1], "x.used=[0, 1, 1]")

    def test_what_is_assigned_too_late(self) -> None:
        it = _Framework("ab")
        it.backward(0)
        it.gradients[1] = _Gradient(4.0)
        with self.assertRaisesRegex(InvalidArgument, "of 'b' was assigned after the backward pass"):
            it.exchange.check_unchanged()
        it.gradients[1] = None
        it.exchange.check_unchanged()
        it.exchange.synchronize()
        it.gradients[1] = _Gradient(4.0)
        with self.assertRaisesRegex(InvalidArgument, "of 'b' was assigned after the backward pass"):
            it.exchange.synchronize()
        # What all ranks have an average of may be replaced, as clipping does.
        it.gradients = {0: _Gradient(0.5), 1: None}
        it.exchange.synchronize()

    def test_what_is_changed_while_it_is_under_way(self) -> None:
        it = _Framework("ab")
        it.exchange.check_unchanged()
        it.backward(0)
        it.exchange.check_unchanged()
        gradient = it.gradients[0]
        assert gradient is not None
        gradient.version += 1
        with self.assertRaisesRegex(InvalidArgument, "of 'a' was changed while its average was"):
            it.exchange.check_unchanged()
        # What has been taken is nobody's concern.
        it.exchange.take([0])
        it.exchange.check_unchanged()

    def test_a_framework_has_words_of_its_own(self) -> None:
        it = _Framework("a")
        with mock.patch.object(it, "text_of", lambda refusal: f"{refusal.name} {{name}}"):
            it.accumulate(0)
            with self.assertRaisesRegex(InvalidArgument, "^CAME_AGAIN a$"):
                it.accumulate(0)
        for refusal in Refusal:
            self.assertIn("'{name}'", refusal.value)


class OverlapTest(unittest.TestCase):
    """Optimizers that take the averages one by one, when the next forward pass needs them."""

    def test_averages_are_taken_one_by_one(self) -> None:
        it = _Framework("abc")
        it.others = {"x.gradient.c": 3.0}
        it.others_marks = {2: 1}
        self.assertEqual(it.exchange.take([0]), [])
        it.backward(0)
        it.exchange.on_step()
        self.assertIs(it.exchange.state, State.BEGUN)
        it.zero_grad()
        it.log.clear()
        self.assertEqual(it.exchange.take([0]), [(0, 0.5)])
        self.assertEqual(it.log, ["take x.gradient.a"])
        self.assertEqual(it.exchange.take([0, 1, 2]), [(2, 1.5)])
        self.assertEqual(it.open, {})
        self.assertIs(it.exchange.state, State.COLLECTING)

    def test_a_pass_that_overtakes(self) -> None:
        it = _Framework("ab", passes=2)
        it.backward(0, 1)
        it.backward(0, 1)
        it.exchange.on_step()
        it.zero_grad()
        it.exchange.take([0])
        # The next forward pass leaves out the second module.
        self.assertFalse(it.backward(0))
        self.assertIs(it.exchange.state, State.BEGUN)
        it.accumulate(0)
        self.assertIs(it.exchange.state, State.NEXT_PUSHING)
        self.assertFalse(it.exchange.has_left_open)
        it.log.clear()
        self.assertTrue(it.exchange.on_pass_end())
        self.assertIs(it.exchange.state, State.NEXT_PARTLY_PUSHED)
        self.assertTrue(it.exchange.has_left_open)
        self.assertEqual(it.log, [])  # Its rounds are still the earlier step's.
        it.exchange.take([1])
        self.assertIs(it.exchange.state, State.PARTLY_PUSHED)
        it.exchange.begin()
        self.assertIs(it.exchange.state, State.BEGUN)
        it.exchange.discard()
        self.assertEqual(set(it.rounds.values()), {2})

    def test_synchronize_after_a_pass_that_has_overtaken(self) -> None:
        it = _Framework("ab")
        it.backward(0, 1)
        it.exchange.on_step()
        it.zero_grad()
        it.exchange.take([0])
        it.backward(0)
        it.exchange.synchronize()
        self.assertTrue(it.exchange.averaged)
        self.assertEqual((it.open, set(it.rounds.values())), ({}, {2}))

    def test_a_second_pass_over_open_rounds_is_busy(self) -> None:
        it = _Framework("ab")
        it.backward(0)
        with self.assertRaisesRegex(Busy, "x.gradient.a"):
            it.accumulate(0)
        it.exchange.synchronize()
        self.assertTrue(it.exchange.averaged)

    def test_what_nobody_wants_is_discarded(self) -> None:
        it = _Framework("ab")
        it.exchange.discard()
        it.backward(0)
        it.exchange.discard()
        self.assertEqual((it.open, it.values()), ({}, [1.0, None]))
        self.assertIs(it.exchange.state, State.COLLECTING)


class JoinTest(unittest.TestCase):
    def test_ranks_that_have_more_batches_are_waited_for(self) -> None:
        it = _Framework("a", passes=2)
        it.exchange.on_step()
        first_step = it.exchange.steps
        it.exchange.on_step()
        it.backward(0)  # Which leads to no step.
        others_left = iter([1, 1, 0])
        finish = it.finish

        def finish_shadow(ticket: _Ticket) -> float:
            if ticket.marks is not None:
                it.others_marks = {-1: next(others_left)}
            return finish(ticket)

        it.others_steps = 3
        with mock.patch.object(it, "finish", finish_shadow):
            self.assertEqual(it.exchange.join(first_step), 1)
        self.assertEqual(it.rounds["x.gradient.a"], 3)
        pushed = [line for line in it.log if line.startswith("push")]
        self.assertEqual(pushed, ["push x.gradient.a=0 at 0", "push x.used=[0, 0]"] * 3)
        self.assertEqual(it.log[-1], "gather x.join=1")
        self.assertIs(it.exchange.state, State.COLLECTING)

    def test_the_rank_with_most_steps_is_the_root(self) -> None:
        for steps, root in ((0, 1), (2, 0), (1, 0)):
            it = _Framework("a")
            it.others_steps = 1
            for _ in range(steps):
                it.exchange.on_step()
            self.assertEqual(it.exchange.join(0), root)

    def test_what_is_under_way_is_finished_first(self) -> None:
        it = _Framework("a")
        it.backward(0)
        it.exchange.join(0)
        # Its own gradient is in the first exchange: there is another one, without.
        self.assertEqual(it.rounds["x.gradient.a"], 2)
        self.assertEqual(it.open, {})


class _Walk:
    """A program that does anything that an exchange allows, and what has to hold whenever."""

    def __init__(self, names: str, passes: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.it = _Framework(names, passes)
        self.walked: set[tuple[State, Event]] = set()
        exchange, move = self.it.exchange, self.it.exchange._move

        def recorded(event: Event) -> None:
            self.walked.add((exchange.state, event))
            move(event)

        exchange._move = recorded  # type: ignore[method-assign]

    def step(self) -> None:
        it, exchange = self.it, self.it.exchange
        # A program waits for a parameter's average before its next gradient is computed.
        ready = [i for i in it.gradients if f"x.gradient.{exchange.name_of(i)}" not in it.open]
        choices: list[Any] = [
            exchange.begin,
            exchange.synchronize,
            exchange.on_step,
            exchange.on_evaluation,
            it.zero_grad,
            exchange.discard,
            lambda: exchange.take(i for i in it.gradients if self.random.random() < 0.5),
        ]
        if self.random.random() < 0.1:
            choices = [lambda: exchange.join(0)]
        elif exchange.state in IN_PASS and self.random.random() < 0.5:
            choices = [exchange.on_pass_end]
        elif ready and self.random.random() < 0.7:
            choices = [lambda: it.accumulate(self.random.choice(ready))]
        self.random.choice(choices)()
        self._check()

    def _check(self) -> None:
        it, state = self.it, self.it.exchange.state
        rounds = it.rounds["x.used"]
        counts = [it.rounds[f"x.gradient.{it.exchange.name_of(i)}"] for i in it.gradients]
        under_way = "x.used" in it.open or state.name.startswith(("BEGUN", "NEXT"))
        ahead = sum(count - rounds for count in counts)
        assert all(0 <= count - rounds <= 1 for count in counts), (state, counts, rounds)
        assert (ahead > 0) == (state in LEFT_OPEN or state.name.endswith("PUSHING")), state
        assert bool(it.open) == (under_way or ahead > 0), (state, it.open)
        assert it.exchange.averaged <= (not it.open), state


class TransitionsTest(unittest.TestCase):
    def test_every_transition_is_walked_and_no_other(self) -> None:
        walked: set[tuple[State, Event]] = set()
        for seed in range(40):
            walk = _Walk("abc" if seed % 8 else "", passes=1 + seed % 3, seed=seed)
            for _ in range(500):
                walk.step()
            walked |= walk.walked
        listed = {(state, event) for state, row in TRANSITIONS.items() for event in row}
        self.assertEqual(walked, listed)

    def test_the_table_has_every_state(self) -> None:
        self.assertEqual(set(TRANSITIONS), set(State))
        for state in State:
            is_over = Event.PASS_OVER in TRANSITIONS[state]
            self.assertEqual(state in IN_PASS, is_over, state)
            self.assertEqual(Event.GRADIENT in TRANSITIONS[state], not is_over, state)

    def test_what_cannot_happen_is_a_defect(self) -> None:
        it = _Framework("a")
        with self.assertRaisesRegex(InternalError, "'x' is COLLECTING, where PASS_OVER cannot"):
            it.exchange._move(Event.PASS_OVER)


class ClientAdapterTest(unittest.TestCase):
    def test_marks_are_written_where_they_lie(self) -> None:
        client = mock.Mock(ranks_sum=True)
        adapter: Any = type("Some", (ClientAdapter,), {"__abstractmethods__": frozenset()})(client)
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
        with mock.patch.object(_exchange_adapter._objects, "all_gather_object") as gather:
            self.assertIs(adapter.gather(3, "g"), gather.return_value)
        gather.assert_called_once_with(client, 3, "g")

    def test_no_framework_is_needed(self) -> None:
        self.assertEqual({"torch", "tensorflow", "keras", "jax", "mxnet"} & set(sys.modules), set())


if __name__ == "__main__":
    unittest.main()
