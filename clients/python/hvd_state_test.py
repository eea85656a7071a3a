# SPDX-License-Identifier: Apache-2.0
"""The State classes of hvd.elastic, as programs of Horovod use them."""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from talweg._client import Handle, process
from talweg._compat.names import names
from talweg._elastic import outlive
from talweg._node.ranks import NEWS_FILE
from talweg.errors import Aborted
from talweg.horovod.common.elastic import Shared
from talweg.horovod.common.exceptions import HorovodInternalError
from talweg.horovod.common.timeline import Timeline
from talweg.horovod.runner.elastic.worker import HostUpdateResult
from talweg.horovod.torch.elastic import ObjectState, TorchState, run

# Methods and properties of talweg.State, and arguments of talweg.torch.Elastic.
_NAMES_OF_TALWEG = (
    *("run", "change", "replay", "digest", "joined", "apply", "begin", "end_step", "hashing"),
    *("check_every", "digest_steps", "pack", "unpack", "took_whole", "balanced_samplers"),
    *("own_times", "scale", "ends_steps", "full_step", "weight", "values", "owner", "_note"),
)


class HvdStateTest(unittest.TestCase):
    def test_values_may_have_names_of_talwegs_methods(self) -> None:
        for kind in (ObjectState, TorchState):
            state = kind(**dict.fromkeys(_NAMES_OF_TALWEG, 1))
            for name in _NAMES_OF_TALWEG:
                self.assertEqual(getattr(state, name), 1, name)
                setattr(state, name, 2)
            state.save()
            for name in _NAMES_OF_TALWEG:
                setattr(state, name, 3)
            state.restore()
            self.assertEqual({getattr(state, name) for name in _NAMES_OF_TALWEG}, {2})
            for name in ("commit", "register_reset_callbacks", "_reset_callbacks"):
                with self.assertRaisesRegex(ValueError, "choose another name for this value"):
                    kind(**{name: 1})

    def test_a_state_without_a_model(self) -> None:
        state = TorchState(batch=0)
        self.assertIsNone(state.model)
        self.assertIsNone(state.optimizer)
        self.assertEqual(state.batch, 0)
        with self.assertRaisesRegex(AttributeError, "no value 'epoch'; it has .'batch'."):
            state.epoch  # noqa: B018

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

    def test_what_the_launcher_tells_of_hosts(self) -> None:
        with (
            tempfile.TemporaryDirectory() as directory,
            mock.patch.dict(os.environ, TALWEG_TASK_DIR=directory),
        ):
            news = Path(directory) / NEWS_FILE
            state = ObjectState(batch=0)
            messages = state._host_messages
            self.assertTrue(messages.empty())
            news.write_text("5.5 2\n7.5 1\n9")
            self.assertFalse(messages.empty())
            self.assertEqual(messages.get(), (5.5, HostUpdateResult.added))
            self.assertEqual(messages.get(), (7.5, HostUpdateResult.removed))
            self.assertTrue(messages.empty())  # A line is being written.
            news.write_text("5.5 2\n7.5 1\n9.5 3\n")
            with mock.patch.object(Shared, "end_step", return_value=None):
                state.check_host_updates()
            self.assertEqual(state._last_updated_timestamp, 9.5)
            self.assertTrue(messages.empty())
            state.on_hosts_updated(10, HostUpdateResult.added)
            self.assertEqual(messages.qsize(), 1)
            state.on_reset()
            self.assertTrue(state._host_messages.empty())
        self.assertTrue(ObjectState()._host_messages.empty())

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

    def test_an_operation_that_fails_has_the_state_restored(self) -> None:
        """The function is called again, as with Horovod, while the job goes on."""
        told: list[Any] = []

        class Told(ObjectState):
            def sync(self) -> None:
                told.append("sync")

        @run
        def train(state: Told) -> int:
            told.append(state.batch)
            state.batch += 1
            if told.count(0) < 3:
                raise HorovodInternalError("ranks disagree")
            return 7

        self.assertEqual(train(Told(batch=0)), 7)
        self.assertEqual(told, ["sync", 0] * 3)
        told.clear()
        with (
            mock.patch.object(outlive, "job_is_over", return_value=True),
            self.assertRaisesRegex(HorovodInternalError, "ranks disagree"),
        ):
            train(Told(batch=0))
        self.assertEqual(told, ["sync", 0])

    def test_a_timeline_outlives_the_agent(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            clients = [mock.Mock(watchers=[]) for _ in range(3)]
            path = Path(directory) / "timeline"
            timeline = Timeline(clients[0], str(path), mark_cycles=False)
            process._keepers(clients[1])
            [watch] = clients[1].watchers
            watch(Handle(clients[1], 0, 0, "allreduce.of the next client", begin_ns=0))
            timeline.end()
            process._keepers(clients[2])
            self.assertEqual([len(each.watchers) for each in clients], [1, 0, 0])
            self.assertIn("ALLREDUCE", {event["name"] for event in json.loads(path.read_text())})

    def test_each_call_of_the_function_makes_the_same_names(self) -> None:
        """A rank that has come later has called it once, where others have called it often."""
        weight = torch.nn.Parameter(torch.zeros(2))
        of_before = names.next("kind", [("weight", weight)])
        told: list[list[str]] = []

        class Told(ObjectState):
            def sync(self) -> None:
                pass

        @run
        def train(state: Told) -> None:
            own = torch.nn.Parameter(torch.zeros(2))
            told.append([names.next("kind") for _ in range(2)])
            told[-1] += [names.next("kind", [("weight", own)]), names.next("kind", [("", own)])]
            told[-1] += [names.next("kind", [("weight", each)]) for each in (own, weight)]
            if len(told) < 3:
                raise HorovodInternalError("ranks disagree")

        train(Told(batch=0))
        self.assertEqual(told[1:], told[:1] * 2)
        self.assertEqual(told[0][4:], [told[0][2], of_before])
        self.assertEqual(len(set(told[0])), 5)


if __name__ == "__main__":
    unittest.main()
