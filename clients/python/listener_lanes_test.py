# SPDX-License-Identifier: Apache-2.0
"""The numbers that ranks tell each other when nodes enter, and how many there are."""

from __future__ import annotations

import random
import unittest

import numpy as np
from talweg._elastic.lanes import EnteredLanes, ListenerLanes, StepLanes


class ListenersTest(unittest.TestCase):
    def test_each_joiner_hears_who_has_a_line_to_it(self) -> None:
        for seed in range(50):
            draw = random.Random(seed)
            members = draw.choice([1, 3, 64, 65, 130])
            entered = EnteredLanes(members)
            places = sorted(draw.sample(range(members), draw.randrange(members + 1)))
            for place in places:
                own = EnteredLanes(members)
                own.tell(place)
                entered.all |= own.all
            self.assertEqual(entered.places, places)
            said = [[draw.random() < 0.5 for _ in range(members)] for _ in range(members)]
            lanes = ListenerLanes(members, places)
            for rank, listens in enumerate(said):
                own_lanes = ListenerLanes(members, places)
                own_lanes.tell(rank, listens)
                np.maximum(lanes.all, own_lanes.all, out=lanes.all)
            for place in range(members):
                wanted = [rank for rank in range(members) if said[rank][place] and place in places]
                self.assertEqual(lanes.listeners(place), wanted)

    def test_there_are_as_many_numbers_as_ranks(self) -> None:
        """A rank's numbers grow like the members, not like their square."""
        counts = {}
        for members in (4, 8, 16, 256, 1024):
            listening = ListenerLanes(members, [members - 1]).all.size
            entering = EnteredLanes(members).all.size
            counts[members] = (entering + listening, StepLanes.count(members, 1))
            print(f"{members} members: {counts[members][0]} numbers a rank when a node enters")
            self.assertEqual(listening, members)
            self.assertEqual(entering, -(-members // 64))
        for few, many in ((4, 8), (8, 16), (256, 1024)):
            for fewer, more in zip(counts[few], counts[many]):
                self.assertLessEqual(more / fewer, many / few)


if __name__ == "__main__":
    unittest.main()
