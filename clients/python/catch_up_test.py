# SPDX-License-Identifier: Apache-2.0
"""The state machines by which a joiner catches up, without a job."""

from __future__ import annotations

import ctypes
import random
import unittest
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from talweg._elastic import stripes
from talweg._elastic.catch_up import (
    ATTEMPTS_MAX,
    Apply,
    CopySnapshot,
    Drop,
    EndLine,
    Giver,
    GiverState,
    Load,
    Place,
    SayReady,
    SendEntry,
    SendRest,
    SendUnable,
    Taker,
    TakeRest,
    TakerState,
    TakeWhole,
)
from talweg._elastic.catch_up_lines import (
    Entry,
    Message,
    Reader,
    Rest,
    Rounds,
    Snapshot,
    Unable,
    Writer,
    pieces,
)
from talweg._elastic.giving import _Outbox
from talweg._elastic.replay import Call

_A, _B = (0, 0), (1, 0)
_LAYOUT = b"layout"


def _ready_taker() -> Taker:
    """It has the snapshot of step 4 from both, has made step 5, and has said that it is ready."""
    taker = Taker([_A, _B])
    for number, place in enumerate((_A, _B)):
        taker.on_snapshot(place, 4, (number, 2), _LAYOUT)
        taker.on_stripe(place)
        taker.on_entry(place, 5, 5)
    return taker


class GiverTest(unittest.TestCase):
    def _giving(self) -> Giver:
        giver = Giver(_B)
        giver.on_ask(None)
        effects = giver.on_boundary(5, [_B, _A], may_begin=True)
        self.assertEqual(effects, (CopySnapshot(step=5, place=1, count=2),))
        return giver

    def test_it_waits_until_all_have_heard(self) -> None:
        giver = Giver(_A)
        self.assertTrue(giver.holds_others)
        self.assertEqual(giver.on_boundary(3, [_A, _B], may_begin=True), ())
        giver.on_ask(None)
        self.assertFalse(giver.holds_others)
        self.assertEqual(giver.on_boundary(4, [_A, _B], may_begin=False), ())
        self.assertIs(giver.state, GiverState.ASKED)

    def test_each_step_follows_the_snapshot_and_the_rest_comes_last(self) -> None:
        giver = self._giving()
        self.assertEqual(giver.on_boundary(6, [_A, _B], False), (SendEntry(6),))
        self.assertEqual(giver.on_full_member(6, [_A, _B]), (SendRest(6, is_first=False),))
        self.assertEqual(giver.on_boundary(7, [_A, _B], False), ())

    def test_another_survivor_is_lost(self) -> None:
        giver = self._giving()
        for attempt in range(2, ATTEMPTS_MAX + 1):
            giver._givers = (_A, _B)
            [effect] = giver.on_boundary(5 + attempt, [_B], False)
            self.assertEqual(effect, CopySnapshot(5 + attempt, place=0, count=1))
        giver._givers = (_A, _B)
        [effect] = giver.on_boundary(20, [_B], False)
        self.assertIsInstance(effect, SendUnable)

    def test_those_that_give_begin_anew_without_one_that_came_since_then(self) -> None:
        giver = self._giving()
        [effect] = giver.on_boundary(6, [_B, (2, 0)], False)
        self.assertEqual(effect, CopySnapshot(6, place=0, count=1))

    def test_one_that_came_later_gives_when_nobody_does(self) -> None:
        giver = Giver((2, 0))
        giver.on_ask(None)
        self.assertTrue(self._giving().holds_others)
        self.assertEqual(giver.on_boundary(6, [_A, _B, (2, 0)], may_begin=False), ())
        [effect] = giver.on_boundary(7, [(2, 0)], may_begin=True)
        self.assertEqual(effect, CopySnapshot(7, place=0, count=1))

    def test_one_that_enters_meanwhile_changes_nothing(self) -> None:
        giver = self._giving()
        self.assertEqual(giver.on_boundary(6, [_A, _B, (2, 0)], False), (SendEntry(6),))

    def test_a_survivor_is_lost_as_the_node_enters(self) -> None:
        [effect] = self._giving().on_full_member(6, [_B])
        self.assertIsInstance(effect, SendUnable)

    def test_the_log_is_bounded(self) -> None:
        giver = self._giving()
        self.assertEqual(giver.on_backlog(100, 100), ())
        [effect] = giver.on_backlog(101, 100)
        self.assertIsInstance(effect, SendUnable)
        self.assertEqual(giver.on_boundary(6, [_A, _B], False), ())

    def test_the_standby_is_lost(self) -> None:
        giver = self._giving()
        self.assertEqual(giver.on_lost(), (Drop(),))
        self.assertEqual(giver.on_boundary(6, [_A, _B], False), ())

    def test_the_node_has_entered(self) -> None:
        """However far it was: the line ends once."""
        for giver in (Giver(_B), self._giving()):
            self.assertEqual(giver.on_entered(), (EndLine(),))
            self.assertIs(giver.state, GiverState.OVER)
            self.assertEqual(giver.on_ask(None), ())
            self.assertEqual(giver.on_full_member(6, [_A, _B]), ())

    def test_a_state_that_cannot_be_replayed(self) -> None:
        giver = Giver(_A)
        self.assertEqual(giver.on_ask("LBFGS"), (SendUnable("LBFGS"),))
        self.assertIs(giver.state, GiverState.OVER)

    def test_whoever_has_given_nothing_says_so_when_the_node_enters(self) -> None:
        for is_asked in (False, True):
            giver = Giver(_A)
            if is_asked:
                giver.on_ask(None)
            self.assertEqual(giver.on_full_member(3, [_A]), (SendRest(3, is_first=False),))
            self.assertIs(giver.state, GiverState.OVER)


class TakerTest(unittest.TestCase):
    def test_it_loads_when_all_stripes_are_there(self) -> None:
        taker = Taker([_A, _B])
        taker.on_snapshot(_A, 5, (0, 2), _LAYOUT)
        self.assertEqual(list(taker.on_stripe(_A)), [])
        self.assertEqual(list(taker.on_entry(_A, 6, 9)), [])
        taker.on_snapshot(_B, 5, (1, 2), _LAYOUT)
        self.assertEqual(list(taker.on_stripe(_B)), [Load(5)])  # Behind by four steps.
        self.assertEqual(list(taker.on_entry(_B, 6, 9)), [Apply(6)])

    def test_it_is_ready_when_it_is_behind_by_one(self) -> None:
        taker = Taker([_A])
        taker.on_snapshot(_A, 5, (0, 1), _LAYOUT)
        # It does not know how many steps there were meanwhile.
        self.assertEqual(list(taker.on_stripe(_A)), [Load(5)])
        self.assertEqual(list(taker.on_entry(_A, 6, 9)), [Apply(6)])
        self.assertEqual(list(taker.on_entry(_A, 7, 9)), [Apply(7)])
        self.assertEqual(list(taker.on_entry(_A, 8, 9)), [Apply(8), SayReady()])
        self.assertEqual(list(taker.on_entry(_A, 9, 9)), [Apply(9)])  # It says so once.

    def test_it_enters_with_the_rest(self) -> None:
        taker = _ready_taker()
        taker.on_full_member(6)
        taker.on_entry(_A, 6, 6)
        self.assertEqual(list(taker.on_rest(_A, 6)), [])
        self.assertEqual(list(taker.on_entry(_B, 6, 6)), [Apply(6)])
        self.assertEqual(list(taker.on_rest(_B, 6)), [TakeRest(6)])
        self.assertIs(taker.state, TakerState.CAUGHT_UP)

    def test_steps_that_are_missing_before_the_rest(self) -> None:
        taker = _ready_taker()
        taker.on_rest(_A, 6)
        [effect] = taker.on_rest(_B, 6)
        self.assertIsInstance(effect, TakeWhole)

    def test_a_survivor_is_lost_and_the_other_begins_anew(self) -> None:
        taker = _ready_taker()
        taker.on_entry(_A, 6, 6)
        self.assertEqual(list(taker.on_line_lost(_B)), [])
        self.assertEqual(list(taker.on_entry(_A, 7, 7)), [])
        taker.on_snapshot(_A, 8, (0, 1), _LAYOUT)
        self.assertEqual(list(taker.on_stripe(_A)), [Load(8)])
        self.assertEqual(list(taker.on_entry(_A, 9, 9)), [Apply(9)])

    def test_all_are_lost_and_another_gives(self) -> None:
        taker = _ready_taker()
        for place in (_A, _B):
            self.assertEqual(list(taker.on_line_lost(place)), [])
        taker.on_line((2, 0))
        taker.on_snapshot((2, 0), 8, (0, 1), _LAYOUT)
        self.assertEqual(list(taker.on_stripe((2, 0))), [Load(8)])

    def test_all_are_lost(self) -> None:
        taker = Taker([_A])
        taker.on_full_member(3)
        whole, ready = taker.on_line_lost(_A)
        self.assertIsInstance(whole, TakeWhole)
        self.assertEqual(ready, SayReady())

    def test_one_gives_nothing_more(self) -> None:
        taker = Taker([_A, _B])
        whole, ready = taker.on_unable(_B, "because")
        self.assertEqual((whole, ready), (TakeWhole("rank 0 of node 1: because"), SayReady()))
        self.assertEqual(list(taker.on_unable(_A, "because")), [])

    def test_a_line_on_which_nothing_comes(self) -> None:
        taker = _ready_taker()
        taker.on_line((2, 0))
        self.assertEqual(list(taker.on_entry(_A, 6, 6)), [])
        self.assertEqual(list(taker.on_entry(_B, 6, 6)), [Apply(6)])
        taker.on_full_member(6)
        taker.on_rest(_A, 6)
        self.assertEqual(list(taker.on_rest(_B, 6)), [TakeRest(6)])

    def test_all_that_give_are_lost_as_the_node_enters(self) -> None:
        taker = _ready_taker()
        taker.on_line((2, 0))
        taker.on_full_member(6)
        taker.on_line_lost(_A)
        self.assertEqual(list(taker.on_line_lost(_B)), [])  # The other may have begun to give.
        [effect] = taker.on_rest((2, 0), 6)
        self.assertIsInstance(effect, TakeWhole)

    def test_the_rest_does_not_fit(self) -> None:
        taker = _ready_taker()
        taker.on_rest(_A, 5)
        self.assertEqual(list(taker.on_rest(_B, 5)), [TakeRest(5)])
        self.assertEqual(list(taker.on_failure("because")), [TakeWhole("because")])
        self.assertIs(taker.state, TakerState.WHOLE)

    def test_shapes_that_differ(self) -> None:
        taker = Taker([_A, _B])
        taker.on_snapshot(_A, 5, (0, 2), b"one")
        taker.on_stripe(_A)
        taker.on_snapshot(_B, 5, (1, 2), b"other")
        whole, _ = taker.on_stripe(_B)
        assert isinstance(whole, TakeWhole)
        self.assertIn("different shapes", whole.reason)

    def test_a_step_that_is_left_out(self) -> None:
        taker = _ready_taker()
        [effect] = taker.on_entry(_A, 7, 7)
        self.assertIsInstance(effect, TakeWhole)


@dataclass
class _Survivor:
    giver: Giver
    line: deque[object] = field(default_factory=deque)  # What is sent, and has not come.
    is_lost: bool = False


class _Life:
    """Survivors and a joiner whose state is the list of steps that it has: drawn from one seed.

    Other nodes may become survivors while it takes.
    """

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.places: list[Place] = [(node, 0) for node in range(self._draw.randrange(1, 5))]
        self.survivors = {place: _Survivor(Giver(place)) for place in self.places}
        self.taker = Taker(self.places)
        self.state: list[int] = []  # The steps in it.
        self.is_ready = self.is_whole = False
        self.entered_at: int | None = None
        self.steps_meanwhile = 0

    @property
    def _there(self) -> list[Place]:
        return [place for place in self.places if not self.survivors[place].is_lost]

    def _perform(self, survivor: _Survivor, effects: Sequence[object]) -> None:
        for effect in effects:
            if isinstance(effect, (SendUnable, Drop, EndLine)):
                survivor.line.clear()
            survivor.line.append(effect)

    def _take(self, place: Place) -> None:
        """What comes next on a line."""
        line = self.survivors[place].line
        if not line or place not in self.taker.lines:
            return
        sent, taker = line.popleft(), self.taker
        if isinstance(sent, CopySnapshot):
            stripe = (sent.place, sent.count)
            self._do(taker.on_snapshot(place, sent.step, stripe, _LAYOUT))
            self._do(taker.on_stripe(place))
        elif isinstance(sent, SendEntry):
            waiting = [each.step for each in line if isinstance(each, SendEntry)]
            self._do(taker.on_entry(place, sent.step, max([sent.step, *waiting])))
        elif isinstance(sent, SendRest):
            self._do(taker.on_rest(place, sent.step))
        elif isinstance(sent, SendUnable):
            self._do(taker.on_unable(place, sent.reason))

    def _do(self, effects: Sequence[object]) -> None:
        for effect in effects:
            if isinstance(effect, Load):
                self.state = list(range(effect.step + 1))
            elif isinstance(effect, Apply):
                assert self.state and self.state[-1] + 1 == effect.step, (self.state, effect)
                self.state.append(effect.step)
            elif isinstance(effect, SayReady):
                self.is_ready = True
            elif isinstance(effect, TakeWhole):
                self.is_whole = True

    def _lose_one(self) -> None:
        if len(self._there) > 1:
            place = self._draw.choice(self._there)
            self.survivors[place].is_lost = True
            if place in self.taker.lines:
                self._do(self.taker.on_line_lost(place))

    def _add_one(self) -> None:
        place = (len(self.places), 0)
        self.places.append(place)
        self.survivors[place] = _Survivor(Giver(place))
        self.taker.on_line(place)

    def run(self, losses: float) -> None:
        draw = self._draw
        for step in range(1, 200):
            if draw.random() < 0.1:
                self._add_one()
            for place in self._there:
                if draw.random() < 0.5:
                    self.survivors[place].giver.on_ask(None)
            if draw.random() < losses:
                self._lose_one()
            there = self._there
            givers = [self.survivors[place] for place in there]
            may_begin = not any(each.giver.holds_others for each in givers)
            for each in givers:
                self._perform(each, each.giver.on_boundary(step, there, may_begin))
            if self.is_ready and draw.random() < 0.5:
                self.entered_at = step
                for each in givers:
                    self._perform(each, each.giver.on_full_member(step, there))
                self._do(self.taker.on_full_member(step))
                break
            self.steps_meanwhile += self.taker.state is not TakerState.CAUGHT_UP
            for _ in range(draw.randrange(3 * len(there))):
                self._take(draw.choice(there))
        while any(self.survivors[place].line for place in self._there):
            if draw.random() < losses / 2:
                self._lose_one()
            place = draw.choice(self._there)
            self._take(place)
            if place not in self.taker.lines:
                self.survivors[place].line.clear()


class LivesTest(unittest.TestCase):
    def test_whoever_is_caught_up_has_every_step_once(self) -> None:
        outcomes = {TakerState.CAUGHT_UP: 0, TakerState.WHOLE: 0}
        for seed in range(3000):
            with self.subTest(seed=seed):
                life = _Life(seed)
                life.run(losses=0.0 if seed % 3 == 0 else 0.1)
                self.assertIsNotNone(life.entered_at)
                self.assertIn(life.taker.state, outcomes)
                outcomes[life.taker.state] += 1
                if seed % 3 == 0:  # Nothing has gone wrong.
                    self.assertIs(life.taker.state, TakerState.CAUGHT_UP)
                if life.taker.state is TakerState.CAUGHT_UP:
                    assert life.entered_at is not None
                    self.assertEqual(life.state, list(range(life.entered_at + 1)))
                    self.assertFalse(life.is_whole)
                else:
                    self.assertTrue(life.is_whole)
        self.assertGreater(outcomes[TakerState.WHOLE], 10)
        self.assertGreater(outcomes[TakerState.CAUGHT_UP], 1500)


class _Pipe:
    """Rounds of which each is over at once."""

    def __init__(self) -> None:
        self.chunks: list[np.ndarray] = []

    def send(self, chunk: np.ndarray, is_over: Callable[[], bool]) -> bool:
        self.chunks.append(chunk.copy())
        return True


class _Connection:
    """Where each round is over when it is waited for, and has brought a chunk."""

    def __init__(self) -> None:
        self.open: list[int] = []
        self.length = 0

    def declare_collective(self, *_: Any, **__: Any) -> int:
        self.open.append(0)
        return len(self.open) - 1

    def push_parts(self, tensor: int, *_: Any) -> int:
        self.open[tensor] += 1
        return 1

    def wait_parts(self, tensor: int, round_: int, address: int, *_: Any) -> bool:
        self.open[tensor] -= 1
        ctypes.memmove(address, self.length.to_bytes(8, "little"), 8)
        return True


def _random_message(draw: random.Random) -> Message:
    def large() -> np.ndarray:
        return np.frombuffer(draw.randbytes(draw.choice([0, 1, 100, 3000])), np.uint8)

    kind = draw.randrange(4)
    if kind == 0:
        stripe = large()
        return Snapshot(draw.randrange(99), 0, 2, draw.randbytes(50), (stripe.size, 7), stripe)
    if kind == 1:
        calls = [Call(draw.randbytes(9), 5000, large()) for _ in range(draw.randrange(3))]
        return Entry(draw.randrange(99), draw.randrange(99), calls)
    if kind == 2:
        return Rest(draw.randrange(99), memoryview(draw.randbytes(draw.randrange(2000))))
    return Unable("because of that")


def _words(message: Message) -> bytes:
    return b"".join(piece.tobytes() for piece in pieces(message))


class LinesTest(unittest.TestCase):
    def test_messages_of_all_sizes_over_chunks_of_all_sizes(self) -> None:
        for seed in range(300):
            with self.subTest(seed=seed):
                draw = random.Random(seed)
                pipe: Any = _Pipe()
                writer = Writer(pipe, draw.choice([17, 64, 1000, 100_000]))
                sent = [_random_message(draw) for _ in range(8)]
                begun: list[np.ndarray] = []

                def find_room(
                    _: Snapshot,
                    nbytes: int,
                    begun: list[np.ndarray] = begun,
                    draw: random.Random = draw,
                ) -> Sequence[np.ndarray]:
                    """In two parts."""
                    begun.append(np.empty(nbytes, np.uint8))
                    middle = draw.randrange(nbytes + 1)
                    return [begun[-1][:middle], begun[-1][middle:]]

                reader = Reader(find_room)
                for message in sent:
                    has_next = message is not sent[-1] and draw.random() < 0.5
                    self.assertTrue(writer.send(message, lambda: False, has_next))
                got = [each for chunk in pipe.chunks for each in reader.take(chunk)]
                rooms = iter(begun)
                got = [
                    replace(each, stripe=next(rooms)) if isinstance(each, Snapshot) else each
                    for each in got
                ]
                self.assertEqual([_words(each) for each in got], [_words(each) for each in sent])
                self.assertEqual(len(begun), sum(isinstance(each, Snapshot) for each in sent))

    def test_the_end_of_a_line(self) -> None:
        """As many empty chunks as rounds are waited for; they are no message, and void none."""
        # Also where a message was to follow in the same chunk, and was dropped.
        for has_next in (False, True):
            pipe: Any = _Pipe()
            writer = Writer(pipe, 1000)
            writer.send(Unable("why"), lambda: False, has_next)
            self.assertTrue(writer.end(lambda: False))
            self.assertEqual([chunk[:8].any() for chunk in pipe.chunks], [True, False, False])
            reader = Reader(lambda _, nbytes: [np.empty(nbytes, np.uint8)])
            got = [each for chunk in pipe.chunks for each in reader.take(chunk)]
            self.assertEqual(got, [Unable("why")])

    def test_no_round_stays_open(self) -> None:
        """At a rank that receives, when the line is over."""
        connection: Any = _Connection()
        rounds = Rounds(connection, "line", 0, [0, 1], 64, is_root=False)
        self.assertEqual(connection.open, [1, 1])
        for length in (5, 7, 0, 0):
            connection.length = length
            self.assertFalse(rounds.is_over)
            self.assertIsNotNone(rounds.receive(0.0))
        self.assertEqual(connection.open, [0, 0])
        self.assertTrue(rounds.is_over)
        self.assertIsNone(rounds.receive(0.0))
        asked = Rounds(connection, "ask", 0, [0, 1], 8, False, lanes=1, is_line=False)
        self.assertIsNotNone(asked.receive(0.0))
        self.assertTrue(asked.is_over)

    def test_a_message_that_is_dropped_in_its_middle(self) -> None:
        for count in range(6):
            self._drop_after(count)

    def _drop_after(self, count: int) -> None:
        pipe: Any = _Pipe()
        writer = Writer(pipe, 64)
        data: np.ndarray = np.ones(1000, np.uint8)
        dropped = Snapshot(5, 0, 1, b"", (1000,), data)
        self.assertFalse(writer.send(dropped, lambda: len(pipe.chunks) == count))
        writer.send(Unable("why"), lambda: False)
        reader = Reader(lambda _, nbytes: [np.empty(nbytes, np.uint8)])
        got = [each for chunk in pipe.chunks for each in reader.take(chunk)]
        self.assertEqual(got, [Unable("why")])

    def test_a_line_that_ends_in_the_middle_of_a_message(self) -> None:
        """What was begun is void, nothing that waited is sent, and the line is ended."""
        outbox = _Outbox()

        class Pipe(_Pipe):
            def send(self, chunk: np.ndarray, is_over: Callable[[], bool]) -> bool:
                if len(self.chunks) == 2:
                    outbox.drop(is_ended=True)
                return super().send(chunk, is_over)

        pipe: Any = Pipe()
        outbox.add(Snapshot(5, 0, 1, b"", (1000,), np.ones(1000, np.uint8)), 1000)
        outbox.add(Entry(6, 6, []), 0)
        writer = Writer(pipe, 64)
        self.assertTrue(outbox.send_all(writer))
        self.assertTrue(writer.end(lambda: outbox.is_over))
        self.assertEqual([chunk[:8].any() for chunk in pipe.chunks[-3:]], [True, False, False])
        reader = Reader(lambda _, nbytes: [np.empty(nbytes, np.uint8)])
        self.assertEqual([each for chunk in pipe.chunks for each in reader.take(chunk)], [])

    def test_a_joiner_gets_ready_when_steps_are_shorter_than_rounds(self) -> None:
        outbox, step = _Outbox(), 5

        class Pipe(_Pipe):
            def send(self, chunk: np.ndarray, is_over: Callable[[], bool]) -> bool:
                """Meanwhile the survivor makes three steps."""
                nonlocal step
                for _ in range(3):
                    step += 1
                    outbox.add(Entry(step, step, []), 0)
                if len(self.chunks) == 20:
                    outbox.drop(is_over=True)
                return super().send(chunk, is_over)

        pipe: Any = Pipe()
        outbox.add(Snapshot(5, 0, 1, b"", (9,), np.ones(9, np.uint8)), 9)
        self.assertFalse(outbox.send_all(Writer(pipe)))
        taker = Taker([_A])
        taker.on_snapshot(_A, 5, (0, 1), _LAYOUT)
        taker.on_stripe(_A)
        reader = Reader(lambda _, nbytes: [np.empty(nbytes, np.uint8)])
        effects: list[Any] = []
        for chunk in pipe.chunks[1:]:
            for message in reader.take(chunk):
                assert isinstance(message, Entry)
                effects += taker.on_entry(_A, message.step, message.newest)
        self.assertIn(SayReady(), effects)


class StripesTest(unittest.TestCase):
    def test_stripes_make_up_the_whole(self) -> None:
        draw = random.Random(1)
        for _ in range(200):
            sizes = [draw.choice([0, 1, 63, 64, 1000]) for _ in range(draw.randrange(0, 6))]
            whole = [np.frombuffer(draw.randbytes(size), np.uint8) for size in sizes]
            made: list[np.ndarray] = [np.zeros(size, np.uint8) for size in sizes]
            count, position = draw.randrange(1, 5), 0
            for place in range(count):
                begin, end = stripes.stripe_of(sum(sizes), place, count)
                self.assertEqual(begin, position)
                position = end
                stripes.copy_in(made, begin, stripes.copy_out(whole, begin, end))
            self.assertEqual(position, sum(sizes))
            for here, there in zip(made, whole):
                np.testing.assert_array_equal(here, there)


if __name__ == "__main__":
    unittest.main()
