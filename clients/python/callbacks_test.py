# SPDX-License-Identifier: Apache-2.0
"""In which order callbacks of futures run, whatever completes first, without ranks."""

from __future__ import annotations

import gc
import random
import sys
import unittest
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from talweg.errors import Forked
from talweg.torch._callbacks import Callbacks, Future, OwnFuture, runs_here


class CallbacksTest(unittest.TestCase):
    def setUp(self) -> None:
        self.elsewhere: list[Callable[[], None]] = []
        self.callbacks = Callbacks(self.elsewhere.append)
        self.ran: list[Any] = []

    def _future(self) -> Future:
        return self.callbacks.future([])

    def _runs(self, name: Any) -> Callable[[Any], Any]:
        def callback(future: Any) -> Any:
            self.ran.append((name, self.callbacks.channel_name()))
            return name

        return callback

    def _go_elsewhere(self) -> None:
        while self.elsewhere:
            self.elsewhere.pop(0)()

    def test_a_complete_future_has_its_callback_run_at_once(self) -> None:
        future = self._future()
        future.set_result(1)
        self.assertEqual(future.then(self._runs("a")).value(), "a")
        self.assertEqual((self.ran, self.elsewhere), ([("a", ".then1")], []))
        self.assertFalse(runs_here())
        self.assertEqual(self.callbacks.channel_name(), "")

    def test_the_one_that_was_chained_first_runs_first(self) -> None:
        first, second = self._future(), self._future()
        first.then(self._runs("a"))
        second.set_result(2)
        second.then(self._runs("b"))
        self._go_elsewhere()
        self.assertEqual(self.ran, [])
        first.set_result(1)
        self.assertEqual(self.ran, [])  # Not on the thread that completes it.
        self._go_elsewhere()
        self.assertEqual([name for name, _ in self.ran], ["a", "b"])

    def test_a_callback_that_runs_others_is_told_of_its_own_future(self) -> None:
        """The first future is complete, and its word of that has not come yet."""
        first, second = self._future(), self._future()
        words: list[Callable[[], None]] = []
        with mock.patch.object(first, "tell", words.append):
            first.then(self._runs("a"))
        first.set_result(1)
        second.then(self._runs("b"))
        self.assertEqual([name for name, _ in self.ran], ["a"])
        words.pop()()
        second.set_result(2)
        self._go_elsewhere()
        self.assertEqual([name for name, _ in self.ran], ["a", "b"])

    def test_what_a_callback_chains_runs_one_deeper(self) -> None:
        outer, inner = self._future(), self._future()

        def callback(future: Any) -> Any:
            return inner.then(self._runs("inner"))

        result = outer.then(callback).then(self._runs("next"))
        outer.set_result(1)
        self._go_elsewhere()
        self.assertEqual(result.value(), "next")
        inner.set_result(2)
        self._go_elsewhere()
        self.assertEqual(self.ran, [("next", ".then1"), ("inner", ".then2")])

    def test_calls_of_another_group_have_another_channel(self) -> None:
        other, names = Callbacks(self.elsewhere.append), []
        future = other.future([])
        future.set_result(1)
        future.then(lambda _: names.append(self.callbacks.channel_name()))
        self.assertEqual(names, [".other1"])

    def test_what_a_callback_raises_is_its_futures(self) -> None:
        future = self._future()
        future.set_result(1)

        def fails(future: Any) -> None:
            raise KeyError("no weights")

        failed = future.then(fails)
        with self.assertRaisesRegex(KeyError, "no weights"):
            failed.wait()
        with self.assertRaisesRegex(KeyError, "no weights"):
            failed.then(lambda before: before.value()).value()
        self.assertEqual(future.then(self._runs("a")).value(), "a")

    def test_a_failure_keeps_no_tensor(self) -> None:
        def fails(future: Any) -> None:
            raise KeyError("no weights")

        def make() -> weakref.ref[torch.Tensor]:
            value = torch.ones(3)
            future = self._future()
            failed = future.then(fails)
            future.set_result(value)
            self._go_elsewhere()
            try:  # assertRaises() would clear the frames.
                failed.wait()
            except KeyError:
                return weakref.ref(value)
            self.fail("it has not failed")

        kept = make()
        gc.collect()
        self.assertIsNone(kept())

    def test_a_failure_is_raised_for_several_futures(self) -> None:
        future = self._future()
        future.set_result(1)
        every = torch.futures.collect_all([future.then(lambda _: [][0])])
        gc.collect()
        with self.assertRaisesRegex((IndexError, RuntimeError), "list index out of range"):
            every.wait()

    def test_an_exit_is_the_futures_too(self) -> None:
        future = self._future()
        future.set_result(1)
        exits = future.then(lambda _: sys.exit(3))
        with self.assertRaises(SystemExit):
            exits.wait()
        self.assertEqual(future.then(self._runs("a")).value(), "a")

    def test_an_interrupt_is_raised_where_it_comes(self) -> None:
        future = self._future()
        future.set_result(1)

        def interrupted(future: Any) -> None:
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            future.then(interrupted)
        self._go_elsewhere()
        self.assertEqual(future.then(self._runs("a")).value(), "a")

    def test_others_run_after_a_result_that_cannot_be_set(self) -> None:
        future = self._future()
        result = future.then(self._runs("a"))
        result.set_result("by the program")
        following = future.then(self._runs("b"))
        future.set_result(1)
        with self.assertRaisesRegex(RuntimeError, "complete"):
            self._go_elsewhere()
        self._go_elsewhere()
        self.assertEqual(following.value(), "b")

    def test_what_torch_runs_for_several_futures_has_the_groups_channel(self) -> None:
        """Torch runs it on the thread that completes them, or at once: not alike at all ranks."""
        names: list[str] = []

        def run(_: Any) -> None:
            names.append(self.callbacks.channel_name())

        future = self._future()
        results = [future.then(self._runs("a")), future.then(self._runs("b"))]
        every = torch.futures.collect_all(results)
        every.then(run)
        future.set_result(1)
        self._go_elsewhere()
        every.then(run)
        self.assertEqual(names, ["", ""])
        self.assertEqual(self.ran, [("a", ".then1"), ("b", ".then1")])

    def test_any_order_of_ends_runs_them_as_they_were_chained(self) -> None:
        draw = random.Random(5)
        for _ in range(200):
            self.ran.clear()
            futures = [self._future() for _ in range(6)]
            to_chain, to_end = list(range(6)), draw.sample(range(6), 6)
            while to_chain or to_end or self.elsewhere:
                act = draw.choice([each for each in (to_chain, to_end, self.elsewhere) if each])
                if act is to_chain:
                    number = to_chain.pop(0)
                    futures[number].then(self._runs(number)).then(self._runs(number + 0.5))
                elif act is to_end:
                    futures[to_end.pop()].set_result(None)
                else:
                    self.elsewhere.pop(0)()
            self.assertEqual([name for name, _ in self.ran], [at / 2 for at in range(12)])

    def test_a_fork_is_told_that_nothing_completes_a_future_there(self) -> None:
        """Else its wait has no end, and a callback waits in a line that nobody runs."""
        open_ones = (self._future(), OwnFuture([]))
        chained = open_ones[0].then(self._runs("a"))
        uses: list[Callable[[], Any]] = []
        for future in open_ones:
            uses.append(partial(future.then, self._runs("b")))
            uses.append(partial(future.add_done_callback, self._runs("c")))
        uses += [future.wait for future in (*open_ones, chained)]
        complete = self._future()
        complete.set_result(1)
        with mock.patch("os.getpid", lambda: -1):
            for use in uses:
                with self.assertRaisesRegex(Forked, "of which this process .* is a fork"):
                    use()
            self.assertEqual(complete.wait(), 1)  # Its value is here.


if __name__ == "__main__":
    unittest.main()
