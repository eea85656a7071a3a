# SPDX-License-Identifier: Apache-2.0
"""Tests talweg.horovod with one rank, on one node and on two; also its variables and its page."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import tempfile
import unittest
from typing import ClassVar

import horovod
import horovod.torch
import job
import talweg.horovod.torch
from horovod.common import util
from horovod.common.exceptions import HorovodInternalError
from talweg._compat.environment import VariableError
from talweg.horovod._environment import TABLE, agent_variables, says
from torch_forks import TorchForks


def setUpModule() -> None:
    assert horovod.torch is talweg.horovod.torch


class HorovodTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks()
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def test_alone(self) -> None:
        for program in ("horovod_torch.py", "horovod_collectives.py", "horovod_adasum.py"):
            line = [sys.executable, "-P", *self.forks.prefix, str(job.PROGRAMS / program)]
            job.run(line)

    def test_one_node(self) -> None:
        job.run(job.command("horovod_torch.py", ranks=2, forks=self.forks))

    def test_two_nodes(self) -> None:
        job.run(job.command("horovod_torch.py", nodes=2, ranks=(2, 1), forks=self.forks))

    def test_compiled_steps(self) -> None:
        job.run(job.command("compat_compiled.py", ["horovod"], ranks=2, forks=self.forks))

    def test_collectives(self) -> None:
        for nodes, ranks in ((1, 2), (2, (2, 1))):
            line = job.command("horovod_collectives.py", nodes=nodes, ranks=ranks, forks=self.forks)
            job.run(line)

    def test_adasum(self) -> None:
        for nodes, ranks in ((1, 3), (2, 2)):
            line = job.command("horovod_adasum.py", nodes=nodes, ranks=ranks, forks=self.forks)
            job.run(line)

    def test_join(self) -> None:
        program = "horovod_join.py"
        line = [sys.executable, "-P", *self.forks.prefix, str(job.PROGRAMS / program), "none"]
        job.run(line)
        goes_on = ["--loss-policy=continue"]  # With it ranks tell names in another way.
        for nodes, ranks, options in (
            (1, 2, []),
            (1, 3, []),
            (2, (2, 1), []),
            (2, (2, 1), goes_on),
        ):
            with tempfile.TemporaryDirectory(prefix="talweg.") as directory:
                told = [f"{directory}/checked"]
                line = job.command(
                    program, told, nodes=nodes, ranks=ranks, options=options, forks=self.forks
                )
                job.run(line)

    def test_lives(self) -> None:
        for nodes, ranks in ((1, 2), (2, 1)):
            job.run(job.command("horovod_lives.py", nodes=nodes, ranks=ranks, forks=self.forks))

    def test_ranks_that_disagree(self) -> None:
        for nodes, ranks, options in (
            (1, 2, []),
            (2, 1, []),
            (2, 1, ["--loss-policy=continue"]),  # With it calls without a name take names in turn.
        ):
            line = job.command(
                "compat_disagreement.py",
                nodes=nodes,
                ranks=ranks,
                options=options,
                forks=self.forks,
            )
            job.run(line)

    def test_shapes_that_differ(self) -> None:
        """Tensors of one name differ in shape, not in length, in each call of NumPy and torch."""
        for nodes, ranks in ((1, 2), (2, 1)):
            line = job.command("shapes_that_differ.py", nodes=nodes, ranks=ranks, forks=self.forks)
            job.run(line)

    def test_the_name(self) -> None:
        """Both names are the same module, so there is one state."""
        self.assertIs(horovod.torch.HorovodInternalError, HorovodInternalError)
        self.assertIs(sys.modules["horovod.torch"], sys.modules["talweg.horovod.torch"])
        self.assertIs(horovod, talweg.horovod)

    def test_what_horovods_own_modules_use(self) -> None:
        self.assertEqual(util.split_list([*range(7)], 3), [[0, 1, 2], [3, 4], [5, 6]])
        self.assertEqual(util.split_list([1], 2), [[1], []])
        powers = [number for number in range(-2, 10) if util.num_rank_is_power_2(number)]
        self.assertEqual(powers, [1, 2, 4, 8])
        self.assertTrue(util.is_iterable("") and util.is_iterable(range(2)))
        self.assertFalse(util.is_iterable(7))
        util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
        with self.assertRaisesRegex(ImportError, "horovod.cobol is not offered by Talweg: import"):
            util.check_extension("horovod.cobol", "HOROVOD_WITH_COBOL", __file__, "mpi_lib")
        for name, remedy in (
            ("horovod._keras", "horovod.keras or horovod.tensorflow.keras"),
            ("horovod._keras.callbacks", "horovod.keras or horovod.tensorflow.keras"),
            ("byteps._keras", "byteps.keras or byteps.tensorflow.keras"),
        ):
            with self.assertRaisesRegex(ModuleNotFoundError, f"is not offered by .*{remedy}"):
                importlib.import_module(name)

    def test_variables(self) -> None:
        TABLE.check({"HOROVOD_FUSION_THRESHOLD": "1024", "HOROVOD_LOG_LEVEL": "DEBUG"})
        with self.assertRaisesRegex(VariableError, "HOROVOD_START_TIMEOUT is 'x'; it must be 1 to"):
            TABLE.check({"HOROVOD_START_TIMEOUT": "x"})
        program = "import horovod.torch as hvd; hvd.init()"
        done = self.alone(program, HOROVOD_ELASTIC="1")
        self.assertIn(
            "this job's nodes stay: start the program by horovodrun --min-np", done.stderr
        )
        for text, is_set in (
            ("1", True),
            ("true", True),
            ("True", True),
            ("0", False),
            ("false", False),
        ):
            told = {"HOROVOD_LOG_HIDE_TIME": text}
            self.assertEqual(TABLE.switch(told, "HOROVOD_LOG_HIDE_TIME"), is_set, text)
        misspelt = TABLE.misspelt({"HOROVOD_TIMELIN": "x", "HOROVOD_TIMELINE": "x"})
        self.assertEqual(misspelt, [("HOROVOD_TIMELIN", "HOROVOD_TIMELINE")])
        # Those with which Horovod is built.
        built = ("GPU_OPERATIONS", "WITH_PYTORCH", "WITHOUT_GLOO", "CCL_CACHE", "NCCL_HOME")
        told = {f"HOROVOD_{name}": "NCCL" for name in built}
        self.assertEqual(TABLE.misspelt(told), [])
        TABLE.check(told)

    def test_process_sets_that_a_variable_makes_dynamic(self) -> None:
        program = "from talweg.horovod.common import basics, process_sets; basics.init(); "
        program += "process_sets.add_process_set([0])"
        for told, text in (
            ("0", "process sets are not dynamic"),
            ("1", "a process set of ranks [0] is registered already"),
        ):
            done = self.alone(program, HOROVOD_DYNAMIC_PROCESS_SETS=told)
            self.assertIn(text, done.stderr)

    def alone(self, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-c", program],
            env=dict(os.environ, **variables),
            capture_output=True,
            text=True,
            timeout=job.TIMEOUT_S,
            check=False,
        )

    def test_variables_are_reported_once_a_node(self) -> None:
        for name in ("HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"):
            self.assertFalse(says({name: "1", "LOCAL_RANK": ""}))
            self.assertTrue(says({name: "0"}))
        self.assertTrue(says({}))
        line = [sys.executable, "-P", "-m", "talweg.horovod.runner", "-np", "3", sys.executable]
        program = "from talweg.horovod.common import basics; basics.init()"
        said = job.run([*line, "-P", "-c", program], {"HOROVOD_TIMELIN": "x"})
        self.assertEqual(said.count("HOROVOD_TIMELIN is not a known variable"), 1, said)

    def test_stalled_ranks(self) -> None:
        """A rank that does not come ends the job, on one node and on two."""
        horovodrun = [sys.executable, "-P", "-m", "talweg.horovod.runner", "-np", "2"]
        horovodrun += ["--stall-check-shutdown-time-seconds=1"]
        forked = [sys.executable, "-P", *self.forks.prefix, str(job.PROGRAMS / "horovod_stall.py")]
        two_nodes = job.command("horovod_stall.py", nodes=2, ranks=(2, 1), forks=self.forks)
        for line, env in (
            ([*horovodrun, *forked], {}),
            (two_nodes, {"TALWEG_STALL_MS": "1000"}),
        ):
            with tempfile.TemporaryDirectory(prefix="talweg.") as directory:
                output = job.run([*line, "late", f"{directory}/told"], env, check=False)
            for rank in (0, 1, 2)[: 2 if env == {} else 3]:
                self.assertIn(f"rank {rank} has heard of it", output)

    def test_ranks_that_have_joined_do_not_stall(self) -> None:
        for nodes, ranks in ((1, 2), (2, 1)):
            told = ["joined", "0.3"]
            line = job.command("horovod_stall.py", told, nodes=nodes, ranks=ranks, forks=self.forks)
            self.assertIn("round 1", job.run(line, {"TALWEG_STALL_MS": "300"}))

    def test_what_agents_are_told_of_stalls(self) -> None:
        def told(**variables: str) -> dict[str, str]:
            given = {f"HOROVOD_STALL_{name}": value for name, value in variables.items()}
            return agent_variables(given)

        self.assertEqual(told(), {})
        self.assertEqual(told(SHUTDOWN_TIME_SECONDS="0"), {})
        self.assertEqual(told(SHUTDOWN_TIME_SECONDS="9"), {"TALWEG_STALL_MS": "9000"})
        self.assertEqual(
            told(SHUTDOWN_TIME_SECONDS="9", CHECK_TIME_SECONDS="30"),
            {"TALWEG_STALL_MS": "30000", "TALWEG_STALL_NOTICE_MS": "30000"},
        )
        week = str(7 * 24 * 3600 * 1000)
        self.assertEqual(told(SHUTDOWN_TIME_SECONDS="2147483647"), {"TALWEG_STALL_MS": week})
        self.assertEqual(
            told(SHUTDOWN_TIME_SECONDS="9", CHECK_DISABLE="1"), {"TALWEG_STALL_NOTICE_MS": "0"}
        )
        # The agents' own variable wins.
        given = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9", "TALWEG_STALL_MS": "5"}
        self.assertEqual(agent_variables(given), {"TALWEG_STALL_MS": "5"})

    def test_misspelt_variables_are_warned_of(self) -> None:
        log = logging.getLogger("test")
        with self.assertLogs(log, "WARNING") as caught:
            TABLE.say({"HOROVOD_TIMELIN": "x"}, log)
        [misspelt] = caught.output
        self.assertIn("did you mean HOROVOD_TIMELINE?", misspelt)

    def test_xla_is_warned_of(self) -> None:
        log = logging.getLogger("test")
        with self.assertLogs(log, "WARNING") as caught:
            TABLE.say({"HOROVOD_ENABLE_XLA_OPS": "1"}, log)
        [said] = caught.output
        self.assertIn("HOROVOD_ENABLE_XLA_OPS has no effect: XLA cannot compile", said)
        self.assertIn("jit_compile=False", said)
        self.assertIn("A warning says so. |", TABLE.page())

    def test_somebody_elses_launcher(self) -> None:
        """Without an error each rank of another launcher would train alone."""
        program = "import horovod.torch as hvd; hvd.init()"
        done = self.alone(program, HOROVOD_RANK="1", HOROVOD_SIZE="2")
        self.assertEqual(done.returncode, 1)
        self.assertIn("talweg run", done.stderr)


if __name__ == "__main__":
    unittest.main()
