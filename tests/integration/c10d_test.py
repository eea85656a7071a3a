# SPDX-License-Identifier: Apache-2.0
"""Tests that calls and training with torch.distributed give the same over Talweg as over Gloo."""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar

import job
from torch_forks import TorchForks

# Modules that torch imports at first use, which would take a second at each rank.
_USED_BY_TRAINING = (
    "torch._inductor.compile_fx",
    "torch.distributed.checkpoint",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
)
_PAGE = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "docs" / "torch.md"
_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"
_long = unittest.skipUnless(_FULL, "takes long: ./test --full")
_EXAMPLES = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "examples"


class C10dTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks(("torch", *_USED_BY_TRAINING))
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def test_calls_on_one_node(self) -> None:
        job.run(job.command("c10d_calls.py", ranks=2, forks=self.forks))

    def test_calls_on_two_nodes(self) -> None:
        job.run(job.command("c10d_calls.py", nodes=2, ranks=2, aggregators=1, forks=self.forks))

    def test_each_dtype(self) -> None:
        job.run(job.command("c10d_dtypes.py", ranks=2, forks=self.forks))
        job.run(job.command("c10d_dtypes.py", nodes=3, ranks=1, aggregators=1, forks=self.forks))

    def test_training_on_one_node(self) -> None:
        job.run(job.command("c10d_training.py", ranks=4 if _FULL else 2, forks=self.forks))

    @_long
    def test_training_on_two_nodes(self) -> None:
        job.run(job.command("c10d_training.py", nodes=2, ranks=1, aggregators=1, forks=self.forks))

    def test_calls_in_callbacks(self) -> None:
        job.run(job.command("c10d_callbacks.py", nodes=2, ranks=2, aggregators=1, forks=self.forks))

    @_long
    def test_calls_in_callbacks_on_one_node(self) -> None:
        job.run(job.command("c10d_callbacks.py", ranks=3, forks=self.forks))

    def test_what_few_programs_use(self) -> None:
        job.run(job.command("c10d_forms.py", ranks=2, forks=self.forks))
        job.run(job.command("c10d_forms.py", nodes=3, ranks=1, aggregators=1, forks=self.forks))

    def test_what_the_page_lists(self) -> None:
        for nodes, ranks in ((1, 2), (2, 1))[: 2 if _FULL else 1]:
            aggregators = 1 if nodes > 1 else None
            line = job.command(
                "c10d_listed.py",
                nodes=nodes,
                ranks=ranks,
                aggregators=aggregators,
                forks=self.forks,
            )
            self.assertEqual(len(re.findall(r"rank \d: \d+ work, \d+ raise", job.run(line))), 2)

    def test_the_page_names_each_call_of_torch(self) -> None:
        import torch.distributed

        text = re.sub("```.*?```", "", _PAGE.read_text(), flags=re.DOTALL)
        named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))))
        for name, member in vars(torch.distributed).items():
            is_torchs = str(getattr(member, "__module__", "")).startswith("torch")
            if callable(member) and is_torchs and not name.startswith("_"):
                with self.subTest(name=name):
                    self.assertIn(name, named)

    def test_uncommon_tensors(self) -> None:
        job.run(job.command("c10d_tensors.py", ranks=2, forks=self.forks))
        job.run(job.command("c10d_tensors.py", nodes=3, ranks=1, aggregators=1, forks=self.forks))

    @_long
    def test_collectives_that_inductor_compiles(self) -> None:
        header = Path(sysconfig.get_path("include")) / "Python.h"
        if shutil.which("g++") is None or not header.is_file():
            self.skipTest(f"SKIPPED: Inductor needs g++ and {header}")
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as cache:
            env = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
            output = job.run(job.command("c10d_forms.py", ["inductor"], forks=self.forks), env)
        self.assertEqual(output.count("1 cases alike"), 2, output)

    def test_algorithms(self) -> None:
        job.run(job.command("c10d_algorithms.py", ranks=4, forks=self.forks))

    def test_errors_and_what_gloo_has_not(self) -> None:
        job.run(job.command("c10d_errors.py", ranks=3, forks=self.forks))

    def test_what_torch_and_callers_are_told(self) -> None:
        for nodes, ranks in ((1, 3), (2, 2), (3, 1))[: 3 if _FULL else 2]:
            with self.subTest(nodes=nodes, ranks=ranks):
                aggregators = 1 if nodes > 1 else None
                job.run(
                    job.command(
                        "c10d_alone.py",
                        nodes=nodes,
                        ranks=ranks,
                        aggregators=aggregators,
                        forks=self.forks,
                    )
                )

    def test_calls_that_do_not_fit_together_on_three_nodes(self) -> None:
        arguments = ["disagreements"]
        job.run(
            job.command(
                "c10d_errors.py", arguments, nodes=3, ranks=1, aggregators=1, forks=self.forks
            )
        )

    def test_messages_with_many_tags(self) -> None:
        job.run(job.command("c10d_messages.py", ranks=3, forks=self.forks))
        job.run(job.command("c10d_messages.py", nodes=3, ranks=1, aggregators=1, forks=self.forks))

    def test_calls_that_are_interrupted(self) -> None:
        for nodes, ranks in ((1, 2), (2, 1)):
            job.run(job.command("c10d_interrupted.py", nodes=nodes, ranks=ranks, forks=self.forks))

    def test_senders_that_leave(self) -> None:
        job.run(job.command("c10d_any_source.py", ranks=3, forks=self.forks))
        job.run(
            job.command("c10d_any_source.py", nodes=3, ranks=1, aggregators=1, forks=self.forks)
        )

    def _loss_of(self, example: str, pattern: str) -> float:
        program = str(_EXAMPLES / example)
        line = job.command(program, nodes=2, ranks=2, aggregators=1, forks=self.forks)
        output = job.run(line)
        found = re.search(pattern, output)
        assert found is not None, output
        return float(found[1])

    def test_example_of_ddp(self) -> None:
        loss = self._loss_of("ddp.py", r"loss (\S+) on 4 ranks, weights alike: True")
        self.assertLess(loss, 0.3)

    def test_example_of_fsdp(self) -> None:
        loss = self._loss_of("fsdp.py", r"loss (\S+) on 4 ranks, each keeps 2[45678] % of")
        self.assertLess(loss, 0.3)


if __name__ == "__main__":
    unittest.main()
