# SPDX-License-Identifier: Apache-2.0
"""Tests what BytePS's init() and launcher tell daemons and users, without daemons."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from talweg._compat import daemons
from talweg._compat.environment import VariableError
from talweg._node.launchers import Place
from talweg.byteps import _job, _others, _remedies, _waiting, common, launcher
from talweg.byteps._environment import TABLE
from talweg.errors import JobFailed, RankTaken, TalwegError, Timeout

SHARED = {
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_PS_ROOT_URI": "localhost",
    "DMLC_PS_ROOT_PORT": "1",
}


def _place(local_rank: int = 0, size: int = 2) -> Place:
    return Place("mpirun", "job", "node", local_rank, size, local_rank, 2)


class OtherLaunchersTest(unittest.TestCase):
    """Tests ranks that torchrun, mpirun or srun starts, and ranks of an agent that runs already."""

    def setUp(self) -> None:
        cleared = {k: v for k, v in os.environ.items() if not k.startswith("TALWEG_")}
        patched = mock.patch.dict(os.environ, cleared, clear=True)
        patched.start()
        self.addCleanup(patched.stop)
        self.addCleanup(daemons.take_back)
        self.log = logging.getLogger("test")

    def test_daemons_that_init_starts_get_the_variables(self) -> None:
        given = {
            "BYTEPS_PARTITION_BYTES": "65536",
            "BYTEPS_SERVER_ENGINE_THREAD": "4",
            "PS_HEARTBEAT_TIMEOUT": "7",
            "PS_VERBOSE": "1",
            "DMLC_ENABLE_RDMA": "1",  # One node has no network between its processes.
        }
        with self.assertNoLogs(self.log):
            _others.tell_daemons(given, _place(), self.log, says=True)
        told = {name: value for name, value in os.environ.items() if name.startswith("TALWEG_")}
        self.assertEqual(
            told,
            {
                "TALWEG_SLICE_BYTES_MAX": "65536",
                "TALWEG_LANES": "4",
                "TALWEG_LEASE_MS": "7000",
                "TALWEG_LOG_LEVEL": "info",
            },
        )
        self.assertEqual(_job.slice_bytes_of_agent(os.environ), 65536)
        # The next job of this process has other variables. What the user has set wins.
        daemons.take_back()
        os.environ["TALWEG_SLICE_BYTES_MAX"] = "4MiB"
        _others.tell_daemons({"BYTEPS_PARTITION_BYTES": "8192"}, _place(), self.log, says=True)
        self.assertNotIn("TALWEG_LANES", os.environ)
        self.assertEqual(_job.slice_bytes_of_agent(os.environ), 4 << 20)

    def test_the_transport_between_nodes(self) -> None:
        rdma = {"DMLC_ENABLE_RDMA": "1"}
        with mock.patch.object(_job, "provider", return_value="verbs"):
            told = _others.daemon_variables(rdma, _place(size=4))
        self.assertEqual(told, {"TALWEG_PROVIDER": "verbs"})
        own = {**rdma, "TALWEG_PROVIDER": "tcp"}
        self.assertEqual(_others.daemon_variables(own, _place(size=4)), {})

    def test_timelines_of_nodes_have_names_of_their_own(self) -> None:
        traced = {"BYTEPS_TRACE_ON": "1", "BYTEPS_TRACE_DIR": "."}
        for given, place, number in (
            ({}, Place("srun", "", "", 4, 6, 0, 2, node_rank=2, nodes=3), 2),
            ({"GROUP_RANK": "3"}, _place(), 3),
            ({}, Place("mpirun", "", "", 4, 6, 0, 2), 4),
        ):
            told = _others.daemon_variables({**traced, **given}, place)["TALWEG_TRACE_PATH"]
            self.assertEqual(Path(told).name, f"agent_{number}.json")

    def test_an_agent_that_runs_already_is_warned_of(self) -> None:
        given = {"BYTEPS_PARTITION_BYTES": "65536", "DMLC_ENABLE_RDMA": "1", "PS_VERBOSE": "1"}
        given |= {"BYTEPS_LOG_LEVEL": "", "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1"}
        os.environ["TALWEG_LOG_LEVEL"] = "info"  # The user has told the agent, most likely.
        with self.assertLogs(self.log, "WARNING") as caught:
            _others.tell_daemons(given, None, self.log, says=True)
        unknown, who = caught.output
        self.assertIn(
            "DMLC_ENABLE_RDMA, BYTEPS_PARTITION_BYTES are not known to this node's", unknown
        )
        self.assertIn(
            "by bpslaunch, or with TALWEG_SLICE_BYTES_MAX=65536 TALWEG_PROVIDER=verb", unknown
        )
        self.assertIn("DMLC_NUM_WORKER has no effect here: this node's agent says who is", who)
        self.assertNotIn("TALWEG_SLICE_BYTES_MAX", os.environ)
        with self.assertNoLogs(self.log):
            _others.tell_daemons(given, None, self.log, says=False)
            _others.tell_daemons({"DMLC_NUM_WORKER": "1"}, None, self.log, says=True)
        self.assertEqual(_job.slice_bytes_of_agent(os.environ), 1 << 20)
        for name, reports in (("LOCAL_RANK", False), ("OMPI_COMM_WORLD_LOCAL_RANK", False)):
            self.assertEqual(daemons.is_first_here({name: "1"}, "BYTEPS_LOCAL_RANK"), reports)

    def test_variables_of_one_rank_where_a_launcher_has_started_several(self) -> None:
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        mpirun = {f"OMPI_COMM_WORLD_{name}": value for name, value in zip(names, "1212")}
        self.assertIsNotNone(_others.place_of(mpirun))
        left_over = {"DMLC_WORKER_ID": "0", "DMLC_NUM_WORKER": "1"}
        self.assertIsNone(_others.place_of({**mpirun, **left_over}))
        with self.assertRaisesRegex(
            VariableError,
            "mpirun has started 2 ranks, and DMLC_WORKER_ID=0, DMLC_NUM_WORKER=1 describe a job of one "
            "rank: unset DMLC_WORKER_ID and DMLC_NUM_WORKER for one job of 2",
        ):
            _others.check_lone_rank({**mpirun, **left_over}, self.log)
        complete = {"BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": "1"}
        with self.assertLogs(self.log, "WARNING") as caught:
            _others.check_lone_rank({**mpirun, **complete}, self.log)
        self.assertIn("describe a job of one rank, which counts: unset them for", caught.output[0])
        with self.assertNoLogs(self.log):
            _others.check_lone_rank(left_over, self.log)
            _others.check_lone_rank({**mpirun, **complete, "TALWEG_BYTEPS_LAUNCHED": "1"}, self.log)

    def test_a_local_rank_that_the_node_has_not(self) -> None:
        for given, text in (
            (
                {"BYTEPS_LOCAL_RANK": "1"},
                "BYTEPS_LOCAL_RANK is 1, and BYTEPS_LOCAL_SIZE is not set",
            ),
            (
                {"BYTEPS_LOCAL_RANK": "2", "BYTEPS_LOCAL_SIZE": "2"},
                "BYTEPS_LOCAL_RANK is 2; with BYTEPS_LOCAL_SIZE=2 it must be 0 to 1",
            ),
        ):
            with self.assertRaisesRegex(VariableError, text):
                common._join(given, self.log)


class WithoutBpslaunchTest(unittest.TestCase):
    """Tests that variables which bpslaunch alone honours are not without effect in silence."""

    def setUp(self) -> None:
        # A variable is reported once per process.
        fresh: Any = mock.patch.object(TABLE, "_said", set())
        fresh.start()
        self.addCleanup(fresh.stop)

    def _said(self, **variables: str) -> str:
        """Returns what init() says before it joins a job."""
        prefixes = ("TALWEG_", "BYTEPS_", "DMLC_", *daemons._LOCAL_RANKS)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
        said = io.StringIO()
        with (
            mock.patch.dict(os.environ, {**kept, **variables}, clear=True),
            mock.patch.object(common, "_join", side_effect=Timeout("it does not join")),
            contextlib.redirect_stderr(said),
            self.assertRaises(Timeout),
        ):
            common.init()
        return said.getvalue()

    def test_one_warning_names_those_that_are_set(self) -> None:
        given = {
            "BYTEPS_VISIBLE_CPU_CORES": "0",
            "BYTEPS_ENABLE_GDB": "1",
            "BYTEPS_PARTITION_BYTES": "65536",
        }
        self.assertRegex(
            self._said(**given),
            r"^\[.*W byteps\] BYTEPS_ENABLE_GDB, BYTEPS_VISIBLE_CPU_CORES have no effect here: only "
            r"bpslaunch \(launcher/launch.py\) honours them; start the job by it, or unset them\n$",
        )
        self.assertEqual(self._said(**given), "")  # A process says it once.

    def test_the_nodes_first_rank_says_it_for_all(self) -> None:
        given = {"BYTEPS_NUMA_ON": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
        self.assertEqual(self._said(**given), "")
        given["OMPI_COMM_WORLD_LOCAL_RANK"] = "0"
        self.assertIn("BYTEPS_NUMA_ON has no effect here: only bpslaunch", self._said(**given))

    def test_bpslaunch_honours_them(self) -> None:
        given = {"BYTEPS_VISIBLE_CPU_CORES": "0", "TALWEG_BYTEPS_LAUNCHED": "1"}
        self.assertEqual(self._said(**given), "")

    def test_values_that_ask_for_nothing(self) -> None:
        given = {"BYTEPS_NUMA_ON": "0", "BYTEPS_CPU_BLACKLIST": "-1", "BYTEPS_ENABLE_GDB": "0"}
        self.assertEqual(self._said(**given), "")

    def test_which_they_are(self) -> None:
        wanted = {each.name for title, group in TABLE.groups for each in group if title == "Cores"}
        found = {each.name for each in TABLE.by_name.values() if each.launcher == "bpslaunch"}
        self.assertEqual(found, wanted | {"BYTEPS_ENABLE_GDB"})


class WaitingTest(unittest.TestCase):
    """Tests that everybody says for whom it waits."""

    def test_missing_workers_are_named_every_time(self) -> None:
        job = _job.job_of({**SHARED, "DMLC_NUM_WORKER": "3"}, "scheduler", 1)
        summary = {"name": "byteps", "state": "JOB_STATE_FORMING", "member_count": 1}
        states = {0: "MEMBER_STATE_LEFT", 1: "MEMBER_STATE_JOINED"}
        members = [{"member": {"id": {"node_rank": k}}, "state": v} for k, v in states.items()]
        told = {"jobs": [{"job": {"summary": summary, "members": members}}]}
        text = "workers: 1 of 3 (DMLC_NUM_WORKER, or num_workers of resume()) is there"
        text += "; DMLC_WORKER_ID 0, 2 are missing"
        log, over = logging.getLogger("test"), threading.Event()

        def tell() -> str:
            tell_times.append(0)
            if len(tell_times) == 3:
                over.set()
            return _waiting._text(job, told)

        tell_times: list[int] = []
        with (
            mock.patch.multiple(_waiting, _SAY_AFTER_S=0.0, _SAY_S=0.0),
            self.assertLogs(log, "WARNING") as caught,
            self.assertRaisesRegex(Timeout, f"late; it has waited for {re.escape(text)}"),
            _waiting.waiting(tell, log),
        ):
            over.wait(60)
            raise Timeout("late")
        self.assertGreaterEqual(len(caught.output), 2)
        self.assertIn(f"waiting for {text}", caught.output[0])

    def test_a_rank_without_its_nodes_first_one(self) -> None:
        log = logging.getLogger("test")
        with tempfile.TemporaryDirectory(dir="/tmp") as sockets:
            given = {
                "BYTEPS_LOCAL_RANK": "1",
                "BYTEPS_LOCAL_SIZE": "2",
                "BYTEPS_SOCKET_PATH": sockets,
            }
            with (
                mock.patch.object(common, "_WAIT_S", 0.5),
                mock.patch.object(_waiting, "_SAY_AFTER_S", 0.2),
                self.assertLogs(log, "WARNING") as caught,
                self.assertRaisesRegex(Timeout, "it has waited for local rank 0 of this node"),
            ):
                common._join(given, log)
        self.assertIn(
            "waiting for local rank 0 of this node, whose init() starts", caught.output[0]
        )

    def _serve(self, role: str, answers: dict[str, Any], **variables: str) -> str:
        """Returns what a launcher says in two looks, when it asks those that have `answers`."""
        given = {**SHARED, "DMLC_ROLE": role, **variables}
        daemon = mock.MagicMock()
        daemon.return_value.__enter__.return_value.poll.side_effect = [None, None, 1]
        said = io.StringIO()
        serve = launcher._server if role == "server" else launcher._scheduler
        with (
            mock.patch.multiple(launcher, _daemon=daemon, _SAY_S=0.0, _ASK_S=0.0),
            mock.patch.object(_job, "status", answers.get),
            contextlib.redirect_stderr(said),
            self.assertRaises(TalwegError),
        ):
            serve(_job.job_of(given, role, 1), given)
        return said.getvalue()

    def test_servers_and_schedulers(self) -> None:
        told: dict[str, Any] = {"localhost:1": {"jobs": [], "pool": []}}
        waits = "waiting for servers (0 of 1 are there) and workers (0 of 2 are there)"
        for role in ("server", "scheduler"):
            self.assertIn(waits, self._serve(role, told))
        # A scheduler that binds all addresses need not reach itself by its outer one.
        inner = {"127.0.0.1:1": told["localhost:1"]}
        self.assertIn(waits, self._serve("scheduler", inner, DMLC_USE_KUBERNETES="1"))
        said = self._serve("scheduler", {}, DMLC_USE_KUBERNETES="1")
        self.assertIn("does not answer at 127.0.0.1:1 or localhost:1, so nobody knows", said)
        self.assertIn("set DMLC_PS_ROOT_URI to", said)

    def test_errors_of_daemons_name_variables(self) -> None:
        taken = (
            "local rank 0 is taken by the process with pid 7 ('python'); end it, or choose another "
        )
        for error, text in (
            (
                RankTaken(f"{taken}local rank (TALWEG_LOCAL_RANK)"),
                r"with pid 7 \('python'\); .* give each job a BYTEPS_JOB_ID",
            ),
            (
                JobFailed("job 'x': min_members is 2 in the job and 3 in the request; all must"),
                "set DMLC_NUM_WORKER .* to the same at all workers",
            ),
            (JobFailed("rank 1 has died"), "^rank 1 has died$"),
        ):
            with self.assertRaisesRegex(type(error), text) as raised, _remedies.named():
                raise error
            self.assertNotIn("TALWEG_LOCAL_RANK", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
