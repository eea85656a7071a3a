# SPDX-License-Identifier: Apache-2.0
"""Who carries on the calls of a channel, without ranks."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import unittest
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from talweg._client.deadlines import Deadlines
from talweg._collectives.channels import Channel, Job, Steps, Wait
from talweg.errors import Aborted, Mismatch, TalwegError, Timeout


class _Rounds:
    """A connection and its completion threads: rounds are over when the test says so."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.over: dict[int, TalwegError | None] = {}
        self.watched: dict[int, Callable[[], None]] = {}
        self.taken: list[int] = []
        self.can_watch = True
        self.waits_for_calls = True
        self.called: list[threading.Thread] = []

    def end(self, round_: int, failure: TalwegError | None = None) -> None:
        with self.changed:
            self.over[round_] = failure
            self.changed.notify_all()
            call = self.watched.pop(round_, None)
        if call is not None and self.waits_for_calls:
            call()
        elif call is not None:
            self.call(call)

    # ----- As a connection -----

    def wait_parts(
        self, tensor: int, round_: int, out: int, out_bytes: int, end: float | None = None
    ) -> bool:
        with self.changed:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not self.changed.wait_for(lambda: round_ in self.over, left):
                return False
            failure = self.over[round_]
        self.taken.append(round_)
        if failure is not None:
            raise failure
        return True

    # ----- As completion threads -----

    def watch(self, tensor: int, round_: int, call: Callable[[], None]) -> bool:
        if not self.can_watch:
            return False
        self.watched[round_] = call
        return True

    def call(self, call: Callable[[], None]) -> None:
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        self.called.append(thread)

    def join(self) -> None:
        while self.called:
            self.called.pop().join()


class _Data:
    """Data of a call that is on its way from a GPU."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_there = False
        self._failure: TalwegError | None = None

    def come(self) -> None:
        with self._changed:
            self._is_there = True
            self._changed.notify_all()

    def fail(self, failure: TalwegError) -> None:
        self._failure = failure
        self.come()

    def is_ready(self, until: float | None) -> bool:
        with self._changed:
            left = None if until is None else max(0.0, until - time.monotonic())
            is_there = self._changed.wait_for(lambda: self._is_there, left)
        if self._failure is not None:
            raise self._failure
        return is_there


class ChannelsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.rounds = _Rounds()
        deadlines = Deadlines(self.rounds.call)
        self.addCleanup(deadlines.end)
        client: Any = SimpleNamespace(
            connection=self.rounds, completions=self.rounds, deadlines=deadlines
        )
        group: Any = SimpleNamespace(suffix="", listed=())
        self.channel = Channel(client, "test", group)
        self.begun: list[int] = []

    def _job(
        self,
        *calls: tuple[int, ...],
        overlaps: bool = False,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> Job:
        """Each call is its rounds, pushed one after the other; its result is the last.

        `overlaps`: the next call may begin when the last round is pushed.
        """

        def steps(rounds: tuple[int, ...]) -> Steps:
            for round_ in rounds:
                self.begun.append(round_)
                is_last = round_ == rounds[-1]
                yield Wait(0, round_, 0, 0, not is_last, None, overlaps and is_last)
            return rounds[-1]

        return Job(self.channel, [partial(steps, rounds) for rounds in calls], is_ready)

    def test_a_call_of_one_round_needs_no_thread(self) -> None:
        job = self._job((1,))
        self.channel.submit(job)
        self.assertEqual(self.begun, [1])
        self.assertEqual(self.rounds.watched, {})
        self.assertFalse(self.channel.look(job))
        self.rounds.end(1)
        self.assertFalse(job.done)
        self.assertTrue(self.channel.look(job))
        self.assertEqual(job.results, [1])
        self.assertEqual(self.rounds.called, [])

    def test_a_mismatch_that_ends_all_counts_the_calls_that_were_made(self) -> None:
        def differs() -> Steps:
            self.begun.append(1)
            yield Wait(0, 1, 0, 0)
            mismatch = Mismatch("ranks make different numbers of calls in one")
            mismatch.ends_all = True
            raise mismatch

        job = Job(self.channel, [differs, differs, differs])
        self.channel.submit(job)
        self.rounds.end(1)
        self.assertTrue(self.channel.look(job))
        self.assertIsInstance(job.failure, Mismatch)
        self.assertEqual((self.begun, self.channel.calls), ([1], 1))

    def test_an_interrupt_while_a_call_pushes_comes_when_the_call_is_noted(self) -> None:
        def call() -> int:
            signal.raise_signal(signal.SIGINT)  # Ctrl-C.
            return 7

        with self.assertRaises(KeyboardInterrupt):
            self.channel.run_first(call, lambda round_: self._job((round_,)))
        self.assertEqual(self.channel.calls, 1)
        following = self._job((8,))
        self.channel.submit(following)
        self.rounds.end(7)
        self.rounds.end(8)
        self.assertTrue(self.channel.finish(following, time.monotonic() + 30))
        self.assertEqual(self.rounds.taken, [7, 8])

    def test_an_interrupted_step_is_not_cut_off(self) -> None:
        def steps() -> Steps:
            signal.raise_signal(signal.SIGINT)
            yield Wait(0, 1, 0, 0)
            signal.raise_signal(signal.SIGINT)
            yield Wait(0, 2, 0, 0)
            return "both"

        job = Job(self.channel, [steps])
        with self.assertRaises(KeyboardInterrupt):
            self.channel.submit(job)
        self.rounds.over[1] = None
        with self.assertRaises(KeyboardInterrupt):
            self.channel.finish(job)
        self.rounds.end(2)
        self.assertTrue(self.channel.finish(job))
        self.assertEqual((job.results, job.failure), (["both"], None))

    def test_an_interrupt_that_cuts_a_step_off_ends_the_call_with_an_error(self) -> None:
        def steps() -> Steps:
            raise KeyboardInterrupt  # As a push that waits for room does.
            yield

        job = Job(self.channel, [steps])
        with self.assertRaises(KeyboardInterrupt):
            self.channel.submit(job)
        self.assertTrue(self.channel.finish(job))
        self.assertIsInstance(job.failure, Aborted)

    def test_an_interrupt_ends_a_wait_and_the_next_wait_goes_on(self) -> None:
        job = self._job((1,))
        self.channel.submit(job)
        wait_parts = self.rounds.wait_parts

        def interrupted(*arguments: Any) -> bool:
            signal.raise_signal(signal.SIGINT)
            return wait_parts(*arguments)

        with mock.patch.object(self.rounds, "wait_parts", interrupted):
            with self.assertRaises(KeyboardInterrupt):
                self.channel.finish(job)
        self.rounds.end(1)
        self.assertTrue(self.channel.finish(job))

    def _limited(self, limit_s: float) -> Job:
        """Waits for round 1 so long at most, and then for round 2."""

        def steps() -> Steps:
            with contextlib.suppress(Timeout):
                yield Wait(0, 1, 0, 0, until=time.monotonic() + limit_s)
            yield Wait(0, 2, 0, 0, False)

        return Job(self.channel, [steps])

    def test_no_thread_stands_in_a_round_that_has_a_time_limit(self) -> None:
        job = self._limited(20.0)
        self.channel.submit(job)
        self.channel.attend()
        self.assertFalse(job.done)
        self.assertIn(1, self.rounds.watched)
        self.rounds.end(1)
        self.rounds.end(2)
        self.assertTrue(self.channel.look(job))
        self.assertEqual(self.rounds.taken, [1, 2])

    def test_a_round_whose_time_is_over_is_left_by_itself(self) -> None:
        job, done = self._limited(0.01), threading.Event()
        self.rounds.over[2] = None
        self.channel.submit(job)
        self.channel.call_when_done(job, done.set)
        self.assertTrue(done.wait(60.0))
        self.assertEqual(self.rounds.taken, [2])

    def test_a_call_of_several_rounds_goes_on_by_itself(self) -> None:
        job = self._job((1, 2, 3))
        self.channel.submit(job)
        self.assertEqual(list(self.rounds.watched), [1])
        self.rounds.end(1)
        self.assertEqual(self.begun, [1, 2])
        self.rounds.end(2)
        self.assertEqual(self.begun, [1, 2, 3])
        self.assertEqual(self.rounds.watched, {})  # All is pushed.
        self.rounds.end(3)
        self.assertTrue(self.channel.finish(job))
        self.assertEqual(job.results, [3])

    def test_who_waits_soon_carries_its_call_on(self) -> None:
        job = self._job((1, 2))
        self.channel.submit(job, is_async=False)
        self.assertEqual(self.rounds.watched, {})
        self.rounds.end(1)
        self.rounds.end(2)
        self.assertTrue(self.channel.finish(job))
        self.assertEqual(self.rounds.watched, {})

    def test_a_second_call_begins_when_the_first_is_over(self) -> None:
        first, second = self._job((1,)), self._job((2,))
        self.channel.submit(first)
        self.channel.submit(second)
        self.assertEqual((self.begun, list(self.rounds.watched)), ([1], [1]))
        self.rounds.end(1)
        self.assertEqual(self.begun, [1, 2])
        self.assertTrue(first.done)
        self.rounds.end(2)
        self.assertTrue(self.channel.look(second))

    def test_a_second_call_begins_beside_a_first_that_lets_it(self) -> None:
        jobs = [self._job((each, each + 10), overlaps=True) for each in (1, 2, 3)]
        for job in jobs:
            self.channel.submit(job)
        self.assertEqual(self.begun, [1])
        self.rounds.end(1)
        self.assertEqual(self.begun, [1, 11, 2])
        self.rounds.end(2)  # It is not the first call's: nobody looks yet.
        self.assertEqual(self.rounds.taken, [1])
        self.rounds.end(11)
        self.assertEqual(self.begun, [1, 11, 2, 12, 3])
        for round_ in (12, 3, 13):
            self.rounds.end(round_)
        self.assertTrue(self.channel.look(jobs[2]))
        self.assertEqual([job.results for job in jobs], [[11], [12], [13]])
        self.assertEqual(self.rounds.taken, [1, 11, 2, 12, 3, 13])

    def test_a_call_that_comes_later_begins_beside_one_that_is_under_way(self) -> None:
        for is_async in (True, False):
            first, second = self._job((1,), overlaps=True), self._job((2,))
            self.channel.submit(first)
            self.channel.submit(second, is_async)
            self.assertEqual(self.begun, [1, 2])
            self.rounds.end(1)
            self.rounds.end(2)
            self.assertTrue(self.channel.finish(second))
            self.begun.clear()
            self.rounds.over.clear()

    def test_only_the_last_of_a_jobs_calls_lets_another_begin(self) -> None:
        grouped, second = self._job((1,), (2,), overlaps=True), self._job((3,))
        self.channel.submit(grouped)
        self.channel.submit(second)
        self.assertEqual(self.begun, [1])
        self.rounds.end(1)
        self.assertEqual(self.begun, [1, 2, 3])

    def test_a_call_that_would_wait_for_others_begins_alone(self) -> None:
        ready = [False]
        first = self._job((1,), overlaps=True)
        second = self._job((2,), overlaps=True, is_ready=lambda: ready[0])
        third = self._job((3,), is_ready=lambda: ready[0])
        for job in (first, second):
            self.channel.submit(job)
        self.assertEqual(self.begun, [1])
        self.rounds.end(1)
        self.assertEqual(self.begun, [1, 2])
        self.channel.submit(third)
        self.assertEqual(self.begun, [1, 2])
        ready[0] = True
        self.assertFalse(self.channel.look(third))
        self.assertEqual(self.begun, [1, 2, 3])

    def _job_of_data(self, data: _Data, round_: int) -> Job:
        """A call of one round, which is pushed when its data is there."""

        def steps() -> Steps:
            yield Wait(0, 0, 0, 0, is_ready=data.is_ready)
            self.begun.append(round_)
            yield Wait(0, round_, 0, 0, False)
            return round_

        return Job(self.channel, [steps], lambda: data.is_ready(0.0))

    def test_a_call_is_pushed_when_its_data_is_there(self) -> None:
        data = _Data()
        job = self._job_of_data(data, 1)
        self.channel.submit(job, is_async=False)
        self.assertFalse(self.channel.finish(job, time.monotonic() + 0.01))
        self.assertIn("GPU", self.channel.waits_for())
        self.assertEqual(self.begun, [])
        data.come()
        self.rounds.end(1)
        self.assertTrue(self.channel.finish(job))
        self.assertEqual((self.begun, job.results), ([1], [1]))

    def test_a_call_that_nobody_waits_for_is_pushed_all_the_same(self) -> None:
        data, later = _Data(), _Data()
        jobs = [self._job_of_data(data, 1), self._job((2,)), self._job_of_data(later, 3)]
        for job in jobs:
            self.channel.submit(job)
        self.assertEqual(self.begun, [])
        data.come()
        self.rounds.join()
        self.assertEqual(self.begun, [1])
        for round_ in (1, 2):
            self.rounds.end(round_)
        self.assertEqual(self.begun, [1, 2])
        later.come()
        self.rounds.join()
        self.assertEqual(self.begun, [1, 2, 3])
        self.rounds.end(3)
        self.assertTrue(self.channel.look(jobs[2]))

    def test_a_second_call_does_not_begin_early_without_its_data(self) -> None:
        data = _Data()
        first, second = self._job((1,), overlaps=True), self._job_of_data(data, 2)
        self.channel.submit(first)
        self.channel.submit(second, is_async=False)
        self.rounds.end(1)
        self.assertFalse(self.channel.look(second))
        self.assertTrue(first.done)
        data.come()
        self.rounds.end(2)
        self.assertTrue(self.channel.finish(second))

    def test_data_that_never_comes_ends_its_call_alone(self) -> None:
        data = _Data()
        first, second = self._job_of_data(data, 1), self._job((2,))
        for job in (first, second):
            self.channel.submit(job)
        data.fail(TalwegError("the GPU is lost"))
        self.rounds.join()
        self.assertIn("is lost", str(first.failure))
        self.assertEqual(self.begun, [2])
        self.rounds.end(2)
        self.assertTrue(self.channel.finish(second))

    def test_an_abort_ends_a_call_whose_data_is_on_its_way(self) -> None:
        data = _Data()
        job = self._job_of_data(data, 1)
        self.channel.submit(job, is_async=False)
        self.channel.abort(Aborted("the group is over"))
        self.assertTrue(self.channel.finish(job))
        self.assertIsInstance(job.failure, Aborted)
        data.come()
        self.assertEqual(self.begun, [])

    def test_a_failure_is_of_the_call_alone_that_has_it(self) -> None:
        first, second = self._job((1,), overlaps=True), self._job((2,))
        for job in (first, second):
            self.channel.submit(job, is_async=False)
        self.rounds.end(1, Aborted("first"))
        self.rounds.end(2)
        self.assertTrue(self.channel.finish(second))
        self.assertIsInstance(first.failure, Aborted)
        self.assertEqual(second.results, [2])

    def test_who_waits_for_a_later_call_carries_on_those_before_it(self) -> None:
        jobs = [self._job((each, each + 10)) for each in range(3)]
        for job in jobs:
            self.channel.submit(job, is_async=False)
        for each in range(3):
            self.rounds.end(each)
            self.rounds.end(each + 10)
        self.assertTrue(self.channel.finish(jobs[2]))
        self.assertEqual([job.results for job in jobs], [[10], [11], [12]])
        self.assertEqual(self.rounds.taken, [0, 10, 1, 11, 2, 12])

    def test_a_time_limit_leaves_the_call_open_and_to_the_threads(self) -> None:
        job = self._job((1, 2))
        self.channel.submit(job, is_async=False)
        self.assertFalse(self.channel.finish(job, time.monotonic() + 0.01))
        self.assertEqual(list(self.rounds.watched), [1])
        self.rounds.end(1)
        self.rounds.end(2)
        self.assertTrue(self.channel.finish(job, time.monotonic()))

    def test_who_wants_to_be_called_is_when_it_is_done(self) -> None:
        job, called = self._job((1,)), threading.Event()
        self.channel.submit(job)
        self.channel.call_when_done(job, called.set)
        self.assertEqual(list(self.rounds.watched), [1])
        self.assertFalse(called.is_set())
        self.rounds.end(1)
        self.rounds.join()
        self.assertTrue(called.is_set())
        again = threading.Event()
        self.channel.call_when_done(job, again.set)
        self.rounds.join()
        self.assertTrue(again.is_set())

    def test_calls_are_made_also_when_a_waiting_thread_finishes_the_job(self) -> None:
        job, called = self._job((1,)), threading.Event()
        self.channel.submit(job)
        self.channel.call_when_done(job, called.set)
        with self.rounds.changed:
            self.rounds.over[1] = None  # Nobody has been told.
        self.assertTrue(self.channel.finish(job))
        self.rounds.join()
        self.assertTrue(called.is_set())

    def test_calls_do_not_wait_for_the_next_job(self) -> None:
        """Other ranks may make its call in what is called for this one."""
        first, second, called = self._job((1,)), self._job((2,)), threading.Event()
        self.channel.submit(first)
        self.channel.call_when_done(first, called.set)
        self.channel.submit(second, is_async=False)
        waits = threading.Thread(target=self.channel.finish, args=(second,))
        waits.start()
        self.rounds.end(1)
        was_called = called.wait(60.0)
        self.rounds.end(2)
        waits.join()
        self.rounds.join()
        self.assertTrue(was_called)

    def test_a_mismatch_is_the_calls_own_and_another_failure_the_jobs(self) -> None:
        job = self._job((1,), (2,), (3,))
        self.channel.submit(job, is_async=False)
        self.rounds.end(1, Mismatch("first"))
        self.rounds.end(2)
        self.rounds.end(3, Aborted("third"))
        self.assertTrue(self.channel.finish(job))
        self.assertEqual(job.results, [2])
        self.assertIsInstance(job.failure, Mismatch)
        other = self._job((4,), (5,))
        self.channel.submit(other, is_async=False)
        self.rounds.end(4, Aborted("fourth"))
        self.assertTrue(self.channel.finish(other))
        self.assertEqual(self.begun, [1, 2, 3, 4])

    def test_a_call_that_fails_at_once_holds_nothing_up(self) -> None:
        def fails() -> Steps:
            raise Aborted("at once")
            yield Wait(0, 0, 0, 0)

        for is_async in (True, False):
            bad = Job(self.channel, [fails])
            self.channel.submit(bad, is_async)
            self.assertTrue(bad.done)
            good = self._job((7,))
            self.channel.submit(good, is_async)
            self.assertEqual(self.begun, [7])
            self.rounds.end(7)
            self.assertTrue(self.channel.finish(good))
            self.begun.clear()
        none = Job(self.channel, [])
        self.channel.submit(none)
        self.assertTrue(self.channel.finish(none))

    def test_what_cannot_be_watched_is_waited_for(self) -> None:
        self.rounds.can_watch = False
        for round_ in (1, 2):
            self.rounds.end(round_)
        job = self._job((1, 2))
        self.channel.submit(job)
        self.assertTrue(job.done)

    def test_threads_that_wait_for_calls_of_one_channel(self) -> None:
        self.rounds.waits_for_calls = False
        jobs = [self._job((each, 100 + each)) for each in range(20)]
        for job in jobs:
            self.channel.submit(job)
        done: list[bool] = []
        threads = [
            threading.Thread(
                target=lambda each: done.append(self.channel.finish(each)), args=(job,)
            )
            for job in reversed(jobs)
        ]
        for thread in threads:
            thread.start()
        for each in range(20):
            self.rounds.end(each)
            self.rounds.end(100 + each)
        for thread in threads:
            thread.join()
        self.rounds.join()
        self.assertEqual(done, [True] * 20)
        self.assertEqual([job.results for job in jobs], [[100 + each] for each in range(20)])


if __name__ == "__main__":
    unittest.main()
