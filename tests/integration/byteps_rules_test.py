# SPDX-License-Identifier: Apache-2.0
"""Tests BytePS's variables, and what its launchers make of a COMMAND."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path
from typing import Any

import job
from byteps_commands import environment, run, shared
from talweg._compat.environment import VariableError
from talweg.byteps import _job, _trace, launcher
from talweg.byteps._environment import TABLE
from talweg.byteps.dist_launcher import remote_line
from talweg.errors import Unsupported

# A rank that is alone, and takes a sample of each round. It prints whether there is none.
_SPEED = """
import numpy as np
import talweg
from talweg._compat import timeline
from talweg.byteps import common as bps
timeline.Speed._PERIOD_NS = 0
bps.init()
talweg.push_pull(np.ones(4, np.float32), name="x")
print(bps.get_pushpull_speed() == (0, -5.0))
"""


class VariablesTest(unittest.TestCase):
    def test_values_out_of_range_name_variable_value_and_range(self) -> None:
        for variable in TABLE.by_name.values():
            if variable.kind.is_allowed("no such value \n"):
                continue
            with self.assertRaises(VariableError) as caught:
                TABLE.value({variable.name: "no such value \n"}, variable.name)
            for part in (variable.name, "'no such value \n'", variable.kind.allowed):
                self.assertIn(part, str(caught.exception))

    def test_defaults_are_allowed(self) -> None:
        for variable in TABLE.by_name.values():
            if variable.default:
                variable.check(variable.default)
            self.assertTrue(variable.meaning.strip(), variable.name)

    def test_every_variable_of_the_tutorial(self) -> None:
        TABLE.check(
            {
                "DMLC_ENABLE_RDMA": "1",
                "DMLC_INTERFACE": "enp178s0f0",
                "MXNET_OMP_MAX_THREADS": "4",
                "P4ML_APP": "1",
                "BYTEPS_VISIBLE_CPU_CORES": "1,4-5,7-11,12:20-25",
                "BYTEPS_DEBUG_SAMPLE_TENSOR": "0x30001",
                "BYTEPS_PCIE_SWITCH_SIZE": "4",
                "PS_VERBOSE": "2",
            }
        )

    def test_lists(self) -> None:
        allowed = {
            "BYTEPS_REDUCE_ROOTS": ("-1", "0", "0, 1"),
            "BYTEPS_CPU_BLACKLIST": ("-1", "0,1", " 0, 1", "-1,3"),
            "BYTEPS_VISIBLE_CPU_CORES": ("0", "3-3", "1,4-5:20-65535"),
            "NVIDIA_VISIBLE_DEVICES": ("0", "0,1", "all", "GPU-1f,", "none"),
        }
        refused = {
            "BYTEPS_REDUCE_ROOTS": ("a", ",", "0,"),
            "BYTEPS_CPU_BLACKLIST": ("0 1", ",", "1,", "0-1", "9" * 5000),
            "BYTEPS_VISIBLE_CPU_CORES": ("1-0", "0,5-4", "0:1-0", "0-99999999999", "1,", "0-65536"),
            "NVIDIA_VISIBLE_DEVICES": (",", " ", " , "),
        }
        for name, values in allowed.items():
            for value in values:
                self.assertEqual(TABLE.value({name: value}, name), value)
        for name, values in refused.items():
            for value in values:
                with self.subTest(name=name, value=value[:20]):
                    with self.assertRaisesRegex(VariableError, f"{name} is '{value}'; it must be"):
                        TABLE.value({name: value}, name)

    def test_how_many_ranks_a_node_has(self) -> None:
        def count(visible: str, gpus: int) -> tuple[int, list[str]]:
            said: list[str] = []
            with unittest.mock.patch.object(launcher, "gpu_count", lambda: gpus):
                variables = {"NVIDIA_VISIBLE_DEVICES": visible} if visible else {}
                return launcher.rank_count(variables, said.append), said

        for visible in ("", "none", "void"):
            self.assertEqual(count(visible, 4), (1, []))
        self.assertEqual(count("all", 4), (4, []))
        self.assertEqual(count("all", 0), (1, []))
        self.assertEqual(count("0,2, 3,", 4), (3, []))
        ranks, said = count("0,1", 0)
        text = "there is no GPU: NVIDIA_VISIBLE_DEVICES=0,1 stands for 2 ranks on CPUs"
        self.assertEqual((ranks, said), (2, [text]))

    def test_misspelt_names(self) -> None:
        found = TABLE.misspelt({"BYTEPS_PARTITON_BYTES": "1", "DMLC_WORKERID": "0", "HOME": "/"})
        self.assertEqual(
            found,
            [
                ("BYTEPS_PARTITON_BYTES", "BYTEPS_PARTITION_BYTES"),
                ("DMLC_WORKERID", "DMLC_WORKER_ID"),
            ],
        )

    def test_the_timeline_of_an_agent_has_its_nodes_number(self) -> None:
        """The timeline has the node's number, also if only the global rank tells it."""
        shared = {"DMLC_NUM_WORKER": "3", "DMLC_NUM_SERVER": "1"}
        shared |= {"DMLC_PS_ROOT_URI": "localhost", "DMLC_PS_ROOT_PORT": "1"}
        job = _job.job_of(
            {**shared, "BYTEPS_GLOBAL_RANK": "5", "BYTEPS_LOCAL_RANK": "1"}, "worker", 2
        )
        traced = {"BYTEPS_TRACE_ON": "1", "BYTEPS_TRACE_DIR": ".", "BYTEPS_TRACE_END_STEP": "7"}
        told = _trace.prepare_agent(job.worker or 0, traced)
        self.assertEqual(told["TALWEG_TRACE_PATH"], os.path.abspath("agent_2.json"))
        self.assertEqual(told["TALWEG_TRACE_ROUNDS"], "7")
        self.assertEqual(_trace.prepare_agent(2, {}), {})

    def test_what_has_no_effect_is_said_once(self) -> None:
        done = run(["true"], BYTEPS_NCCL_NUM_RINGS="2", BYTEPS_LOG_LEVEL="INFO")
        self.assertEqual(done.stderr.count("BYTEPS_NCCL_NUM_RINGS has no effect: "), 1, done.stderr)
        done = run(["true"], BYTEPS_NCCL_NUM_RINGS="2")
        self.assertNotIn("BYTEPS_NCCL_NUM_RINGS", done.stderr)

    def test_values_in_whose_place_others_are_used_are_said(self) -> None:
        said = run(
            ["true"],
            BYTEPS_PARTITION_BYTES=str(2**31 - 1),
            BYTEPS_SCHEDULING_CREDIT="100",
            PS_HEARTBEAT_INTERVAL="9999",
            BYTEPS_SERVER_ENGINE_THREAD="500",  # A worker has none of them.
            BYTEPS_LOG_LEVEL="INFO",
        ).stderr
        for text in (
            f"BYTEPS_PARTITION_BYTES is 2147483647; {1 << 30} bytes are used",
            f"BYTEPS_SCHEDULING_CREDIT is 100; {64 << 30} bytes are used",
            "PS_HEARTBEAT_INTERVAL is 9999; 3600 s are used",
        ):
            self.assertEqual(said.count(text), 1, said)
        self.assertNotIn("SERVER_ENGINE_THREAD", said)
        log = logging.getLogger("test")
        for told, used in (("500", "64"), ("0", "1")):
            threads = {"BYTEPS_SERVER_ENGINE_THREAD": told}
            lanes = _job.daemon_variables(threads, is_server=True)["TALWEG_LANES"]
            self.assertEqual(lanes, used)
            with self.assertLogs(log, "INFO") as caught:
                _job.say_values(threads, log, is_server=True)
            self.assertIn(f"THREAD is {told}; {used} are used, as a server has", caught.output[0])
        with self.assertNoLogs(log, "INFO"):
            plain = {"BYTEPS_PARTITION_BYTES": "4096", "BYTEPS_SCHEDULING_CREDIT": "16"}
            _job.say_values(plain, log, is_server=True)

    def test_a_socket_whose_path_is_too_long(self) -> None:
        job = _job.job_of({}, "worker", 2)
        told = "/tmp/" + "x" * 99
        TABLE.check({"BYTEPS_SOCKET_PATH": told})
        with self.assertRaises(VariableError) as raised:
            _job.socket_path(job, {"BYTEPS_SOCKET_PATH": told}, 0)
        found = re.search(r"has 104 bytes, and may have (\d+) here", str(raised.exception))
        assert found is not None, raised.exception
        self.assertFalse(Path(told).exists())
        with tempfile.TemporaryDirectory(dir="/tmp") as parent:
            longest = Path(f"{parent}/".ljust(int(found[1]), "y"))
            longest.mkdir()
            path = _job.socket_path(job, {"BYTEPS_SOCKET_PATH": str(longest)}, 0)
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(path)

    def test_jobs_with_other_names_have_other_sockets(self) -> None:
        with tempfile.TemporaryDirectory(dir="/tmp") as parent:

            def path(name: str, jobs_before: int = 0, **variables: str) -> str:
                variables = {"DMLC_WORKER_ID": "0", "BYTEPS_JOB_ID": name, **variables}
                variables["BYTEPS_SOCKET_PATH"] = parent
                TABLE.check(variables)
                job = _job.job_of(shared(DMLC_PS_ROOT_PORT="1") | variables, "worker", 2)
                return _job.socket_path(job, variables, jobs_before)

            end = "-with-the-same-sixty-last-characters-as-another-name-of-a-job"
            paths = [path(name) for name in (f"first{end}", f"second{end}", "a/b", "a_b", "a")]
            paths += [
                path("a", 1),
                path("a", DMLC_PS_ROOT_PORT="2"),
                path("a", BYTEPS_GLOBAL_RANK="2"),
            ]
            self.assertEqual(len(set(paths)), len(paths))
            self.assertEqual(path("a"), paths[4])
            with self.assertRaisesRegex(VariableError, "must be .* without control characters"):
                path("a\tb")

    def test_daemons_options(self) -> None:
        told = _job.daemon_variables(
            {
                "BYTEPS_PARTITION_BYTES": "100000",
                "BYTEPS_MIN_COMPRESS_BYTES": "1024",
                "BYTEPS_SCHEDULING_CREDIT": "4",
                "DMLC_INTERFACE": "eth5",
                "DMLC_NODE_HOST": "10.0.0.7",
                "PS_VERBOSE": "2",
            }
        )
        self.assertEqual(
            told,
            {
                "TALWEG_SLICE_BYTES_MAX": "100032",  # A multiple of 64.
                "TALWEG_ENCODING_BYTES_MIN": "1024",
                "TALWEG_CREDIT_BYTES": "400128",
                "TALWEG_INTERFACE": "eth5",
                "TALWEG_INSECURE": "true",
                "TALWEG_ADVERTISE": "10.0.0.7",
                "TALWEG_LOG_LEVEL": "debug",
            },
        )
        self.assertEqual(_job.daemon_variables({}), {"TALWEG_LOG_LEVEL": "warning"})
        lanes = {"BYTEPS_SERVER_ENGINE_THREAD": "6"}
        self.assertEqual(_job.daemon_variables(lanes, is_server=True)["TALWEG_LANES"], "6")
        self.assertNotIn("TALWEG_LANES", _job.daemon_variables(lanes))
        many = {"BYTEPS_SERVER_ENGINE_THREAD": "1000"}
        self.assertEqual(_job.daemon_variables(many, is_server=True)["TALWEG_LANES"], "64")
        scheduled = {"BYTEPS_SERVER_ENABLE_SCHEDULE": "1"}
        told = _job.daemon_variables(scheduled, is_server=True)
        self.assertEqual(told["TALWEG_RESULTS_BY_PRIORITY"], "true")
        self.assertNotIn("TALWEG_RESULTS_BY_PRIORITY", _job.daemon_variables(scheduled))
        self.assertNotIn(
            "TALWEG_RESULTS_BY_PRIORITY",
            _job.daemon_variables({"BYTEPS_SERVER_ENABLE_SCHEDULE": "0"}, is_server=True),
        )
        debugged = {"BYTEPS_SERVER_DEBUG": "1"}
        for is_server, level in ((True, "debug"), (False, "warning")):
            told = _job.daemon_variables(debugged, is_server=is_server)
            self.assertEqual(told["TALWEG_LOG_LEVEL"], level)
        with_tls = {"DMLC_INTERFACE": "eth5", "TALWEG_TLS_DIR": "/certificates"}
        self.assertNotIn("TALWEG_INSECURE", _job.daemon_variables(with_tls))

    def test_where_daemons_listen(self) -> None:
        given = shared(DMLC_PORT="5", DMLC_NODE_HOST="127.0.0.7")
        scheduler = f"127.0.0.1:{given['DMLC_PS_ROOT_PORT']}"
        for binds_all in (False, True):
            given["DMLC_USE_KUBERNETES"] = str(int(binds_all))
            line = launcher.scheduler_line(_job.job_of(given, "scheduler", 1), given)
            wanted = scheduler.replace("127.0.0.1", "0.0.0.0") if binds_all else scheduler
            self.assertIn(f"--listen={wanted}", line)
            line, variables = launcher.server_line(_job.job_of(given, "server", 1), given)
            host = "0.0.0.0" if binds_all else "127.0.0.7"
            for option in (f"--listen={host}:5", f"--admin_listen={host}:0"):
                self.assertIn(option, line)
            self.assertIn(f"--scheduler={scheduler}", line)
            self.assertEqual(variables["TALWEG_ADVERTISE"], "127.0.0.7")
        # Without DMLC_NODE_HOST it is the address by which a server reaches the scheduler.
        del given["DMLC_NODE_HOST"]
        _, variables = launcher.server_line(_job.job_of(given, "server", 1), given)
        self.assertEqual(variables["TALWEG_ADVERTISE"], "127.0.0.1")

    def test_tensors_that_are_not_to_be_cut(self) -> None:
        """BytePS's own tests ask for the largest slices that the variable's number allows."""
        told = _job.daemon_variables({"BYTEPS_PARTITION_BYTES": str(2**31 - 1)})
        self.assertEqual(told["TALWEG_SLICE_BYTES_MAX"], str(2**30))

    def test_the_log_level_in_any_case(self) -> None:
        for told in ("INFO", "info", "Info"):
            self.assertEqual(_job.log_level({"BYTEPS_LOG_LEVEL": told}), "info")
        with self.assertRaisesRegex(VariableError, "'loud'; it must be TRACE, .*, in any case"):
            _job.log_level({"BYTEPS_LOG_LEVEL": "loud"})

    def test_the_lanes_of_a_server_count_as_one(self) -> None:
        states = {"a": "STATE_LIVE", "a/1": "STATE_LIVE", "b": "STATE_LOST", "b/1": "STATE_LIVE"}
        told = {
            "pool": [
                {"aggregator": {"name": name}, "state": state} for name, state in states.items()
            ]
        }
        self.assertEqual(_job.live_servers(told), 2)

    def test_which_job_is_a_launchers_own(self) -> None:
        def summary(number: int, state: str, name: str) -> dict[str, Any]:
            told = {"job_id": str(number), "name": name, "state": f"JOB_STATE_{state}"}
            return {"job": {"summary": told | {"state_text": "", "member_count": 1}}}

        def look(own: _job.OwnJob, *jobs: tuple[int, str], name: str = "own") -> str:
            own.look({"jobs": [summary(number, state, name) for number, state in jobs]})
            return own.state

        def own_job(**variables: str) -> _job.OwnJob:
            return _job.OwnJob(_job.job_of(variables, "server", 1))

        for given in ({"BYTEPS_JOB_ID": "own"}, {}):
            own = own_job(**given)
            self.assertEqual(look(own), "")
            self.assertEqual(look(own, (1, "RUNNING")), "running")
            # Ranks that have left the job, and have not ended, join another one.
            self.assertEqual(look(own, (1, "FINISHED"), (2, "FORMING")), "finished")
            own = own_job(**given)
            self.assertEqual(look(own), "")
            self.assertEqual(look(own, (1, "FAILED"), (2, "RUNNING")), "failed")
            # A scheduler may have had jobs before this one.
            own = own_job(**given)
            self.assertEqual(look(own, (1, "FINISHED"), (2, "FAILED"), (3, "FORMING")), "forming")
            self.assertEqual(look(own, (1, "FINISHED"), (2, "FAILED"), (3, "FINISHED")), "finished")
        own = own_job(BYTEPS_JOB_ID="own")
        self.assertEqual(look(own, (1, "FINISHED"), (2, "RUNNING"), name="another"), "")
        self.assertEqual(own.others, ["another"])
        job = _job.job_of(shared(BYTEPS_JOB_ID="own"), "server", 1)
        told = launcher._waits_for(job, {"pool": []}, own)
        self.assertIn("servers (0 of 1 are there) and workers (0 of 2 are there)", told)
        self.assertIn("BYTEPS_JOB_ID is 'own' here, and the scheduler has 'another': set it", told)

    def test_the_transport(self) -> None:
        with tempfile.TemporaryDirectory() as none, tempfile.TemporaryDirectory() as some:
            (Path(some) / "mlx5_0").mkdir()
            for told, wanted in (("0", "tcp"), ("1", "verbs"), ("ibverbs", "verbs")):
                variables = {"DMLC_ENABLE_RDMA": told}
                self.assertEqual(_job.provider(variables, Path(some)), wanted)
            self.assertEqual(_job.provider({}, Path(none)), "tcp")
            for missing in (Path(none), Path(none) / "nothing"):
                with self.assertRaisesRegex(VariableError, "DMLC_ENABLE_RDMA is 1, .* set it to 0"):
                    _job.provider({"DMLC_ENABLE_RDMA": "1"}, missing)

    def test_an_interface_that_is_not_there(self) -> None:
        for name in ("", "lo", "lo:1"):
            _job.require_interface({"DMLC_INTERFACE": name})
        wrong = shared(DMLC_INTERFACE="none9", DMLC_PS_ROOT_URI="192.0.2.1", DMLC_WORKER_ID="0")
        text = r"DMLC_INTERFACE is 'none9', and this machine has lo.*: set it to one of these"
        for role in ("worker", "server", "scheduler"):
            # The scheduler ends, because this machine does not have the address either.
            done = run(["true"] if role == "worker" else [], **wrong, DMLC_ROLE=role)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertRegex(done.stderr, text)
        self.assertIn("listens on 192.0.2.1:", done.stderr)

    def test_where_ranks_meet_belongs_to_their_user(self) -> None:
        with tempfile.TemporaryDirectory(dir="/tmp") as parent:
            variables = {"BYTEPS_SOCKET_PATH": parent}
            job = _job.job_of(variables, "worker", 2)
            directory = Path(_job.socket_path(job, variables, 0)).parent
            self.assertEqual(directory.stat().st_mode & 0o777, 0o700)
            directory.chmod(0o777)
            with self.assertRaisesRegex(VariableError, "BYTEPS_SOCKET_PATH is '/tmp/.*mode 0700"):
                _job.socket_path(job, variables, 0)
            with self.assertRaisesRegex(VariableError, "BYTEPS_SOCKET_PATH is '/tmp/.*/nothing'"):
                _job.socket_path(job, {"BYTEPS_SOCKET_PATH": f"{parent}/nothing"}, 0)

    def test_p4ml_is_warned_of(self) -> None:
        done = run(["true"], P4ML_APP="1")
        self.assertEqual(
            done.stderr.count("P4ML_APP has no effect: There is no switch that sums"), 1
        )
        self.assertRegex(done.stderr, r"(?m)^\[20\S+ \S+: W bpslaunch\] P4ML_APP")
        done = run(["true"], P4ML_APP="1", BYTEPS_LOG_HIDE_TIME="1")
        self.assertRegex(done.stderr, r"(?m)^\[W bpslaunch\] P4ML_APP")
        self.assertNotIn("P4ML_APP", run(["true"], P4ML_APP="0").stderr)

    def test_samples_of_the_speed(self) -> None:
        """BYTEPS_TELEMETRY_ON=0 takes none. The package's lines have no time here."""
        for is_on, begin in (("1", "False"), ("0", "True")):
            variables = environment(BYTEPS_TELEMETRY_ON=is_on, BYTEPS_LOG_HIDE_TIME="1")
            done = subprocess.run(
                [sys.executable, "-P", "-c", _SPEED],
                env={**variables, "P4ML_APP": "1"},
                capture_output=True,
                text=True,
                timeout=job.TIMEOUT_S,
                check=False,
            )
            self.assertEqual(done.stdout, f"{begin}\n", done.stderr)
            self.assertRegex(done.stderr, r"^\[W byteps\] P4ML_APP has no effect")

    def test_which_node_a_global_rank_is_on(self) -> None:
        variables = {"BYTEPS_GLOBAL_RANK": "5", "BYTEPS_LOCAL_RANK": "1", "DMLC_WORKER_ID": "0"}
        self.assertEqual(_job.worker_of(variables, 2), 2)
        with self.assertRaisesRegex(VariableError, "BYTEPS_GLOBAL_RANK is 4"):
            _job.worker_of({"BYTEPS_GLOBAL_RANK": "4", "BYTEPS_LOCAL_RANK": "1"}, 2)

    def test_refusals_have_a_remedy(self) -> None:
        refused = [each for each in TABLE.by_name.values() if each.refused]
        self.assertGreater(len(refused), 0)
        for variable in refused:
            for value in variable.refused:
                with self.assertRaisesRegex(Unsupported, re.escape(variable.remedy)):
                    variable.check(value)


# Commands of the launchers, and the last line that each prints. A single word is a line of shell.
_COMMANDS = (
    (["echo $ROLE; cd /; pwd"], "/"),
    (["cd / && pwd"], "/"),
    (["export A=b; sh -c 'echo $A'"], "b"),
    (["A=b sh -c 'echo $A'"], "b"),
    (["A=b", "sh", "-c", "echo $A"], "b"),
    (["echo", "a; pwd", "$ROLE"], "a; pwd $ROLE"),
)


class CommandsTest(unittest.TestCase):
    """Tests what the launchers make of a COMMAND, without a job."""

    def _last_line(self, shell: str, line: str) -> str:
        process = subprocess.Popen(
            [shell, "-c", line],
            stdin=subprocess.PIPE,  # A command ends when ssh's stdin ends.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "ROLE": "worker"},
        )
        assert process.stdin is not None and process.stdout is not None
        with process, process.stdin:
            output = process.stdout.read()
        self.assertEqual(process.returncode, 0, output)
        return output.splitlines()[-1]

    def test_on_a_host(self) -> None:
        for command, wanted in _COMMANDS:
            for shell in ("sh", "bash"):
                with self.subTest(command=command, shell=shell):
                    line = remote_line({"X": "it's"}, command)
                    self.assertEqual(self._last_line(shell, line), wanted)

    def test_a_line_ends_with_ssh(self) -> None:
        """All that it has started ends, and nothing begins that follows in the line."""
        for shell in ("sh", "bash"):
            program = "trap 'sleep 0.2; echo has ended; exit' TERM; echo there; "
            program = shlex.quote(program + "while :; do sleep 0.1; done")
            line = remote_line({}, [f"sleep 300 & sh -c {program}; echo goes on"])
            process = subprocess.Popen(
                [shell, "-c", line],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            assert process.stdout is not None
            with process:
                self.assertEqual(process.stdout.readline(), "there\n")
                output, _ = process.communicate(timeout=job.TIMEOUT_S)  # It closes stdin.
            self.assertEqual((process.returncode, output), (143, "has ended\n"))

    def test_in_gdb(self) -> None:
        if shutil.which("gdb") is None:
            print("SKIPPED: no gdb; bazel/prepare --for=test installs it")
            return
        for command, wanted in _COMMANDS:
            with self.subTest(command=command):
                line = launcher.command_of(command, {"BYTEPS_ENABLE_GDB": "1"})
                output = self._lines_in_gdb(line)
                self.assertIn(wanted, output)
        crash = "kill -ABRT $$"
        for command in ([f"cd / && sh -c '{crash}'"], ["sh", "-c", crash]):
            line = launcher.command_of(command, {"BYTEPS_ENABLE_GDB": "1"})
            output = self._lines_in_gdb(line, status=255)
            self.assertRegex(
                "\n".join(output), r"received signal SIGABRT[\s\S]*#\d+ .* in (__GI_)?kill"
            )

    def _lines_in_gdb(self, line: str, status: int = 0) -> list[str]:
        done = subprocess.run(
            ["sh", "-c", line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "ROLE": "worker"},
            timeout=job.TIMEOUT_S,
            check=False,
        )
        self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout.splitlines()

    def test_a_checkout_without_wheels(self) -> None:
        """Ranks find both packages in it, as the launcher does."""
        clients = Path(job.TOOL).parents[1]
        with tempfile.TemporaryDirectory() as directory:
            made = Path(directory).resolve() / "clients"
            for name in ("launcher", "python"):
                shutil.copytree(clients / "byteps" / name, made / "byteps" / name)
            for name in ("c", "cli", "python"):
                (made / name).symlink_to(clients / name)
            variables = environment(DMLC_ROLE="worker")
            variables.pop("PYTHONPATH", None)
            program = "import byteps, talweg; print(byteps.__file__, talweg.__file__, sep=';')"
            launch = str(made / "byteps" / "launcher" / "launch.py")
            done = subprocess.run(
                [sys.executable, "-P", launch, sys.executable, "-P", "-c", program],
                env=variables,
                capture_output=True,
                text=True,
                timeout=job.TIMEOUT_S,
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            places = [Path(each).relative_to(made) for each in done.stdout.strip().split(";")]
        found = ["python/talweg/byteps/__init__.py", "python/talweg/__init__.py"]
        self.assertEqual([str(place) for place in places], found)


if __name__ == "__main__":
    unittest.main()
