# SPDX-License-Identifier: Apache-2.0
"""The State classes of hvd.elastic, as programs of Horovod use them."""

from __future__ import annotations

import unittest

from talweg.horovod.torch.elastic import ObjectState, TorchState


class HvdStateTest(unittest.TestCase):
    def test_a_program_keeps_values_of_its_own_in_it(self) -> None:
        """They are not saved, and do not travel."""
        for kind in (ObjectState, TorchState):
            state = kind(batch=0)
            state.batch = 1
            state.note = "first"
            state.save()
            state.batch, state.note = 2, "second"
            state.restore()
            self.assertEqual((state.batch, state.note), (1, "second"))


if __name__ == "__main__":
    unittest.main()
