# SPDX-License-Identifier: Apache-2.0
"""The table of the exchange's states is what the exchange does, and all that it does."""

from __future__ import annotations

import random
import unittest
from typing import Any

from model_framework import Framework
from talweg._exchange.states import IN_PASS, LEFT_OPEN, TRANSITIONS, Event, State
from talweg.errors import InternalError, InvalidArgument


class _Walk:
    """A program that does anything that an exchange allows, and what has to hold whenever."""

    def __init__(self, names: str, passes: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.it = Framework(names, passes)
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
            choices = [lambda: self._accumulate(self.random.choice(ready))]
        self.random.choice(choices)()
        self._check()

    def _accumulate(self, index: int) -> None:
        exchange = self.it.exchange
        try:
            self.it.accumulate(index)
        except InvalidArgument:  # A second pass before the step.
            assert exchange.state is State.BEGUN, exchange.state

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
        it = Framework("a")
        with self.assertRaisesRegex(InternalError, "'x' is COLLECTING, where PASS_OVER cannot"):
            it.exchange._move(Event.PASS_OVER)


class InterruptTest(unittest.TestCase):
    def test_an_interrupt_just_after_a_push_or_a_wait(self) -> None:
        """What is under way is noted all the same, and what is there is put in its place."""
        for event in ("push x.gradient.b", "push x.used", "take x.gradient.b", "take x.used"):
            with self.subTest(event):
                it = Framework("ab")
                it.others = {"x.gradient.a": 3.0, "x.gradient.b": 5.0}
                it.interrupted = {event}
                with self.assertRaises(KeyboardInterrupt):
                    it.backward(0, 1)
                    it.exchange.synchronize()
                it.exchange.synchronize()
                self.assertEqual(it.values(), [2.0, 3.0])
                self.assertEqual(set(it.rounds.values()), {1})


if __name__ == "__main__":
    unittest.main()
