# SPDX-License-Identifier: Apache-2.0
"""Runs most scenarios of ./bench with tiny sizes. Each writes its results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

_RUNFILES = Path(os.environ["RUNFILES_DIR"]) / "talweg"
_BENCH = _RUNFILES / "benchmarks" / "bench.py"
_TIMEOUT_S = 600.0
# Eight processes that import torch, and what its optimizers import, are too much for every run.
_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"


def run(output: Path, *arguments: str) -> tuple[int, str]:
    """Runs ./bench in a session of its own. Returns its status and output."""
    line = [sys.executable, str(_BENCH), "--smoke", f"--binaries={_RUNFILES}", f"--output={output}"]
    process = subprocess.Popen(
        [*line, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=60)
        raise AssertionError(f"no end after {_TIMEOUT_S} s:\n{text}") from None
    return process.returncode, text


class SmokeTest(unittest.TestCase):
    scratch: tempfile.TemporaryDirectory[str]
    output: Path
    document: dict[str, Any]
    page: str

    @classmethod
    def setUpClass(cls) -> None:
        cls.scratch = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.output = Path(cls.scratch.name)
        scenarios = ["one_node", "aggregator_host", "own_aggregators", "shaped_links"]
        scenarios += ["long_links", "model_tensors", "first_step", "idle", "kernels"]
        scenarios += ["transports"]
        scenarios += ["lanes", "collectives", "fairness"]
        if _FULL:
            scenarios += ["growth", "recovery", "loss_curve"]
            scenarios += ["training_step", "training_step_hosts", "torch_backend", "local_steps"]
            scenarios += ["sparse", "compressed_steps"]
        status, text = run(cls.output, f"--scenario={','.join(scenarios)}", f"--beside={_RUNFILES}")
        if status != 0:
            raise AssertionError(f"exit {status}:\n{text}")
        cls.document = json.loads((cls.output / "results.json").read_text())
        cls.page = (cls.output / "results.md").read_text()

    def results(self, scenario: str, contender: str) -> list[dict[str, Any]]:
        return [
            each
            for each in self.document["results"]
            if (each["scenario"], each["contender"]) == (scenario, contender)
        ]

    def test_fairness(self) -> None:
        if "fairness" not in self.document["data"]:
            self.assertIn("is left out", "".join(self.document["notes"]))
            return
        for times in self.document["data"]["fairness"].values():
            self.assertGreater(min(times["alone_s"] + times["beside_s"]), 0)

    def test_another_build(self) -> None:
        for scenario in ("one_node", "aggregator_host", "shaped_links"):
            results = self.results(scenario, "Talweg, other build")
            self.assertTrue(results, scenario)
            for each in results:
                self.assertGreater(each["gigabytes_per_s_median"], 0)

    def test_ranks_of_one_node(self) -> None:
        for contender in ("Talweg", "Gloo", "memory limit"):
            results = self.results("one_node", contender)
            self.assertEqual([each["total_bytes"] for each in results], [4096, 65536], contender)
            for each in results:
                self.assertGreater(each["gigabytes_per_s_median"], 0)
                self.assertGreater(each["p99_s"], 0)
                # The kernel counts a running thread's time at its ticks, so 0 may be right here.
                self.assertGreaterEqual(each["cpu_s_per_gigabyte"], 0)
        self.assertIn("Gloo", self.results("one_node", "Talweg")[0]["ratios"])

    def test_aggregator_hosts(self) -> None:
        if not self.results("aggregator_host", "Talweg"):
            self.assertIn("is left out", "".join(self.document["notes"]))
            return
        ours = ("Talweg", "Talweg, own buffers", "Talweg, own TCP")
        for contender in (*ours, "socket server", "TCP limit"):
            results = self.results("aggregator_host", contender)
            self.assertEqual([each["total_bytes"] for each in results], [262144, 65536], contender)
            for each in results:
                self.assertGreater(each["gigabytes_per_s_median"], 0)
                self.assertEqual(len(each["wire_bytes_of_hosts"]), 3)
        # A server hears both hosts and answers both.
        for each in self.results("aggregator_host", "socket server"):
            self.assertGreater(each["wire_bytes_per_round"], 4 * each["total_bytes"])

    def test_an_aggregator_on_each_node(self) -> None:
        for each in self.results("own_aggregators", "Talweg"):
            sent = each["wire_bytes_of_hosts"]
            self.assertEqual(len(sent), 2)
            for host_bytes in sent:
                # With n = 2 it is half of the gradient and half of the results, and a little more.
                self.assertGreater(host_bytes, 0.99 * each["total_bytes"])
                self.assertLess(host_bytes, 1.5 * each["total_bytes"])

    def test_shaped_links(self) -> None:
        for each in self.results("shaped_links", "Talweg, own buffers"):
            # 1 Gb/s is 125 MB/s. A slow machine may not reach that.
            self.assertLess(each["extra"]["goodput_bytes_per_s"], 2.5e8)
            self.assertGreater(each["extra"]["optimum_s"], 0.001)
            self.assertIn("over_optimum", each["extra"])

    def test_links_with_delay(self) -> None:
        for contender in ("Talweg, own buffers", "socket server"):
            for each in self.results("long_links", contender):
                # The way takes 2 ms there and 2 ms back. No machine is faster.
                self.assertGreater(each["median_s"], 0.004)
                self.assertGreater(each["extra"]["of_optimum"], 0)

    def test_tensors_of_a_model(self) -> None:
        ours = self.results("model_tensors", "Talweg")
        merged = self.results("model_tensors", "Talweg, one tensor")
        self.assertEqual({each["tensor_count"] for each in ours}, {5})
        self.assertEqual({each["tensor_count"] for each in merged}, {1})
        self.assertEqual({each["total_bytes"] for each in ours + merged}, {69656})

    def test_lanes(self) -> None:
        for lanes in ("1 lane", "2 lanes"):
            [result] = self.results("lanes", lanes)
            self.assertEqual(result["failure"], "")
            self.assertGreater(result["gigabytes_per_s_median"], 0)

    @unittest.skipUnless(_FULL, "takes long: ./test --full")
    def test_growth(self) -> None:
        data = self.document["data"].get("growth", {})
        if not data:
            self.assertIn("is left out", "".join(self.document["notes"]))
            return
        self.assertEqual(sorted(data["members"]), ["1", "2"])
        self.assertEqual(sorted(data["jobs"]), ["1", "2"])
        for figures in (*data["members"].values(), *data["jobs"].values()):
            self.assertGreater(figures["gigabytes_per_s"], 0)
        for figures in data["jobs"].values():
            self.assertGreater(figures["socket_servers_cpu_s_per_gigabyte"], 0)
        self.assertEqual(len(data["tensors"]), 2)

    @unittest.skipUnless(_FULL, "takes long: ./test --full")
    def test_kills_and_returns(self) -> None:
        data = self.document["data"]["recovery"]
        kinds = ("rank", "agent", "aggregator", "scheduler", "host cut off", "rank with torch")
        for kind in kinds:
            self.assertEqual(len(data[kind]["loss_s"]), 1, kind)
        for kind in ("rank", "agent", "host cut off", "rank with torch"):
            self.assertGreater(data[kind]["enter_s"][0], 0, kind)
        self.assertEqual(len(data["large_state"]["enter_s"]), 1)
        for figures in data["catching_up"].values():
            self.assertEqual(len(figures["enter_s"]), 1)
            self.assertGreater(figures["longest_s"][0], figures["usual_s"][0])
            self.assertGreater(figures["pause_steps"][0], 0)
        bars = [each["text"] for each in self.document["bars"]]
        pauses = [text for text in bars if "the longest pause of a survivor" in text]
        self.assertEqual(len(pauses), 2, bars)

    @unittest.skipUnless(_FULL, "takes long: ./test --full")
    def test_the_loss_between_kills(self) -> None:
        data = self.document["data"]["loss_curve"]
        self.assertEqual(len(data["killed"]["kills"]), 1)
        self.assertEqual(len(data["killed"]["losses"]), len(data["undisturbed"][0]))
        self.assertTrue((self.output / "loss_curve.png").exists())

    @unittest.skipUnless(_FULL, "it imports torch twelve times")
    def test_local_steps(self) -> None:
        data = self.document["data"].get("local_steps")
        if not data:
            self.assertIn("is left out", "".join(self.document["notes"]))
            return
        self.assertEqual(len(data), 6)
        for figures in data.values():
            self.assertGreater(figures["step_s"], 0)
        # Headers are most of what travels here.
        synchronous, local = (data[name]["wire_bytes"] for name in ("synchronous", "LocalSGD"))
        self.assertLess(local, synchronous)

    def test_the_first_step(self) -> None:
        figures = self.document["data"]["first_step"]["4 MiB in 2"]
        self.assertEqual(len(figures["others"]), 5)
        self.assertGreater(figures["kernel"], 0)

    def test_idle_daemons(self) -> None:
        self.assertIn("talweg-agent", self.document["data"]["idle"]["one node"])

    def test_kernels(self) -> None:
        speeds = self.document["data"]["kernels"]["bytes_per_s"]
        self.assertGreater(speeds["Copy/196608"], 0)
        self.assertEqual(len(speeds), 4)
        self.assertIn("/f32/sum | ", self.page)

    def test_transports(self) -> None:
        speeds = self.document["data"]["transports"]
        self.assertEqual(len(speeds), 5)
        self.assertGreater(min(speeds.values()), 0)
        for text in ("none over libfabric's tcp", "tls over none"):
            self.assertIn(f"64 KiB a write: {text}, GB/s", self.page)

    @unittest.skipUnless(_FULL, "takes long: ./test --full")
    def test_training_steps(self) -> None:
        (steps,) = self.document["data"]["training_step"].values()
        self.assertEqual(len(steps), 5)
        for name, figures in steps.items():
            self.assertGreater(figures["step_s"], 0, name)

    @unittest.skipUnless(_FULL, "takes long: ./test --full")
    def test_training_steps_on_hosts(self) -> None:
        (steps,) = self.document["data"]["training_step_hosts"].values()
        self.assertIn(len(steps), (3, 4))  # Horovod may not be there.
        for name, figures in steps.items():
            self.assertGreater(figures["step_s"], 0, name)

    @unittest.skipUnless(_FULL, "takes long: ./test --full")
    def test_compressed_steps(self) -> None:
        (steps,) = self.document["data"]["compressed_steps"].values()
        self.assertEqual(len(steps), 7)
        for name, figures in steps.items():
            self.assertGreater(figures["step_s"], 0, name)

    @unittest.skipUnless(_FULL, "takes long: ./test --full")
    def test_sparse_sums(self) -> None:
        figures = self.document["data"]["sparse"]["1 node, 4 ranks"]["zipf, 300 rows"]
        self.assertEqual(len(figures), 3)
        for name, each in figures.items():
            self.assertGreater(each["median_s"], 0, name)

    def test_collectives(self) -> None:
        for contender in ("Talweg", "Gloo"):
            results = self.results("collectives", contender)
            cases = {each["case"] for each in results if "ranks" in each["setting"]}
            calls = ("all_gather", "reduce_scatter", "all_to_all", "all_reduce")
            sizes = ("4 KiB", "64 KiB")
            self.assertEqual(cases, {f"{call}, {size}" for call in calls for size in sizes})
            for each in results:
                self.assertGreater(each["gigabytes_per_s_median"], 0)
        between = [each for each in self.document["results"] if "hosts, 1" in each["setting"]]
        for each in between:
            if each["scenario"] == "collectives":
                # 1 Gb/s is 125 MB/s, and half of the bytes cross a link.
                self.assertGreater(each["extra"]["optimum_s"], 0.0005)
                self.assertIn("over_link", each["extra"])

    @unittest.skipUnless(_FULL, "takes long: ./test --full")
    def test_a_backend_of_torch(self) -> None:
        data = self.document["data"]["torch_backend"]
        self.assertEqual(len(data["tiny, batch 2"]), 5)
        for name, figures in data["tiny, batch 2"].items():
            self.assertGreater(figures["step_s"], 0, name)
        self.assertEqual(sorted(data["all_reduce, 4 KiB"]), ["Gloo", "Talweg"])
        for figures in data.get("2 hosts, 1 Gb/s", {}).values():  # If networks are allowed here.
            self.assertGreater(figures["optimum_s"], 0)

    def test_a_result_names_its_circumstances(self) -> None:
        for key in ("commit", "cpu", "kernel", "load_at_start"):
            self.assertIn(key, self.document["machine"])
        self.assertIn("--smoke", self.document["command"])
        self.assertEqual(self.document["congestion_control"], "reno")
        self.assertIn("--smoke", self.page)

    def test_a_fake_gpu(self) -> None:
        output = self.output / "gpu"
        scenarios = "gpu_device,gpu_push_pull,gpu_training_step" if _FULL else "gpu_device"
        status, text = run(output, "--gpu", f"--scenario={scenarios}")
        self.assertEqual(status, 0, text)
        data = json.loads((output / "results.json").read_text())["data"]
        figures = data["gpu_device"]
        if _FULL:
            self.assertGreater(data["gpu_push_pull"]["peer_bytes_per_s"], 0)
            self.assertEqual(len(data["gpu_training_step"]["tiny, batch 2"]), 5)
        self.assertIn("Fake GPU", figures["gpu"])
        kinds = ("Down", "Up", "AtOnce", "BothWays", "Copy", "Reduce/f32", "Reduce/bf16")
        for kind in (*kinds, "Peer", "PeerBothWays"):
            found = [name for name in figures["bytes_per_s"] if name.startswith(f"{kind}/")]
            self.assertEqual(len(found), 1, kind)

    def _run_without_a_gpu(self, binaries: Path) -> str:
        output = self.output / "none"
        line = [sys.executable, str(_BENCH), "--quick", "--gpu", f"--binaries={binaries}"]
        done = subprocess.run(
            [*line, f"--output={output}"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            check=False,
        )
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertFalse((output / "results.json").exists())  # No scenario was begun.
        return done.stderr

    def test_without_a_gpu_it_says_what_is_missing(self) -> None:
        if (Path("/dev") / "nvidiactl").exists():
            return
        self.assertIn("no NVIDIA driver", self._run_without_a_gpu(_RUNFILES))

    def test_a_torch_without_gpus_is_named_at_once(self) -> None:
        binaries = self.output / "binaries"
        benchmark = binaries / "libs" / "gpu" / "testing" / "device_benchmark"
        benchmark.parent.mkdir(parents=True)
        benchmark.write_text("#!/bin/sh\n")  # In this test there is a GPU.
        benchmark.chmod(0o755)
        self.assertIn("sees no GPU: put one", self._run_without_a_gpu(binaries))

    def test_an_unknown_scenario_is_refused(self) -> None:
        status, text = run(self.output, "--scenario=nowhere")
        self.assertEqual(status, 2)
        self.assertIn("there is no scenario 'nowhere'; there are: one_node, ", text)

    def test_a_build_that_is_not_there_is_refused(self) -> None:
        status, text = run(self.output, "--beside=/nowhere")
        self.assertEqual(status, 2)
        self.assertIn("--beside: /nowhere/clients/cli/talweg is not there; build ", text)


if __name__ == "__main__":
    if os.environ.get("TALWEG_SANITIZER"):
        print("SKIPPED: peers that are not built with a sanitizer cannot run with its runtime")
        sys.exit(0)
    unittest.main()
