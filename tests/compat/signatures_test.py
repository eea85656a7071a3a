# SPDX-License-Identifier: Apache-2.0
"""What Python signs rounds with, as the daemons read it."""

from __future__ import annotations

import os
import subprocess
import unittest
from pathlib import Path

from talweg import _joining
from talweg._declaration import Declaration, DType, Op, shape_signature

_TOOL = Path(os.environ["RUNFILES_DIR"], "talweg/tests/compat/describe_signatures")


def _texts(*signatures: int) -> list[str]:
    line = [str(_TOOL), *(str(each) for each in signatures)]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout.splitlines()


class SignaturesTest(unittest.TestCase):
    def test_shapes(self) -> None:
        shapes = [(), (7,), (32, 6), (1, 2, 3, 4)]
        wanted = [f"shape {list(each)}" for each in shapes]
        self.assertEqual(_texts(*map(shape_signature, shapes)), wanted)
        [text] = _texts(shape_signature((1 << 40, 1 << 40)))
        self.assertRegex(text, "^a shape with digest [0-9a-f]{14}$")

    def test_what_a_name_is_used_for_instead(self) -> None:
        settled = Declaration(DType.F32, 8, Op.SUM, 0)
        for instead, wanted in (
            (Declaration(DType.BF16, 8, Op.MAX, 0), "bf16[8] max"),
            (Declaration(DType.I64, 2**40 - 1, Op.SUM, 0), "i64[1099511627775] sum"),
            (Declaration(DType.U8, 0, Op.BIT_XOR, 0), "u8[0] bit_xor"),
            (Declaration(DType.F32, 8, Op.BROADCAST, 1), "f32[8] broadcast"),
        ):
            self.assertEqual(_texts(instead.signature_instead_of(settled)), [wanted])

    def test_ranks_that_have_joined(self) -> None:
        what = _texts(_joining._HAS_JOINED, _joining._FITS_ALL)
        wanted = [f"{each}, since it has joined (hvd.join())" for each in ("nothing", "zeros")]
        self.assertEqual(what, wanted)


if __name__ == "__main__":
    unittest.main()
