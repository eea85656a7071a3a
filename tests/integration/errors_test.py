# SPDX-License-Identifier: Apache-2.0
"""Tests that every status of the C ABI has its own exception, and that documents list both."""

from __future__ import annotations

import os
import re
import unittest
from pathlib import Path
from unittest import mock

import talweg
from talweg import errors
from talweg._library import native, native_errors

_RUNFILES = Path(os.environ["RUNFILES_DIR"]) / "talweg"
_HEADER = _RUNFILES / "clients" / "c" / "talweg.h"
_PAGE = _RUNFILES / "docs" / "operations.md"
# A status that needs no help of the caller is no failure.
_NO_FAILURES = {"TALWEG_OK", "TALWEG_PENDING", "TALWEG_EVENTS_LOST"}


def _statuses() -> dict[str, int]:
    body = re.search(r"typedef enum talweg_status \{(.*?)\}", _HEADER.read_text(), re.DOTALL)
    assert body is not None
    found = re.findall(r"(TALWEG_[A-Z_]+) = (\d+)", body.group(1))
    return {name: int(value) for name, value in found}


def _documented() -> dict[str, str]:
    """Returns the statuses (or "-") and the exceptions of the page's table."""
    rows = re.findall(r"^\| `?(TALWEG_[A-Z_]+|-)`? \| `(\w+)`", _PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len(dict(rows))
    return dict(rows)


class ErrorsTest(unittest.TestCase):
    def test_every_failure_has_an_exception_of_its_own(self) -> None:
        failures = {name: value for name, value in _statuses().items() if name not in _NO_FAILURES}
        self.assertGreater(len(failures), 15)
        self.assertEqual(set(native_errors.EXCEPTIONS), set(failures.values()))
        classes = list(native_errors.EXCEPTIONS.values())
        self.assertEqual(len(set(classes)), len(classes))
        self.assertNotIn(errors.TalwegError, classes)

    def test_the_page_says_the_same(self) -> None:
        documented = _documented()
        raised = {
            name: native_errors.EXCEPTIONS[value].__name__
            for name, value in _statuses().items()
            if name not in _NO_FAILURES
        }
        self.assertEqual(documented.pop("-"), "NotInitialized")
        self.assertEqual(documented, raised)

    def test_all_can_be_caught_by_their_names(self) -> None:
        for name, value in vars(errors).items():
            if not isinstance(value, type):
                continue
            with self.subTest(name):
                self.assertIs(getattr(talweg, name), value)
                self.assertIn(name, talweg.__all__)
                self.assertTrue(issubclass(value, talweg.TalwegError))
                self.assertEqual(str(value("the text")), "the text")

    def test_pythons_own_kinds(self) -> None:
        kinds: dict[type[Exception], type[Exception]] = {
            errors.Timeout: TimeoutError,
            errors.InvalidArgument: ValueError,
            errors.WrongType: TypeError,
            errors.PermissionDenied: PermissionError,
            errors.OutOfMemory: MemoryError,
        }
        for ours, pythons in kinds.items():
            self.assertTrue(issubclass(ours, pythons))

    def test_a_wait_in_slices_copies_nothing_twice(self) -> None:
        connection = native.Connection.__new__(native.Connection)
        connection._handle = native._client_p()
        connection._library = mock.Mock()
        connection._library.talweg_wait.return_value = native.TIMEOUT
        connection._library.talweg_wait_again.side_effect = [native.TIMEOUT, 0]
        connection.wait(1, 2, 3, None)
        self.assertEqual(
            [call[0] for call in connection._library.method_calls],
            ["talweg_wait", "talweg_wait_again", "talweg_wait_again"],
        )
        # The next round may be another caller's, with another array.
        connection._library.reset_mock()
        with self.assertRaises(errors.Timeout):
            connection._library.talweg_last_error.return_value = b"late"
            connection.wait(1, 2, 3, 0.0)
        connection._library.talweg_wait.assert_called_once()
        connection._library.talweg_wait_again.assert_not_called()

    def test_a_barrier_waits_in_slices(self) -> None:
        connection = native.Connection.__new__(native.Connection)
        connection._handle = native._client_p()
        connection._library = mock.Mock()
        connection._library.talweg_barrier.side_effect = [native.TIMEOUT, native.TIMEOUT, 0]
        connection.barrier()
        self.assertEqual(connection._library.talweg_barrier.call_count, 3)

    def test_a_library_that_lacks_a_function_is_named(self) -> None:
        later = {**native._PROTOTYPES, "talweg_of_tomorrow": (None, [])}
        with mock.patch.object(native, "_PROTOTYPES", later):
            with self.assertRaisesRegex(errors.VersionMismatch, "libtalweg.so has no talweg_of_to"):
                native._load()


if __name__ == "__main__":
    unittest.main()
