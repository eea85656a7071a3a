# SPDX-License-Identifier: Apache-2.0
"""What a signal's handler raises while signals are held back."""

from __future__ import annotations

import gc
import signal
import unittest
import weakref
from collections.abc import Callable

from talweg import _interrupts


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


if __name__ == "__main__":
    unittest.main()
