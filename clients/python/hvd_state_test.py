# SPDX-License-Identifier: Apache-2.0
"""The State classes of hvd.elastic, as programs of Horovod use them."""

from __future__ import annotations

import unittest

from talweg.errors import Aborted
from talweg.horovod.torch.elastic import ObjectState, TorchState, run


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

    def test_ranks_agree_before_reset_callbacks_are_called(self) -> None:
        """After a round that was given up, as the callbacks ask for the number of ranks."""
        told: list[str] = []

        class Told(ObjectState):
            def sync(self) -> None:
                told.append("sync")

            def restore(self) -> None:
                told.append("restore")

        state = Told(batch=0)
        state.register_reset_callbacks([lambda: told.append("reset")])

        @run
        def train(state: Told) -> int:
            told.append("train")
            if told.count("train") == 1:
                raise Aborted("rank 1 is gone")
            return 7

        self.assertEqual(train(state), 7)
        self.assertEqual(told, ["sync", "train", "restore", "sync", "reset", "train"])


if __name__ == "__main__":
    unittest.main()
