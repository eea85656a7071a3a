# SPDX-License-Identifier: Apache-2.0
"""A launcher's outputs: readers that stop reading, readers that are gone, and full disks."""

from __future__ import annotations

import os
import selectors
import time
import unittest

from talweg._node.outputs import Output

_DEADLINE_S = 60


class OutputsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.reader, self.writer = os.pipe()
        self.addCleanup(self._close)
        self.output = Output(self.writer)

    def _close(self) -> None:
        for fd in (self.reader, self.writer):
            if fd >= 0:
                os.close(fd)

    def _read(self, nbytes: int) -> bytes:
        found = b""
        while len(found) < nbytes:
            found += os.read(self.reader, nbytes - len(found))
        return found

    def test_a_reader_that_stops_reading(self) -> None:
        text = "x" * 300_000
        self.output.add(text)
        self.assertEqual(self.output.write(), "")
        self.assertFalse(self.output.is_full)
        for _ in range(3):
            self.output.add(text)
        self.output.write()
        self.assertTrue(self.output.is_full)
        found = b""
        while len(found) < 4 * len(text):
            found += os.read(self.reader, 4096)
            self.output.write()
        self.assertEqual(found, 4 * text.encode())
        self.assertFalse(self.output.is_full)

    def test_it_wakes_when_more_can_be_written(self) -> None:
        with selectors.DefaultSelector() as selector:
            self.output.add("x" * 100_000)
            self.output.write()
            self.output.wake(selector)
            self.assertEqual(selector.select(0), [])
            os.read(self.reader, 65_536)
            [(key, _)] = selector.select(_DEADLINE_S)
            self.assertIsNone(key.data)
            self.output.write()
            self.output.wake(selector)
            self.assertEqual(len(selector.get_map()), 0)

    def test_a_reader_that_is_gone(self) -> None:
        os.close(self.reader)
        self.reader = -1
        self.output.add("a")
        self.assertEqual(self.output.write(), "")
        self.assertTrue(self.output.is_gone)
        self.output.add("b")
        self.output.drain(time.monotonic() + _DEADLINE_S)

    def test_a_full_disk(self) -> None:
        full = os.open("/dev/full", os.O_WRONLY)
        self.addCleanup(os.close, full)
        output = Output(full)
        output.add("a")
        self.assertEqual(output.write(), "No space left on device")
        output.add("b")
        self.assertEqual(output.write(), "")  # It has been said.
        self.assertFalse(output.is_gone)
        output.add("c")
        output.drain(time.monotonic() + _DEADLINE_S)

    def test_what_is_left_at_the_end(self) -> None:
        self.output.add("x" * 1000)
        self.output.drain(time.monotonic() + _DEADLINE_S)
        self.assertEqual(self._read(1000), b"x" * 1000)


if __name__ == "__main__":
    unittest.main()
