# SPDX-License-Identifier: Apache-2.0
"""What a signal's handler raises while signals are held back, and what an interrupt leaves."""

from __future__ import annotations

import gc
import signal
import unittest
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import talweg
import talweg.torch as tw
import torch
from talweg import _interrupts
from talweg.errors import InvalidArgument


class _Thing:
    """What an interrupted frame has."""


class RaisedTest(unittest.TestCase):
    def setUp(self) -> None:
        self.addCleanup(signal.signal, signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        gc.disable()
        self.addCleanup(gc.enable)

    def _interrupted(self, handler: Callable[..., None]) -> None:
        """Waits in two contexts, where the signal comes."""
        thing = _Thing()
        self.thing = weakref.ref(thing)
        signal.signal(signal.SIGALRM, handler)
        with _interrupts.held, _interrupts.held:
            signal.raise_signal(signal.SIGALRM)
            _interrupts.deliver()

    def test_the_frames_are_gone_with_the_error(self) -> None:
        for kind in (TimeoutError, KeyboardInterrupt):
            with self.subTest(kind=kind):

                def raises(*_: object, kind: type[BaseException] = kind) -> None:
                    raise kind

                # assertRaises() would clear the frames.
                try:
                    self._interrupted(raises)
                except kind:
                    self.assertIsNotNone(self.thing())
                else:
                    self.fail("no error")
                self.assertIsNone(self.thing())

    def test_the_error_has_the_cause_and_the_context_of_the_handler(self) -> None:
        def raises(*_: object) -> None:
            try:
                raise KeyError
            except KeyError:
                raise TimeoutError from ValueError()

        with self.assertRaises(TimeoutError) as raised:
            self._interrupted(raises)
        self.assertIsInstance(raised.exception.__cause__, ValueError)
        self.assertIsInstance(raised.exception.__context__, KeyError)


class AgreementTest(unittest.TestCase):
    def test_an_agreement_of_local_steps_that_was_cut_short_is_not_made_again(self) -> None:
        """The other ranks would not take part, and this one would wait for them without end."""
        talweg.init()
        self.addCleanup(talweg.shutdown)
        model = torch.nn.Linear(3, 2)
        optimizer: Any = tw.LocalSGD(model, torch.optim.SGD(model.parameters(), lr=0.1), every=2)
        steps = optimizer._talweg_local
        group = mock.PropertyMock(return_value=SimpleNamespace(size=2))
        with mock.patch.object(type(steps._rounds), "group", group):
            with mock.patch.object(steps, "_open", side_effect=KeyboardInterrupt):
                with self.assertRaises(KeyboardInterrupt):  # It waits for the others to come.
                    optimizer.step()
            with (
                mock.patch.object(steps, "_open"),
                mock.patch.object(steps, "_make_alike", side_effect=KeyboardInterrupt) as made,
            ):
                with self.assertRaises(KeyboardInterrupt):
                    optimizer.step()
                for call in (optimizer.step, optimizer.flush):
                    with self.assertRaisesRegex(InvalidArgument, "agreement half way"):
                        call()
                self.assertEqual(made.call_count, 1)


if __name__ == "__main__":
    unittest.main()
