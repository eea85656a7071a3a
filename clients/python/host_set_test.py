# SPDX-License-Identifier: Apache-2.0
"""The states of a launcher's hosts, without a process."""

from __future__ import annotations

import itertools
import random
import unittest
from collections.abc import Sequence
from typing import Any

from talweg._node import hosts_run, too_late
from talweg._node.host_set import (
    Action,
    Begin,
    Bounds,
    Expect,
    FindEntered,
    HostSet,
    HostState,
    JobState,
    Policy,
    Say,
    Start,
    Stop,
)
from talweg._node.listed_hosts import Host


def _hosts(text: str) -> list[Host]:
    """ "a:2 b": b has one slot."""
    parts = [each.partition(":") for each in text.split()]
    return [Host(name, int(slots or 1)) for name, _, slots in parts]


def _starts(actions: Sequence[Action]) -> list[tuple[str, int, int]]:
    return [(each.host, each.node, each.ranks) for each in actions if isinstance(each, Start)]


def _stops(actions: Sequence[Action]) -> list[str]:
    return [each.host for each in actions if isinstance(each, Stop)]


def _expected(actions: Sequence[Action]) -> list[int]:
    return [each.nodes for each in actions if isinstance(each, Expect)]


def _said(actions: Sequence[Action]) -> str:
    return "\n".join(each.text for each in actions if isinstance(each, Say))


class HostSetTest(unittest.TestCase):
    def _running(self, hosts: str, bounds: Bounds | None = None, **policy: object) -> HostSet:
        job = HostSet(bounds or Bounds(), Policy(**policy), 0)  # type: ignore[arg-type]
        for start in _starts(job.on_listed(_hosts(hosts), 0)):
            self.assertIs(job.state, JobState.MEETING)
            job.on_here(start[0], 0)
        self.assertIs(job.state, JobState.RUNNING)
        return job

    def _list(self, job: HostSet, hosts: str, now_s: float) -> list[Action]:
        """The hosts from now on, where all that were there have the state."""
        had = job.hosts(HostState.RUNNING)
        actions = job.on_listed(_hosts(hosts), now_s)
        self.assertFalse(_stops(actions))
        return actions + job.on_state(had, True, now_s)

    def test_it_begins_with_enough(self) -> None:
        job = HostSet(Bounds(first=2, least=1, most=3), Policy(wait_s=100), 10)
        self.assertEqual(job.on_listed(_hosts("a:2"), 10), [])
        self.assertEqual(
            job.waiting(),
            "waiting for hosts: the job needs 2 nodes to begin, and has 1 (a)",
        )
        self.assertEqual(job.next_s(), 110)
        actions = job.on_listed(_hosts("a:2 b"), 20)
        self.assertEqual(_starts(actions), [("a", 0, 2), ("b", 1, 1)])
        self.assertEqual((job.waiting(), job.next_s()), ("", 80))
        self.assertEqual(job.on_here("b", 30), [])
        self.assertEqual(job.on_here("a", 40), [Begin("a", 2), Begin("b", 2)])
        self.assertEqual((job.state, job.next_s()), (JobState.RUNNING, None))
        job.on_listed(_hosts("a:2 b c"), 50)  # It comes to a running job.
        self.assertEqual(job.on_here("c", 60), [Begin("c", 2, is_later=True)])

    def test_it_begins_without_hosts_that_are_not_reached(self) -> None:
        job = HostSet(Bounds(), Policy(meet_s=30), 0)
        job.on_listed(_hosts("a b"), 0)
        job.on_here("b", 10)
        self.assertEqual(job.on_time(29), [])
        actions = job.on_time(30)
        self.assertEqual(actions[0], Begin("b", 1))
        self.assertIn("host a has not been reached within 30 s: the job begins", _said(actions))
        # However many there are by then, all say the same.
        self.assertEqual(job.on_here("a", 31), [Begin("a", 1, is_later=True)])

    def test_a_host_fails_before_the_others_are_reached(self) -> None:
        job = HostSet(Bounds(first=3, least=2), Policy(), 0)
        job.on_listed(_hosts("a b c"), 0)
        job.on_here("a", 1)
        job.on_here("b", 2)
        actions = job.on_ended("c", 1, "ssh to it failed", 3)
        self.assertEqual(actions[1:], [Begin("a", 2), Begin("b", 2)])
        job = HostSet(Bounds(first=2, least=2), Policy(), 0)
        job.on_listed(_hosts("a b"), 0)
        job.on_here("a", 1)
        actions = job.on_ended("b", 1, "ssh to it failed", 2)
        self.assertIn("needs 2 nodes to go on, and has 1 (a); b has failed", _said(actions))
        self.assertIn(Begin("a", 1), actions)

    def test_a_host_is_lost_before_it_has_joined(self) -> None:
        """The others wait for it no longer, unless they have begun."""
        for loss in ("ends", "unlisted"):
            job = self._running("a b c")
            if loss == "ends":
                actions = job.on_ended("b", 1, "killed", 1)
            else:
                job.on_listed(_hosts("a c"), 1)
                actions = job.on_state([], False, 1)
                self.assertEqual(_stops(actions), ["b"])
                # As long as it is there it could begin alone.
                self.assertEqual(_expected(actions), [])
                actions = job.on_ended("b", 143, "it was ended", 1)
            self.assertEqual([each for each in actions if isinstance(each, Expect)], [Expect(2)])
            self.assertEqual(_expected(job.on_ended("c", 1, "killed", 2)), [1])
            # One that comes instead begins as the others have.
            self.assertEqual(_starts(job.on_listed(_hosts("a d"), 3)), [("d", 3, 1)])
            self.assertEqual(job.on_here("d", 4), [Begin("d", 3, is_later=True)])
            self.assertEqual(_expected(job.on_ended("d", 1, "killed", 5)), [])
            job = self._running("a b c")
            job.on_begun()
            self.assertEqual(_expected(job.on_ended("b", 1, "killed", 1)), [])

    def test_a_host_is_lost_that_was_not_reached(self) -> None:
        job = HostSet(Bounds(), Policy(meet_s=30), 0)
        job.on_listed(_hosts("a b"), 0)
        job.on_here("b", 10)
        job.on_time(30)
        self.assertEqual(_expected(job.on_ended("a", 255, "ssh to it failed", 31)), [])

    def test_no_host_is_reached(self) -> None:
        job = HostSet(Bounds(), Policy(meet_s=30), 0)
        job.on_listed(_hosts("a b"), 0)
        self.assertEqual(_stops(job.on_time(30)), ["a", "b"])
        self.assertEqual((job.status, job.report), (1, "no host has been reached within 30 s"))

    def test_it_does_not_begin(self) -> None:
        job = HostSet(Bounds(first=2), Policy(wait_s=100), 10)
        job.on_listed(_hosts("a"), 10)
        self.assertEqual(job.on_time(109), [])
        self.assertEqual(_starts(job.on_time(110)), [])
        self.assertEqual((job.state, job.status), (JobState.OVER, 1))
        self.assertIn("needs 2 nodes to begin, and has 1 (a): not w", job.report)

    def test_hosts_come_and_go_within_bounds(self) -> None:
        job = self._running("a", Bounds(most=2))
        self.assertEqual(_starts(job.on_listed(_hosts("a b c"), 1)), [("b", 1, 1)])
        self.assertIs(job.state_of("c"), HostState.LISTED)
        actions = self._list(job, "b c", 2)
        self.assertEqual((_stops(actions), _starts(actions)), (["a"], [("c", 2, 1)]))
        self.assertEqual(_starts(job.on_listed(_hosts("a b c"), 3)), [])
        job.on_ended("a", 143, "it was ended", 4)
        self.assertIs(job.state_of("a"), HostState.LISTED)
        self.assertEqual(job.on_listed(_hosts("b c"), 5), [])
        self.assertIsNone(job.state_of("a"))

    def test_a_number_is_not_given_twice(self) -> None:
        job = self._running("a b")
        self._list(job, "a", 1)
        job.on_ended("b", 143, "it was ended", 2)
        self.assertEqual(_starts(job.on_listed(_hosts("a b"), 3)), [("b", 2, 1)])

    def test_a_host_is_back_on_the_list_before_it_has_ended(self) -> None:
        job = self._running("a b")
        self._list(job, "a", 1)
        self.assertEqual(_starts(job.on_listed(_hosts("a b"), 2)), [])
        self.assertEqual(_starts(job.on_ended("b", 143, "it was ended", 3)), [("b", 2, 1)])

    def test_ranks_are_counted_where_slots_differ(self) -> None:
        job = HostSet(Bounds(first=3, least=2, most=5, in_ranks=True), Policy(), 0)
        self.assertEqual(job.on_listed(_hosts("a:2"), 0), [])
        starts = _starts(job.on_listed(_hosts("a:2 b:4 c:4"), 1))
        self.assertEqual(starts, [("a", 0, 2), ("b", 1, 3)])
        for host in ("a", "b"):
            job.on_here(host, 1)
        self._list(job, "a:2", 2)
        self.assertIs(job.state, JobState.RUNNING)
        said = _said(job.on_listed(_hosts("a:6"), 3))
        self.assertIn("host a is listed with 6 slots now: it goes on with 2 ranks", said)

    def test_too_few_for_a_while(self) -> None:
        job = self._running("a b", Bounds(first=2, least=2), wait_s=30)
        said = _said(job.on_ended("b", 1, "exit status 1", 10))
        self.assertIn("host b (node 1) is lost: exit status 1; it is not used again before", said)
        self.assertIn("needs 2 nodes to go on, and has 1 (a); b has failed, for", said)
        self.assertEqual((job.state, job.next_s()), (JobState.SHORT, 40))
        actions = job.on_listed(_hosts("a b c"), 39)
        self.assertEqual(_starts(actions), [("c", 2, 1)])
        self.assertIn("the job has 2 nodes and goes on", _said(actions))
        self.assertIs(job.state, JobState.RUNNING)

    def test_too_few_for_too_long(self) -> None:
        job = self._running("a b", Bounds(first=2, least=2), wait_s=30)
        self._list(job, "a", 10)
        job.on_ended("b", 143, "it was ended", 11)
        self.assertEqual(job.on_time(39), [])
        self.assertEqual(_stops(job.on_time(40)), ["a"])
        self.assertIs(job.state, JobState.ENDING)
        self.assertIn("needs 2 nodes to go on, and has 1 (a): not wi", job.report)
        job.on_ended("a", 143, "it was ended", 41)
        self.assertEqual((job.state, job.status), (JobState.OVER, 1))

    def test_a_host_that_fails_is_barred(self) -> None:
        job = self._running("a b")
        job.on_ended("b", 1, "exit status 1", 1)
        self.assertEqual(_starts(job.on_listed(_hosts("a b"), 2)), [])
        self.assertIs(job.state_of("b"), HostState.BARRED)
        job.on_listed(_hosts("a"), 3)
        self.assertEqual(_starts(job.on_listed(_hosts("a b"), 4)), [("b", 2, 1)])

    def test_a_host_that_fails_cools_down(self) -> None:
        job = self._running("a b", cooldown_s=(10, 25))
        now = 0.0
        for pause in (10, 20, 25, 25):
            said = _said(job.on_ended("b", 1, "exit status 1", now))
            self.assertIn(f"used again after {pause} s", said)
            self.assertEqual(job.next_s(), now + pause)
            now += pause
            self.assertEqual(_starts(job.on_time(now - 1)), [])
            self.assertEqual([each[0] for each in _starts(job.on_time(now))], ["b"])

    def test_nobody_is_left(self) -> None:
        job = self._running("a b")
        job.on_ended("a", 1, "exit status 1", 1)
        job.on_ended("b", 7, "exit status 7", 2)
        self.assertEqual((job.state, job.status), (JobState.OVER, 7))
        self.assertEqual(job.report, "host b (node 1): exit status 7; no node is left")

    def test_the_list_is_empty(self) -> None:
        """Whoever has taken all hosts away has most likely not meant it."""
        job = self._running("a")
        said = "the list names no host: the hosts stay what they were"
        self.assertEqual(job.on_listed([], 1), [Say(said)])
        self.assertEqual(job.on_listed(_hosts("b:0"), 2), [])
        self.assertEqual(job.on_listed(_hosts("a"), 3), [])
        self.assertEqual(job.on_listed([], 4), [Say(said)])
        self.assertIs(job.state, JobState.RUNNING)

    def test_others_take_over_from_all_hosts_at_once(self) -> None:
        job = self._running("a", Bounds(most=1), wait_s=30)
        self.assertFalse(job.asks_for_state)
        actions = job.on_listed(_hosts("b"), 1)
        self.assertEqual((_stops(actions), _starts(actions)), ([], [("b", 1, 1)]))
        self.assertTrue(job.asks_for_state)
        self.assertEqual(job.waiting(), "")
        self.assertEqual(job.on_state([], False, 2), [])  # It would begin alone.
        self.assertEqual(job.on_state(["a"], True, 3), [])
        text = "host a is not listed any more, and goes when a listed host has its state"
        self.assertEqual((job.waiting(), job.next_s()), (text, 32))
        self.assertEqual(_stops(job.on_state(["a", "b"], True, 4)), ["a"])
        self.assertFalse(job.asks_for_state)
        self.assertEqual((job.waiting(), job.next_s()), ("", None))
        job.on_ended("a", 143, "it was ended", 5)
        self.assertIs(job.state, JobState.RUNNING)

    def test_nobody_takes_over(self) -> None:
        job = self._running("a", wait_s=30)
        job.on_listed(_hosts("b"), 1)
        job.on_state(["a"], True, 2)
        job.on_ended("b", 255, "ssh to it failed", 3)
        self.assertEqual(job.on_time(31), [])
        self.assertEqual(_stops(job.on_time(32)), ["a"])
        self.assertIn("a listed host has its state: none has got it within 30 s", job.report)
        job.on_ended("a", 143, "it was ended", 33)
        self.assertEqual((job.state, job.status), (JobState.OVER, 1))

    def test_hosts_that_have_no_state_yet_go_at_once(self) -> None:
        job = self._running("a")
        job.on_listed(_hosts("a b c"), 1)
        job.on_listed(_hosts("c"), 2)
        self.assertEqual(_stops(job.on_state(["a"], True, 2)), ["b"])
        self.assertEqual(_stops(job.on_state(["a", "c"], True, 3)), ["a"])

    def test_a_host_that_is_to_go_is_listed_again(self) -> None:
        job = self._running("a")
        job.on_listed(_hosts("b"), 1)
        job.on_state(["a"], True, 1)
        self.assertEqual(job.on_listed(_hosts("a b"), 2), [])
        self.assertEqual((job.asks_for_state, job.next_s()), (False, None))
        self.assertEqual(job.on_state(["a", "b"], True, 3), [])
        job = self._running("a", Bounds(most=1))
        job.on_listed(_hosts("b"), 1)
        job.on_listed(_hosts("a b"), 2)  # There is no room for both.
        self.assertEqual(_stops(job.on_state(["a", "b"], True, 3)), ["a"])
        self.assertEqual(job.on_ended("a", 143, "it was ended", 4), [])
        self.assertIs(job.state_of("a"), HostState.LISTED)

    def test_other_hosts_are_listed_before_the_first_are_reached(self) -> None:
        job = HostSet(Bounds(), Policy(), 0)
        job.on_listed(_hosts("a"), 0)
        actions = job.on_listed(_hosts("b"), 1)
        self.assertEqual((_stops(actions), _starts(actions)), (["a"], [("b", 1, 1)]))
        self.assertEqual(job.on_here("b", 2), [Begin("b", 1)])

    def test_it_ends_well(self) -> None:
        job = self._running("a b c")
        self.assertEqual(job.on_ended("b", 0, "", 1), [FindEntered(1)])
        self.assertEqual(_stops(job.on_outside(["c"], 1)), ["c"])
        self.assertEqual(job.on_listed(_hosts("a b d"), 2), [])
        job.on_ended("c", 143, "it was ended", 3)
        self.assertEqual(job.on_ended("a", 0, "", 4), [])
        self.assertEqual((job.state, job.status, job.report), (JobState.OVER, 0, ""))

    def test_ranks_end_well_before_others_have_entered(self) -> None:
        """Ranks that never enter the job end as soon as they have begun."""
        job = self._running("a b")
        job.on_listed(_hosts("a b c"), 1)
        self.assertEqual(job.on_ended("b", 0, "", 1), [FindEntered(1)])
        self.assertEqual(_stops(job.on_outside(["a", "c"], 1, has_begun=False)), ["c"])
        job.on_ended("c", 143, "it was ended", 2)
        self.assertEqual(job.on_ended("a", 0, "", 3), [])
        self.assertEqual((job.state, job.status, job.report), (JobState.OVER, 0, ""))

    def test_the_job_of_a_node(self) -> None:
        def job(epoch: int, *nodes: int) -> dict[str, Any]:
            members = [
                {
                    "member": {"id": {"node_rank": node}},
                    "state": "MEMBER_STATE_LEFT",
                    "state_text": "",
                    "epoch_held": "0",
                }
                for node in nodes
            ]
            return {"summary": {"epoch": f"{epoch}"}, "members": members}

        jobs = [job(0, 1), job(3, 0, 2)]
        self.assertEqual(hosts_run._job_of(jobs, 1), ({1}, False))
        self.assertEqual(hosts_run._job_of(jobs, 2), ({0, 2}, True))
        self.assertEqual(hosts_run._job_of(jobs, 4), (set(), False))

    def test_a_host_comes_too_late(self) -> None:
        """It has been heard of before those that have ended well."""
        job = self._running("a")
        job.on_listed(_hosts("a b c"), 1)
        self.assertTrue(job.may_be_late("b"))
        actions = job.on_too_late("b", ["c"], 2)
        self.assertIn("host b (node 1) comes too late: the job has finished", _said(actions))
        self.assertEqual(_stops(actions), ["c"])
        self.assertFalse(job.may_be_late("c"))
        self.assertEqual(job.on_listed(_hosts("a b d"), 3), [])
        job.on_ended("c", 143, "it was ended", 4)
        self.assertIs(job.state, JobState.FINISHING)
        job.on_ended("a", 0, "", 5)
        self.assertEqual((job.state, job.status, job.report), (JobState.OVER, 0, ""))

    def test_who_has_entered_a_job(self) -> None:
        """A member that is lost has not come too late, although the scheduler forgets its view."""
        told = (
            ("JOINED", "", 3),
            ("LOST", "agent of node 1 was stopped: rank 1 was lost", 0),
            ("LEFT", "agent of node 2 has left: all ranks are done", 0),
            ("LEFT", f"the job has finished before it {too_late.WORDS} it", 0),
            ("PENDING", "", 0),
        )
        members = [
            {
                "member": {"id": {"node_rank": node}},
                "state": f"MEMBER_STATE_{state}",
                "state_text": text,
                "epoch_held": f"{epoch}",
            }
            for node, (state, text, epoch) in enumerate(told)
        ]
        self.assertEqual(hosts_run._entered_of(members), {0, 1, 2})

    def test_the_last_to_end_comes_too_late(self) -> None:
        job = self._running("a")
        job.on_listed(_hosts("a b"), 1)
        job.on_ended("a", 0, "", 2)
        job.on_too_late("b", [], 3)
        self.assertEqual((job.state, job.status, job.report), (JobState.OVER, 0, ""))

    def test_all_fail_when_the_job_has_finished(self) -> None:
        job = self._running("a")
        job.on_listed(_hosts("a b"), 1)
        job.on_too_late("b", [], 2)
        job.on_ended("a", 3, "exit status 3", 3)
        self.assertEqual((job.state, job.status), (JobState.OVER, 3))
        self.assertEqual(job.report, "host a (node 0): exit status 3")

    def test_it_ends_well_without_some(self) -> None:
        job = self._running("a b c")
        job.on_ended("a", 5, "exit status 5", 1)
        job.on_ended("b", 0, "", 2)
        job.on_ended("c", 6, "exit status 6", 3)
        self.assertEqual((job.state, job.status), (JobState.OVER, 0))
        self.assertIn("well without host a (node 0): exit status 5; host c (node 2)", job.report)

    def test_too_many_changes(self) -> None:
        job = self._running("a", changes_max=2)
        self._list(job, "a b", 1)
        job.on_listed(_hosts("a c"), 2)
        job.on_state(["a", "b"], True, 2)
        self.assertIs(job.state, JobState.RUNNING)
        job.on_listed(_hosts("a c"), 3)
        job.on_ended("b", 143, "it was ended", 4)
        self.assertIs(job.state, JobState.RUNNING)
        self.assertEqual(_stops(job.on_listed(_hosts("a"), 5)), ["a", "c"])
        self.assertEqual(job.report, "hosts have come or gone 3 times, and the limit is 2")

    def test_it_is_interrupted(self) -> None:
        job = HostSet(Bounds(), Policy(), 0)
        job.end(130, "")
        self.assertEqual((job.state, job.status), (JobState.OVER, 130))
        job = self._running("a b")
        self.assertEqual(_stops(job.end(130, "by signal 2")), ["a", "b"])
        self.assertEqual(job.end(1, "later"), [])
        for host in ("a", "b"):
            job.on_ended(host, 143, "it was ended", 1)
        self.assertEqual((job.state, job.report), (JobState.OVER, "by signal 2"))

    def test_whatever_happens(self) -> None:
        """Random lives: what holds in every state, and every life ends."""
        reached = set()
        for seed in range(400):
            reached |= self._live(random.Random(seed))
        self.assertEqual(reached, {*JobState, *HostState})

    def _live(self, chance: random.Random) -> set[object]:
        least = chance.randint(1, 3)
        bounds = Bounds(
            first=chance.randint(least, 3),
            least=least,
            most=chance.choice([0, 3, 4]),
            in_ranks=chance.random() < 0.5,
        )
        cooldown = chance.choice([None, (5.0, 20.0)])
        job = HostSet(bounds, Policy(50, cooldown, chance.choice([None, 5])), 0)
        running: dict[str, int] = {}
        leaving: set[str] = set()
        nodes: set[int] = set()
        here: set[str] = set()  # Those that were reached,
        begun: set[str] = set()  # and have been told to begin,
        told: set[int] = set()  # with so many.
        reached: set[object] = set()
        for now in itertools.count():
            self.assertLess(now, 5000)
            dice = chance.random()
            ended = ""
            if now > 300:
                actions = job.end(1, "enough")
                if not actions and (running or leaving):
                    ended = chance.choice([*running, *leaving])
                    actions = job.on_ended(ended, 143, "it was ended", now)
            elif dice < 0.2:
                names = [each for each in "abcd" if chance.random() < 0.7]
                actions = job.on_listed([Host(e, chance.randint(0, 3)) for e in names], now)
            elif dice < 0.4 and (running or leaving):
                ended = chance.choice([*running, *leaving])
                # What has not begun does not end well.
                status = chance.choice([1] if job.state is JobState.MEETING else [0, 0, 1, 2, 3])
                if status == 3 and job.may_be_late(ended):
                    actions = job.on_too_late(ended, [*running][:1], now)
                else:
                    actions = job.on_ended(ended, status, "it has failed", now)
            elif dice < 0.7 and running:
                reached_host = chance.choice([*running])
                here.add(reached_host)
                actions = job.on_here(reached_host, now)
            elif dice < 0.75:
                actions = job.on_outside(chance.sample("abcd", 2), now, dice < 0.72)
            elif dice < 0.85 and job.asks_for_state:
                with_state = [each for each in begun & {*running} if chance.random() < 0.7]
                actions = job.on_state(with_state, bool(with_state), now)
                if _stops(actions) and job.state in (JobState.RUNNING, JobState.SHORT):
                    self.assertTrue({*running} - {*_stops(actions)})
            else:
                actions = job.on_time(now)
            running.pop(ended, None)
            leaving.discard(ended)
            begin = [each.nodes for each in actions if isinstance(each, Begin)]
            if begin and not told:
                self.assertEqual(begin[0], len(begin))
            for each in actions:
                if isinstance(each, Start):
                    self.assertNotIn(each.host, {*running, *leaving})
                    self.assertNotIn(each.node, nodes)
                    self.assertGreater(each.ranks, 0)
                    running[each.host] = each.ranks
                    here.discard(each.host)
                    begun.discard(each.host)
                    nodes.add(each.node)
                elif isinstance(each, Begin):
                    self.assertIn(each.host, here & {*running})
                    self.assertNotIn(each.host, begun)
                    begun.add(each.host)
                    told.add(each.nodes)
                elif isinstance(each, Stop):
                    del running[each.host]
                    leaving.add(each.host)
            self.assertLessEqual(len(told), 1)
            count = sum(running.values()) if bounds.in_ranks else len(running)
            if bounds.most and job.state is not JobState.FINISHING and not job.asks_for_state:
                self.assertLessEqual(count, bounds.most)
            self.assertEqual({*job.hosts(HostState.RUNNING)}, {*running})
            self.assertEqual({*job.hosts(HostState.LEAVING)}, leaving)
            if job.state is JobState.GATHERING:
                self.assertFalse(running)
            if job.state is JobState.MEETING:
                self.assertFalse(begun & {*running})
            elif running:
                self.assertEqual(here & {*running}, begun & {*running})
            if job.state is JobState.RUNNING:
                self.assertGreaterEqual(count, bounds.least)
            if job.state is JobState.SHORT:
                self.assertTrue(0 < count < bounds.least and job.waiting())
            if job.state in (JobState.ENDING, JobState.OVER):
                self.assertFalse(running)
            reached |= {job.state, *(job.state_of(each) for each in "abcd")} - {None}
            if job.state is JobState.OVER:
                self.assertFalse(leaving)
                return reached
        raise AssertionError


if __name__ == "__main__":
    unittest.main()
