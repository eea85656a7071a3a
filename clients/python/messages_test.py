# SPDX-License-Identifier: Apache-2.0
"""Sends and receives between ranks that are threads, in many orders of everything that they do."""

from __future__ import annotations

import contextlib
import os
import random
import unittest
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from unittest import mock

import torch
from model_rounds import Rounds
from talweg._collectives import callers, channels, collectives, kinds
from talweg._collectives.call_channel import CallChannel, channel_named
from talweg._collectives.process_sets import Group
from talweg.errors import Aborted, InvalidArgument, JobFailed, Mismatch, Timeout
from talweg.torch import _messages, _point_to_point, _work
from talweg.torch._kept import KeptWorks
from talweg.torch._messages import Message, Receive
from talweg.torch._point_to_point import PointToPoint
from turns import Turns

# More are tried with TALWEG_SEEDS, from TALWEG_FIRST_SEED on.
_SEEDS = int(os.environ.get("TALWEG_SEEDS", "25"))
_FIRST_SEED = int(os.environ.get("TALWEG_FIRST_SEED", "0"))
# In the control round; in one more round; in several (_ROUND_BYTES).
_LENGTHS = (0, 1, 500, 1025, 3000)
_ROUND_BYTES = 8192
_LIMIT_S = 20.0


class _Calls:
    """As GroupCalls."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.kept = KeptWorks()
        self.ranks: Sequence[int] = ()
        self.whereabouts = mock.Mock(**{"of.return_value": {}})
        self._channels: list[CallChannel] = []
        self._aborted: Aborted | None = None

    def channel_of(self, name: str, group: Group) -> CallChannel:
        channel = channel_named(self.client, f"messages{name}", group, "messages")
        self._channels.append(channel)
        if self._aborted is not None:
            channel.abort(self._aborted)
        return channel

    def begin(self, operation: str) -> None:
        pass

    def text_of(self, operation: str, tensors: Sequence[torch.Tensor]) -> str:
        return f"rank {self.client.rank}: {operation}"

    def abort(self) -> None:
        self._aborted = Aborted("the group is aborted")
        for channel in self._channels:
            channel.abort(self._aborted)


@dataclass
class _Plan:
    """What one rank does, with each other rank."""

    sends: list[tuple[int, int, torch.Tensor]] = field(default_factory=list)  # To, tag, data.
    receives: list[tuple[int | None, int, torch.Tensor]] = field(default_factory=list)


class _World:
    """Ranks, each with one thread that sends, and one that receives."""

    def __init__(self, turns: Turns, seed: int, size: int) -> None:
        self.turns = turns
        self.random = random.Random(f"plans of {seed}")
        self.rounds = Rounds(self.turns, size, on_one_node=seed % 2 == 0)
        self.size = size
        self.calls: list[Any] = [_Calls(client) for client in self.rounds.clients]
        self.ranks: list[PointToPoint] = [
            PointToPoint(client, range(size), client.rank, calls)
            for client, calls in zip(self.rounds.clients, self.calls)
        ]
        self.plans = [_Plan() for _ in range(size)]
        # What each receive got: the rank, the plan's entry, what it raised.
        self.received: list[tuple[int, int | None, int, Receive, BaseException | None]] = []
        self.sent: list[tuple[int, int, BaseException | None]] = []

    # ----- Plans -----

    def message(self, sender: int, receiver: int, tag: int, number: int) -> torch.Tensor:
        length = random.Random(f"{sender} {receiver} {tag} {number}").choice(_LENGTHS)
        return torch.arange(length, dtype=torch.float32) + (1000 * sender + 10 * number)

    def plan_pairs(self) -> None:
        """Receives from ranks that they name."""
        for sender in range(self.size):
            for receiver in range(self.size):
                if sender == receiver:
                    continue
                tags = [self.random.randrange(3) for _ in range(self.random.randrange(7))]
                for number, tag in enumerate(tags):
                    data = self.message(sender, receiver, tag, number)
                    self.plans[sender].sends.append((receiver, tag, data))
                order = list(tags)
                self.random.shuffle(order)
                numbers = {tag: [n for n, each in enumerate(tags) if each == tag] for tag in order}
                for tag in order:
                    wanted = self.message(sender, receiver, tag, numbers[tag].pop(0))
                    self.plans[receiver].receives.append((sender, tag, wanted))
        for plan in self.plans:
            self._mix(plan)

    def plan_any(self) -> None:
        """Receives from any rank at rank 0, beside those that name rank 1."""
        receives: list[tuple[int | None, int, torch.Tensor]] = []
        rest: list[tuple[int | None, int, torch.Tensor]] = []
        for tag in range(3):
            named, mixed, more = (self.random.randrange(4) for _ in range(3))
            # Those from any may take all that rank 1 sends beside what is received from it.
            counts = [0, named + mixed, *[more] * (self.size - 2)]
            length = self.random.choice(_LENGTHS[1:])
            output = torch.zeros(length)
            receives += [(1, tag, output)] * named + [(None, tag, output)] * mixed
            rest += [(None, tag, output)] * (sum(counts) - named - mixed)
            for sender, count in enumerate(counts):
                for number in range(count):
                    data = torch.arange(length, dtype=torch.float32) + (100 * sender + number)
                    self.plans[sender].sends.append((0, tag, data))
        self.random.shuffle(receives)
        self.plans[0].receives += receives + rest

    def plan_lengths_that_differ(self) -> None:
        """Some receives of those that plan_pairs() has are for longer or shorter messages."""
        self.plan_pairs()
        for plan in self.plans:
            for at, (source, tag, _) in enumerate(plan.receives):
                if self.random.random() < 0.3:
                    plan.receives[at] = source, tag, torch.zeros(self.random.choice((2, 2000)))

    def _mix(self, plan: _Plan) -> None:
        """Keeps what is from, or to, one rank in its order."""
        ways: list[list[Any]] = [plan.sends, plan.receives]
        for way in ways:
            peers = [entry[0] for entry in way]
            by_peer = {peer: [each for each in way if each[0] == peer] for peer in peers}
            self.random.shuffle(peers)
            way[:] = [by_peer[peer].pop(0) for peer in peers]

    # ----- Threads -----

    def _wait(self, work: Message) -> BaseException | None:
        way = self.turns.random.randrange(4)
        try:
            if way == 0:
                while not work.is_completed():
                    self.turns.wait(lambda: False, 0.5)
            elif way == 1:
                with contextlib.suppress(Timeout):
                    work.wait(timedelta(seconds=0.01))
            elif way == 2:
                work.get_future()
            work.wait(timedelta(seconds=_LIMIT_S))
        except (Mismatch, JobFailed, Aborted) as failure:
            return failure
        return None

    def _send(self, rank: int) -> None:
        works = []
        for target, tag, data in self.plans[rank].sends:
            works.append((target, self.ranks[rank].send(data, target, tag, _LIMIT_S)))
            if self.turns.random.random() < 0.2:
                works[-1][1].is_completed()
        self.turns.random.shuffle(works)
        self.sent += [(rank, target, self._wait(work)) for target, work in works]

    def _receive(self, rank: int) -> None:
        works: list[tuple[int | None, int, Receive]] = []
        for source, tag, wanted in self.plans[rank].receives:
            tensor = torch.full_like(wanted, -1.0)
            if source is None:
                work = self.ranks[rank].receive_from_any(tensor, tag, _LIMIT_S)
            else:
                work = self.ranks[rank].receive(tensor, source, tag, _LIMIT_S)
            works.append((source, tag, work))
        order = list(works)
        self.turns.random.shuffle(order)
        failures = {id(work): self._wait(work) for _, _, work in order}
        self.received += [(rank, *each, failures[id(each[2])]) for each in works]

    def run(self, *others: Callable[[], None]) -> None:
        for rank in range(self.size):
            self.turns.start(f"rank {rank} sends", partial(self._send, rank))
            self.turns.start(f"rank {rank} receives", partial(self._receive, rank))
        for other in others:
            self.turns.start("another", other)
        self.turns.run()

    def leave(self, rank: int) -> None:
        """In the middle."""
        for _ in range(self.random.randrange(300)):
            self.turns.pause()
        self.rounds.leave(rank)

    def control(self, sender: int, receiver: int) -> int:
        """The tensor in which a rank says what it sends to another."""
        channel = self.ranks[sender]._outboxes[receiver]._channel
        return channel.control()

    def stand_still(self) -> None:
        """Until no other thread can do anything more."""
        self.turns.wait(lambda: False, 1.0)

    def abort(self, rank: int) -> None:
        """In the middle; it leaves when all its calls have ended."""
        for _ in range(self.random.randrange(300)):
            self.turns.pause()
        self.calls[rank].abort()
        plan = self.plans[rank]
        self.turns.wait(
            lambda: (
                [
                    sum(each[0] == rank for each in self.sent),
                    sum(each[0] == rank for each in self.received),
                ]
                == [len(plan.sends), len(plan.receives)]
            )
        )
        self.rounds.leave(rank)


class MessagesTest(unittest.TestCase):
    def _try(self, size: int, run: Callable[[_World], None]) -> None:
        """In many orders."""
        modules = callers, channels, collectives, _messages, _work, _point_to_point
        for seed in range(_FIRST_SEED, _FIRST_SEED + _SEEDS):
            turns = Turns(seed)
            small = mock.patch.multiple(
                kinds, _TENSOR_BYTES_MAX=_ROUND_BYTES, _COPIED_BYTES_MAX=_ROUND_BYTES
            )
            with self.subTest(seed=seed), small, turns.patched(*modules):
                run(_World(turns, seed, size))

    def _require_all(self, world: _World) -> None:
        """Each receive has got what its plan says."""
        plans = {rank: iter(plan.receives) for rank, plan in enumerate(world.plans)}
        for rank, source, tag, work, failure in world.received:
            _, _, wanted = next(plans[rank])
            self.assertIsNone(failure)
            self.assertTrue(torch.equal(work.result()[0], wanted), (rank, source, tag))
            self.assertEqual(work.source_rank(), source)
        self.assertEqual([failure for _, _, failure in world.sent if failure], [])

    def _require_each_or_failure(self, world: _World, *those: int) -> None:
        """All calls have ended: with what belongs to them, or failed together with those ranks."""
        plans = {rank: iter(plan.receives) for rank, plan in enumerate(world.plans)}
        for rank, source, tag, work, failure in world.received:
            _, _, wanted = next(plans[rank])
            if failure is None:
                self.assertTrue(torch.equal(work.result()[0], wanted), (rank, source, tag))
            else:
                self.assertTrue({rank, source} & set(those), (rank, source, tag, failure))
        for rank, target, failure in world.sent:
            if failure is not None:
                self.assertTrue({rank, target} & set(those), (rank, target, failure))

    def _run_any(self, world: _World) -> None:
        world.plan_any()
        world.run()
        got: dict[int, list[tuple[int, int]]] = {}
        for _, source, tag, work, failure in world.received:
            self.assertIsNone(failure)
            data = work.result()[0]
            sender, number = divmod(int(data[0]), 100)
            self.assertTrue(torch.equal(data, data[0] + torch.arange(data.numel())))
            self.assertEqual(work.source_rank(), sender)
            self.assertIn(source, (None, sender))
            got.setdefault(tag, []).append((sender, number))
        for tag, messages in got.items():
            sent = {
                divmod(int(data[0]), 100)
                for plan in world.plans
                for _, each, data in plan.sends
                if each == tag
            }
            self.assertEqual(set(messages), sent)
            self.assertEqual(len(messages), len(sent))
            for sender in range(world.size):
                numbers = [number for each, number in messages if each == sender]
                self.assertEqual(numbers, sorted(numbers), (tag, messages))

    def test_receives_from_any(self) -> None:
        self._try(2, self._run_any)
        self._try(3, self._run_any)

    def test_lengths_that_differ(self) -> None:
        def run(world: _World) -> None:
            world.plan_lengths_that_differ()
            sent: dict[tuple[int, int, int], list[torch.Tensor]] = {}
            for rank, plan in enumerate(world.plans):
                for target, tag, data in plan.sends:
                    sent.setdefault((rank, target, tag), []).append(data)
            world.run()
            for rank, source, tag, work, failure in world.received:
                assert source is not None
                data, output = sent[source, rank, tag].pop(0), work._outputs[0]
                if data.numel() == output.numel():
                    self.assertIsNone(failure)
                    self.assertTrue(torch.equal(output, data))
                else:
                    self.assertIsInstance(failure, Mismatch)

        self._try(2, run)

    def test_a_rank_leaves(self) -> None:
        def run(world: _World) -> None:
            world.plan_pairs()
            world.run(partial(world.leave, 1))
            self._require_each_or_failure(world, 1)

        self._try(2, run)
        self._try(3, run)

    def test_all_leave_that_may_send(self) -> None:
        def run(world: _World) -> None:
            world.plan_any()
            world.run(*(partial(world.leave, rank) for rank in range(1, world.size)))

        self._try(2, run)
        self._try(3, run)

    def test_receives_from_any_after_all_have_left(self) -> None:
        """Before this rank has heard of it, and after that."""

        def run(world: _World) -> None:
            world.rounds.leave(1)
            world.plans[0].receives += [(None, 0, torch.zeros(3))] * 3
            world.run()
            for *_, failure in world.received:
                self.assertIsInstance(failure, JobFailed)

        self._try(2, run)

    def test_a_receive_from_any_goes_on_beside_one_that_nobody_waits_for(self) -> None:
        """The data of the first one is all that its call waits for."""

        def run(world: _World) -> None:
            limit = timedelta(seconds=_LIMIT_S)
            long, short = torch.ones(1025), torch.ones(3)

            def send() -> None:
                works = [
                    world.ranks[1].send(each, 0, each.numel(), _LIMIT_S) for each in (long, short)
                ]
                for work in works:
                    work.wait(limit)

            def receive() -> None:
                first = world.ranks[0].receive(torch.zeros(1025), 1, 1025, _LIMIT_S)
                job = first.line[0] if first.line else None
                world.turns.wait(
                    lambda: (
                        first.is_over
                        or (job is not None and job.waits_for is not None and not job.pushes_more)
                    )
                )
                second = world.ranks[0].receive_from_any(torch.zeros(3), 3, _LIMIT_S)
                for work, sent in ((second, short), (first, long)):
                    work.wait(limit)
                    assert torch.equal(work.result()[0], sent)

            world.turns.start("rank 1", send)
            world.turns.start("rank 0", receive)
            world.turns.run()

        self._try(2, run)

    def _ask_early(self, world: _World) -> None:
        """Rank 1 sends three long messages, of which rank 0 wants the last one first. It asks for
        the second one as soon as that has come.
        """
        limit = timedelta(seconds=_LIMIT_S)
        messages = [torch.full((1025,), float(tag)) for tag in range(3)]

        def send() -> None:
            works = [
                world.ranks[1].send(each, 0, tag, _LIMIT_S) for tag, each in enumerate(messages)
            ]
            for work in works:
                work.wait(limit)
                with world.ranks[1]._lock:
                    self.assertIsNone(work.line)  # It keeps nothing of what is open.

        def post(tag: int) -> Receive:
            return world.ranks[0].receive(torch.zeros(1025), 1, tag, _LIMIT_S)

        def require(work: Receive, tag: int) -> None:
            work.wait(limit)
            self.assertTrue(torch.equal(work.result()[0], messages[tag]))

        last = post(2)

        def receive() -> None:
            early = world.ranks[0]._mail._inboxes[1].early
            world.turns.wait(lambda: early.first(1) is not None)
            for tag in (1, 0):
                require(post(tag), tag)

        world.turns.start("rank 1", send)
        world.turns.start("rank 0 receives the last one", lambda: require(last, 2))
        world.turns.start("rank 0 receives the others", receive)
        world.turns.run()

    def test_a_message_is_asked_for_before_its_push_has_returned(self) -> None:
        def run(world: _World) -> None:
            connection = world.rounds.clients[1].connection
            push = connection.push_parts

            def push_parts(tensor: int, *rest: Any) -> int:
                round_: int = push(tensor, *rest)
                if (tensor, round_) == (world.control(1, 0), 2):
                    world.stand_still()
                return round_

            with mock.patch.object(connection, "push_parts", push_parts):
                self._ask_early(world)

        self._try(2, run)

    def test_a_message_is_over_before_its_sender_knows_that_it_is_put_off(self) -> None:
        def run(world: _World) -> None:
            connection = world.rounds.clients[1].connection
            wait = connection.wait_parts

            def wait_parts(tensor: int, round_: int, *rest: Any) -> bool:
                is_over: bool = wait(tensor, round_, *rest)
                if is_over and (tensor, round_) == (world.control(1, 0), 2):
                    world.stand_still()
                return is_over

            with mock.patch.object(connection, "wait_parts", wait_parts):
                self._ask_early(world)

        self._try(2, run)

    def test_a_receive_from_any_after_one_that_failed_and_one_that_did_not(self) -> None:
        """The rank that sends is there, and knows nothing of the failure."""

        def run(world: _World) -> None:
            limit = timedelta(seconds=_LIMIT_S)
            refusal = InvalidArgument("there is no memory for another tensor")
            connection = world.rounds.clients[0].connection
            with mock.patch.object(connection, "declare_collective", side_effect=refusal):
                failed = world.ranks[0].receive(torch.zeros(3), 1, 0, _LIMIT_S)
                with self.assertRaises(InvalidArgument):
                    failed.wait(limit)

            def send() -> None:
                for number in range(2):
                    data = torch.full((3,), float(number))
                    world.ranks[1].send(data, 0, 0, _LIMIT_S).wait(limit)

            def receive() -> None:
                first = world.ranks[0].receive(torch.zeros(3), 1, 0, _LIMIT_S)
                first.wait(limit)
                second = world.ranks[0].receive_from_any(torch.zeros(3), 0, _LIMIT_S)
                second.wait(limit)
                for number, work in enumerate((first, second)):
                    self.assertEqual(work.result()[0].tolist(), [number] * 3)

            world.turns.start("rank 1", send)
            world.turns.start("rank 0", receive)
            world.turns.run()

        self._try(2, run)

    def test_an_abort(self) -> None:
        def run(world: _World) -> None:
            world.plan_pairs()
            world.run(partial(world.abort, 0))
            self._require_each_or_failure(world, 0)

        self._try(2, run)
        self._try(3, run)

    def _run_pairs(self, world: _World) -> None:
        world.plan_pairs()
        world.run()
        self._require_all(world)

    def test_messages_come_in_the_order_of_their_tags(self) -> None:
        self._try(2, self._run_pairs)

    def test_three_ranks(self) -> None:
        self._try(3, self._run_pairs)


if __name__ == "__main__":
    unittest.main()
