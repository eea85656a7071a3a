# SPDX-License-Identifier: Apache-2.0
"""The launcher: the commands of BytePS's documents, its variables, its rules for cores."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import job
from talweg._compat.environment import Effect, VariableError
from talweg.byteps import _cores, _job, launcher
from talweg.byteps._environment import TABLE
from talweg.errors import Unsupported

_BYTEPS = Path(job.TOOL).parents[1] / "byteps"
_LAUNCH = [sys.executable, "-P", str(_BYTEPS / "launcher" / "launch.py")]
_PYTORCH = _BYTEPS / "example" / "pytorch"
_SMALL = ["--model", "resnet18", "--batch-size", "2", "--image-size", "32", "--num-iters", "2"]
_SMALL += ["--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-classes", "10"]

# Its rank needs no torch: what this asks of the package is told by numbers alone.
_PROGRAM = """
import os, sys
import numpy as np
import talweg
from talweg.byteps import common as bps
bps.init()
total = talweg.push_pull(np.full(4, bps.rank(), np.float32), op=talweg.Op.SUM, name="x")
assert (total == bps.size() * (bps.size() - 1) // 2).all()
line = f"rank {bps.rank()} of {bps.size()}, local {bps.local_rank()} of {bps.local_size()}"
print(line, sys.argv[1:], os.environ.get("BYTEPS_LOCAL_RANK"), flush=True)
talweg.barrier()
"""


def _environment(**variables: str) -> dict[str, str]:
    """This process's, without another job's, with python on the path as a user has it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BYTEPS_", "DMLC_"))}
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
    # The fewer threads, the less the ranks of a small machine are in each other's way.
    return {**kept, "OMP_NUM_THREADS": "1", **variables}


def _run(arguments: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """launch.py with these variables; whatever it has started ends with it."""
    return subprocess.run(
        [*_LAUNCH, *arguments],
        env=_environment(**variables),
        capture_output=True,
        text=True,
        timeout=job.TIMEOUT_S,
        check=False,
    )


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _shared(**variables: str) -> dict[str, str]:
    """What all processes of a job on this machine have."""
    return {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": _free_port(),
        **variables,
    }


class CommandsTest(unittest.TestCase):
    """As written in the tutorial, with ranks on CPUs."""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.program = self.directory / "a program.py"
        self.program.write_text(_PROGRAM)
        self.python = [sys.executable, str(self.program)]

    def _start(self, arguments: list[str], **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*_LAUNCH, *arguments],
            env=_environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        return process

    def test_one_worker_needs_nobody_else(self) -> None:
        """The addresses do not matter, and quoting is kept."""
        done = _run(
            [*self.python, "two words", "$HOME"],
            NVIDIA_VISIBLE_DEVICES="0,1",
            DMLC_WORKER_ID="0",
            DMLC_NUM_WORKER="1",
            DMLC_ROLE="worker",
            DMLC_NUM_SERVER="1",
            DMLC_PS_ROOT_URI="10.0.0.1",
            DMLC_PS_ROOT_PORT="1234",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = sorted(done.stdout.splitlines())
        self.assertEqual(lines[0], "rank 0 of 2, local 0 of 2 ['two words', '$HOME'] 0")
        self.assertEqual(lines[1], "rank 1 of 2, local 1 of 2 ['two words', '$HOME'] 1")
        if not launcher.gpu_count():
            self.assertEqual(done.stderr.count("2 ranks on CPUs"), 1)
        for role in ("server", "scheduler"):
            done = _run([], DMLC_ROLE=role, DMLC_NUM_WORKER="1")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("needs no " + role, done.stderr)

    def test_a_job_of_two_workers_in_any_order(self) -> None:
        """Everything ends by itself."""
        shared = _shared(NVIDIA_VISIBLE_DEVICES="0,1")
        workers = [
            self._start(self.python, **shared, DMLC_ROLE="worker", DMLC_WORKER_ID=str(worker))
            for worker in (1, 0)
        ]
        server = self._start([], **shared, DMLC_ROLE="server", MXNET_OMP_MAX_THREADS="4")
        scheduler = self._start([], **shared, DMLC_ROLE="scheduler")
        lines = []
        for process in (*workers, server, scheduler):
            output, _ = process.communicate(timeout=job.TIMEOUT_S)
            self.assertEqual(process.returncode, 0, output)
            lines += re.findall("rank .*", output)
        places = [f"rank {rank} of 4, local {rank % 2} of 2 [] {rank % 2}" for rank in range(4)]
        self.assertEqual(sorted(lines), places)

    def test_one_worker_that_is_forced_to_use_a_server(self) -> None:
        shared = _shared(DMLC_NUM_WORKER="1", BYTEPS_FORCE_DISTRIBUTED="1")
        shared["DMLC_USE_KUBERNETES"] = "1"  # Bound to all addresses, and told by one.
        shared |= {"BYTEPS_PARTITION_BYTES": "40960", "BYTEPS_SCHEDULING_CREDIT": "4"}
        worker = self._start(self.python, **shared, DMLC_ROLE="worker", DMLC_WORKER_ID="0")
        scheduler = self._start([], **shared, DMLC_ROLE="scheduler")
        server = self._start([], **shared, DMLC_ROLE="server", DMLC_PORT="0")
        for process in (worker, server, scheduler):
            output, _ = process.communicate(timeout=job.TIMEOUT_S)
            self.assertEqual(process.returncode, 0, output)

    def test_a_worker_that_fails_ends_the_job(self) -> None:
        shared = _shared()
        self.program.write_text(_PROGRAM + "if bps.rank() == 1: sys.exit(7)\ntalweg.barrier()\n")
        workers = [
            self._start(self.python, **shared, DMLC_ROLE="worker", DMLC_WORKER_ID=str(worker))
            for worker in (0, 1)
        ]
        scheduler = self._start([], **shared, DMLC_ROLE="scheduler")
        server = self._start([], **shared, DMLC_ROLE="server")
        codes = []
        for process in (*workers, scheduler, server):
            process.communicate(timeout=job.TIMEOUT_S)
            codes.append(process.returncode)
        self.assertEqual(codes[1], 7)
        self.assertTrue(all(code != 0 for code in codes), codes)

    def test_ctrl_c_ends_a_scheduler(self) -> None:
        shared = _shared()
        scheduler = self._start([], **shared, DMLC_ROLE="scheduler")
        of_scheduler = _job.job_of(shared, "scheduler", 1)
        _job.await_servers(dataclasses.replace(of_scheduler, servers=0), print)
        scheduler.send_signal(signal.SIGTERM)
        scheduler.communicate(timeout=job.TIMEOUT_S)
        self.assertEqual(scheduler.returncode, 130)

    def test_the_examples(self) -> None:
        start = str(_PYTORCH / "start_pytorch_byteps.sh")
        for kind in ("benchmark", "nobarrierbenchmark"):
            done = _run([start, *_SMALL], NVIDIA_VISIBLE_DEVICES="0,1", EVAL_TYPE=kind)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"Iter #1: \d+\.\d img/sec per [CG]PU")
            self.assertRegex(done.stdout, r"\nTotal img/sec on 2 [CG]PU\(s\): \d+\.\d \+-\d+\.\d")
            self.assertEqual(done.stdout.count("Iter #0"), 1)  # By local rank 0 alone.
        done = _run([start, "--epochs", "1"], EVAL_TYPE="mnist")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"Test set: Average loss: \d+\.\d+, Accuracy: \d+")
        done = _run([start], EVAL_TYPE="other")
        self.assertEqual(done.returncode, 1)
        self.assertIn("EVAL_TYPE is 'other'", done.stderr)

    def test_the_other_examples(self) -> None:
        for name in ("benchmark_byteps_ddp.py", "elastic_benchmark_byteps.py"):
            done = _run([sys.executable, str(_PYTORCH / name), *_SMALL, "--fp16-pushpull"])
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("Total img/sec on 1", done.stdout)

    def test_without_a_launcher(self) -> None:
        """Local rank 0 starts the node's agent; after suspend() it starts another."""
        self.program.write_text(
            _PROGRAM
            + textwrap.dedent(
                """
                before = bps.rank()
                bps.suspend()
                bps.resume(1, 1, before)
                talweg.push_pull(np.ones(3, np.float32), name="again")
                print(f"again {bps.rank()} of {bps.size()}", flush=True)
                """
            )
        )
        with tempfile.TemporaryDirectory(dir="/tmp") as sockets:
            ranks = [
                subprocess.Popen(
                    self.python,
                    env=_environment(
                        DMLC_WORKER_ID="0",
                        BYTEPS_LOCAL_RANK=str(rank),
                        BYTEPS_LOCAL_SIZE="2",
                        BYTEPS_SOCKET_PATH=sockets,
                    ),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                for rank in (1, 0)
            ]
            outputs = [rank.communicate(timeout=job.TIMEOUT_S)[0] for rank in ranks]
        self.assertIn("rank 1 of 2, local 1 of 2", outputs[0])
        self.assertIn("again 1 of 2", outputs[0])
        self.assertIn("again 0 of 2", outputs[1])

    def test_a_trace(self) -> None:
        self.program.write_text(
            _PROGRAM + "for _ in range(9): talweg.push_pull(np.ones(3, np.float32), name='often')\n"
        )
        done = _run(
            self.python,
            BYTEPS_TRACE_ON="1",
            BYTEPS_TRACE_START_STEP="2",
            BYTEPS_TRACE_END_STEP="4",
            BYTEPS_TRACE_DIR=str(self.directory),
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        trace = json.loads((self.directory / "0" / "comm.json").read_text())
        self.assertEqual([event["name"] for event in trace["traceEvents"]], ["Comm.often"] * 3)
        self.assertEqual(trace["displayTimeUnit"], "ms")
        for event in trace["traceEvents"]:
            self.assertEqual((event["ph"], event["cat"], event["tid"]), ("X", "Comm", "total"))

    def test_what_is_wrong_is_said(self) -> None:
        for variables, text in (
            ({"DMLC_ROLE": "Worker"}, "DMLC_ROLE is 'Worker'; it must be worker, server or"),
            (
                {"DMLC_ROLE": "scheduler", "DMLC_NUM_WORKER": "2"},
                "DMLC_NUM_SERVER and DMLC_PS_ROOT",
            ),
            ({"DMLC_NUM_WORKER": "2"}, "DMLC_NUM_SERVER and DMLC_PS_ROOT_URI"),
            (_shared(), "DMLC_WORKER_ID must be set"),
            (_shared(DMLC_WORKER_ID="2"), "DMLC_WORKER_ID is 2; .* must be 0 to 1"),
            ({"BYTEPS_ENABLE_ASYNC": "1"}, "BYTEPS_ENABLE_ASYNC=1 is not offered.*CrossBarrier"),
            ({"BYTEPS_PARTITION_BYTES": "100"}, "BYTEPS_PARTITION_BYTES is '100'; .* 4096 to"),
            ({"DMLC_ENABLE_RDMA": "ucx"}, "DMLC_ENABLE_RDMA=ucx is not offered"),
        ):
            with self.subTest(variables):
                done = _run(["true"], **variables)
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr, text)
        done = _run([])
        self.assertEqual(done.returncode, 1)
        self.assertIn("a worker needs a command", done.stderr)
        self.assertEqual(_run(["exit 3"]).returncode, 3)  # One argument is a line of shell.


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

    def test_misspelt_names(self) -> None:
        found = TABLE.misspelt({"BYTEPS_PARTITON_BYTES": "1", "DMLC_WORKERID": "0", "HOME": "/"})
        self.assertEqual(
            found,
            [
                ("BYTEPS_PARTITON_BYTES", "BYTEPS_PARTITION_BYTES"),
                ("DMLC_WORKERID", "DMLC_WORKER_ID"),
            ],
        )

    def test_what_has_no_effect_is_said_once(self) -> None:
        done = _run(["true"], BYTEPS_NCCL_NUM_RINGS="2", BYTEPS_LOG_LEVEL="INFO")
        self.assertEqual(done.stderr.count("BYTEPS_NCCL_NUM_RINGS has no effect: "), 1, done.stderr)
        done = _run(["true"], BYTEPS_NCCL_NUM_RINGS="2")
        self.assertNotIn("BYTEPS_NCCL_NUM_RINGS", done.stderr)

    def test_daemons_options(self) -> None:
        told = _job.daemon_variables(
            {
                "BYTEPS_PARTITION_BYTES": "100000",
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
                "TALWEG_CREDIT_BYTES": "400128",
                "TALWEG_INTERFACE": "eth5",
                "TALWEG_ADVERTISE": "10.0.0.7",
                "TALWEG_LOG_LEVEL": "debug",
            },
        )
        self.assertEqual(_job.daemon_variables({}), {"TALWEG_LOG_LEVEL": "warning"})
        self.assertEqual(_job.provider({"DMLC_ENABLE_RDMA": "ibverbs"}), "verbs")

    def test_which_node_a_global_rank_is_on(self) -> None:
        variables = {"BYTEPS_GLOBAL_RANK": "5", "BYTEPS_LOCAL_RANK": "1", "DMLC_WORKER_ID": "0"}
        self.assertEqual(_job.worker_of(variables, 2), 2)
        with self.assertRaisesRegex(VariableError, "BYTEPS_GLOBAL_RANK is 4"):
            _job.worker_of({"BYTEPS_GLOBAL_RANK": "4", "BYTEPS_LOCAL_RANK": "1"}, 2)

    def test_refusals_have_a_remedy(self) -> None:
        for variable in TABLE.by_name.values():
            if variable.effect is Effect.REFUSED:
                with self.assertRaises(Unsupported):
                    variable.check("1")


class CoresTest(unittest.TestCase):
    """Two NUMA nodes of sixteen cores with two threads each."""

    nodes = [[*range(16), *range(32, 48)], [*range(16, 32), *range(48, 64)]]

    def _plan(self, local_size: int, **variables: str) -> list[str] | None:
        plan = _cores.plan(variables, local_size, self.nodes, set(range(64)))
        return None if plan is None else [_cores.show(cores) for cores in plan]

    def test_eight_ranks(self) -> None:
        plan = self._plan(8)
        assert plan is not None
        self.assertEqual((plan[0], plan[7]), ("0-3,32-35", "28-31,60-63"))
        self.assertEqual(len({core for cores in plan for core in _cores.parse(cores)}), 64)

    def test_one_rank_gets_half_a_node(self) -> None:
        self.assertEqual(self._plan(1), ["0-7,32-39"])

    def test_quotas(self) -> None:
        plan = self._plan(2, BYTEPS_NUMA_DEFAULT_QUOTA="2", BYTEPS_NUMA_ROOT_QUOTA="3")
        self.assertEqual(plan, ["0-1,32-33", "2-4,34-36"])
        self.assertEqual(self._plan(2, BYTEPS_MULTITHREADED_CPU="0"), ["0-15,32-47", "16-31,48-63"])

    def test_cores_that_are_left_out(self) -> None:
        plan = self._plan(8, BYTEPS_CPU_BLACKLIST="0,2,33")
        assert plan is not None
        self.assertEqual(plan[0], "1,3-4,35-36")  # Also within a run of them.
        self.assertFalse({0, 2, 33} & {c for cores in plan for c in _cores.parse(cores)})

    def test_lists(self) -> None:
        self.assertEqual(
            self._plan(2, BYTEPS_VISIBLE_CPU_CORES="1,4-5,7-11,12:20-25"), ["1,4-5,7-12", "20-25"]
        )
        with self.assertRaisesRegex(VariableError, "has 2 sections; .* each of the 3 ranks"):
            self._plan(3, BYTEPS_VISIBLE_CPU_CORES="1:2")
        with self.assertRaisesRegex(VariableError, "no core that this process may use"):
            self._plan(1, BYTEPS_VISIBLE_CPU_CORES="99")

    def test_fewer_cores_than_ranks(self) -> None:
        self.assertIsNone(_cores.plan({}, 4, [[0, 1]], {0, 1}))
        self.assertIsNone(_cores.plan({}, 1, [], {0, 1}))

    def test_this_host(self) -> None:
        self.assertTrue(all(_cores.numa_nodes()))


if __name__ == "__main__":
    unittest.main()
