# SPDX-License-Identifier: Apache-2.0
"""Tests BytePS's hashes: each server sums the bytes of the slices that the hash gives to it."""

from __future__ import annotations

import json
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path

import job
from byteps_commands import shared, start
from talweg._compat.environment import VariableError
from talweg.byteps import _job

_BITS = 2**64
# The bytes of the tensors. Slices have at most 64 KiB, so the last tensor is one slice.
_SIZES = {"first": 1_280_000, "second": 640_000, "third": 4_000}
_SLICE_BYTES = 65536

# The rank sums. Before and after that it asks how many bytes each server has summed.
_PROGRAM = f"""
import json, subprocess, sys
import numpy as np
import talweg
from talweg import _programs
from talweg.byteps import common as bps

def summed():
    line = [_programs.tool(), "status", "--scheduler=" + sys.argv[1], "--json"]
    told = json.loads(subprocess.run(line, capture_output=True, check=True).stdout)
    return told["jobs"][0]["job"]["summary"]["spec"]["dealing"], {{
        name: int(answer["bytes_summed"]) for name, answer in told["aggregators"].items()
    }}

bps.init()
before = summed()[1]
for name, size in {_SIZES!r}.items():
    values = np.arange(size // 4, dtype=np.float32)
    total = talweg.push_pull(values, op=talweg.Op.SUM, name=name)
    assert (total == values * bps.size()).all(), name
dealing, after = summed()
placed = [after[name] - before[name] for name in sorted(after)]
print("placed " + json.dumps([dealing, placed]), flush=True)
"""


def _fingerprint(text: str) -> int:
    value = 0xCBF29CE484222325 ^ len(text)
    for character in text.encode():
        value = (value ^ character) * 0x100000001B3 % _BITS
    value = (value + 0x9E3779B97F4A7C15) % _BITS
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % _BITS
    value = (value ^ value >> 27) * 0x94D049BB133111EB % _BITS
    return value ^ value >> 31


def _polynomial(key: int, factor: int, begin: int) -> int:
    value = begin
    for digit in str(key):
        value = (value * factor + ord(digit)) % _BITS
    return value


_HASHES: dict[str, Callable[[int], int]] = {
    "naive": lambda key: (key // 65536 + key % 65536) * 9973 % _BITS,
    "djb2": lambda key: _polynomial(key, 33, 5381),
    "sdbm": lambda key: _polynomial(key, 65599, 0),
    "built_in": lambda key: _fingerprint(str(key)) * 5 % _BITS,
}


def _placed(owner_of: Callable[[int], int], owners: int) -> list[int]:
    """Returns the bytes of all slices, by owner."""
    placed = [0] * owners
    for name, size in _SIZES.items():
        count = -(-size // _SLICE_BYTES)
        length = -(-size // count // 64) * 64
        number = _fingerprint(name) % 2**32
        for place in range(count):
            key = number * 65536 + place
            placed[owner_of(key)] += min(length, size - place * length)
    return placed


class DealingTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.program = Path(directory.name) / "program.py"
        self.program.write_text(_PROGRAM)

    def _dealt(self, servers: int, **variables: str) -> tuple[dict[str, object], list[int]]:
        """Returns the job's dealing, and the bytes that each server has summed, by server."""
        given = shared(
            DMLC_NUM_WORKER="1",
            DMLC_NUM_SERVER=str(servers),
            BYTEPS_FORCE_DISTRIBUTED="1",
            BYTEPS_PARTITION_BYTES=str(_SLICE_BYTES),
            **variables,
        )
        scheduler = start(self, [], **given, DMLC_ROLE="scheduler")
        started = [start(self, [], **given, DMLC_ROLE="server") for _ in range(servers)]
        place = f"{given['DMLC_PS_ROOT_URI']}:{given['DMLC_PS_ROOT_PORT']}"
        line = [sys.executable, str(self.program), place]
        worker = start(self, line, **given, DMLC_ROLE="worker", DMLC_WORKER_ID="0")
        outputs = []
        for process in (worker, *started, scheduler):
            output, _ = process.communicate(timeout=job.TIMEOUT_S)
            self.assertEqual(process.returncode, 0, output)
            outputs.append(output)
        lines = [each for each in outputs[0].splitlines() if "placed [" in each]
        self.assertEqual(len(lines), 1, outputs[0])
        dealing, placed = json.loads(lines[0].partition("placed ")[2])
        return dealing, placed

    def test_each_hash(self) -> None:
        for name, hash_of in _HASHES.items():
            with self.subTest(name):
                dealing, placed = self._dealt(
                    3, BYTEPS_KEY_HASH_FN=name, BYTEPS_BUILT_IN_HASH_COEF="5"
                )
                wanted = _placed(lambda key, of=hash_of: of(key) % 3, 3)  # type: ignore[misc]
                self.assertEqual(placed, wanted, dealing)

    def test_mixed_mode(self) -> None:
        """Servers of one kind have equal weights, so 13 points are divided into 6 and 7."""
        dealing, placed = self._dealt(2, BYTEPS_ENABLE_MIXED_MODE="1", BYTEPS_MIXED_MODE_BOUND="13")
        self.assertEqual(dealing, {"rule": "DEALING_RULE_WEIGHTED", "constant": 13})
        wanted = _placed(lambda key: int(_polynomial(key, 33, 5381) % 13 >= 6), 2)
        self.assertEqual(placed, wanted)

    def test_without_a_hash_all_is_striped(self) -> None:
        """Each server gets half of each long tensor, to a cache line. One gets the small tensor."""
        dealing, placed = self._dealt(2)
        self.assertEqual(dealing["rule"], "DEALING_RULE_STRIPED")
        long = (_SIZES["first"] + _SIZES["second"]) // 2
        self.assertAlmostEqual(min(placed), long, delta=128)
        self.assertAlmostEqual(max(placed), long + _SIZES["third"], delta=128)


class OptionTest(unittest.TestCase):
    """Tests the agent's option that BytePS's variables stand for."""

    def test_the_option(self) -> None:
        for variables, wanted in (
            ({}, None),
            ({"BYTEPS_KEY_HASH_FN": ""}, None),
            ({"BYTEPS_KEY_HASH_FN": "naive"}, "naive"),
            ({"BYTEPS_KEY_HASH_FN": "sdbm", "BYTEPS_BUILT_IN_HASH_COEF": "7"}, "sdbm"),
            ({"BYTEPS_KEY_HASH_FN": "built_in"}, "fingerprint:1"),
            ({"BYTEPS_KEY_HASH_FN": "built_in", "BYTEPS_BUILT_IN_HASH_COEF": "7"}, "fingerprint:7"),
            ({"BYTEPS_KEY_HASH_FN": "mixed", "BYTEPS_ENABLE_MIXED_MODE": "1"}, "weighted:101"),
            # Mixed mode has its own hash.
            ({"BYTEPS_KEY_HASH_FN": "djb2", "BYTEPS_ENABLE_MIXED_MODE": "1"}, "weighted:101"),
            ({"BYTEPS_ENABLE_MIXED_MODE": "1", "BYTEPS_MIXED_MODE_BOUND": "9"}, "weighted:9"),
            ({"BYTEPS_MIXED_MODE_BOUND": "9"}, None),
        ):
            with self.subTest(variables):
                self.assertEqual(_job.daemon_variables(variables).get("TALWEG_DEALING"), wanted)
                servers = _job.daemon_variables(variables, is_server=True)
                self.assertNotIn("TALWEG_DEALING", servers)

    def test_what_does_not_fit(self) -> None:
        for variables, text in (
            (
                {"BYTEPS_KEY_HASH_FN": "mixed"},
                "BYTEPS_KEY_HASH_FN is mixed, which needs BYTEPS_ENABLE_MIXED_MODE=1",
            ),
            (
                {
                    "BYTEPS_ENABLE_MIXED_MODE": "1",
                    "BYTEPS_MIXED_MODE_BOUND": "3",
                    "DMLC_NUM_SERVER": "4",
                },
                "BYTEPS_MIXED_MODE_BOUND is 3; with DMLC_NUM_SERVER=4 it must be at least 4",
            ),
            (
                {"BYTEPS_KEY_HASH_FN": "md5"},
                "BYTEPS_KEY_HASH_FN is 'md5'; it must be naive, built_in, djb2, sdbm or mixed",
            ),
        ):
            with self.subTest(variables), self.assertRaisesRegex(VariableError, text):
                _job.daemon_variables(variables)


if __name__ == "__main__":
    unittest.main()
