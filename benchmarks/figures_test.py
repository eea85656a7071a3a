# SPDX-License-Identifier: Apache-2.0
"""Tests the arithmetic of ./bench's results, and how they are written."""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import figures, google_benchmark, links, report
from harness.contender import Batch, Contender
from harness.measure import Result, add_ratios, summarize
from harness.scenario import fastest, find, ratio_bar
from harness.scenarios import (
    gpu_device,
    gpu_push_pull,
    growth,
    kernels,
    one_node,
    priorities,
    transports,
)


def result(contender: str, gigabytes_per_s: float = 0.0, case: str = "1 MB") -> Result:
    made = Result("one_node", "2 ranks", case, contender, "f32", 2, 1, 1_000_000)
    if gigabytes_per_s:
        batch = Batch(1, 0.001 / gigabytes_per_s, [0.001, 0.002], 0.004, [1e6, 2e6])
        summarize(made, [batch], 12_000_000)
    return made


class FiguresTest(unittest.TestCase):
    def test_sizes(self) -> None:
        sizes = {"4096": 4096, "4KiB": 4096, "25MB": 25_000_000, "1 GB": 10**9}
        for text, count in sizes.items():
            self.assertEqual(figures.parse_bytes(text), count)
        for bad in ("", "MB", "-4", "4.5MB", "4 kb"):
            with self.assertRaises(ValueError, msg=bad):
                figures.parse_bytes(bad)
        for text in ("4 KiB", "25 MB", "64 MiB", "256 MB", "1 GB"):
            self.assertEqual(figures.format_bytes(figures.parse_bytes(text)), text)
        self.assertEqual(figures.format_bytes(1234), "1.23 KB")
        self.assertEqual(figures.format_bytes(48882 << 10), "50.1 MB")
        self.assertEqual(figures.format_bytes(0), "0 B")

    def test_seconds(self) -> None:
        self.assertEqual(figures.format_seconds(1.5), "1.5 s")
        self.assertEqual(figures.format_seconds(0.0251), "25.1 ms")
        self.assertEqual(figures.format_seconds(2.5e-6), "2.5 us")
        self.assertEqual(figures.format_seconds(4e-8), "40 ns")

    def test_median_and_quantile(self) -> None:
        self.assertEqual(figures.median([3, 1, 2]), 2)
        self.assertEqual(figures.median([4, 1, 2, 3]), 2.5)
        self.assertEqual(figures.quantile(range(1, 101), 0.99), 99)
        self.assertEqual(figures.quantile(range(1, 101), 0.5), 50)
        self.assertEqual(figures.quantile([7], 0.99), 7)
        for function in (figures.median, lambda values: figures.quantile(values, 0.5)):
            with self.assertRaises(ValueError):
                function([])

    def test_an_interval_holds_most_draws(self) -> None:
        values = [3.0, 1.0, 2.0, 9.0, 4.0, 5.0, 6.0]

        def estimate(drawn: Sequence[int]) -> float:
            return figures.median([values[i] for i in drawn])

        lowest, highest = figures.interval(estimate, len(values))
        self.assertEqual((lowest, highest), figures.interval(estimate, len(values)))
        self.assertTrue(1 < lowest < figures.median(values) < highest < 9, (lowest, highest))
        self.assertEqual(figures.interval(estimate, len(values), share=1), (1, 9))
        self.assertEqual(figures.interval(lambda drawn: 8.0, 3), (8, 8))

    def test_rounds_fill_the_wanted_time(self) -> None:
        self.assertEqual(figures.rounds_for(0.01, 0.25, 1, 5000), 25)
        self.assertEqual(figures.rounds_for(10, 0.25, 1, 5000), 1)
        self.assertEqual(figures.rounds_for(1e-9, 0.25, 1, 5000), 5000)
        self.assertEqual(figures.rounds_for(0, 0.25, 1, 5000), 5000)

    def test_a_curve_has_both_ends_and_whole_elements(self) -> None:
        sizes = figures.curve(4096, 64 << 20, 2)
        self.assertEqual((sizes[0], sizes[-1]), (4096, 64 << 20))
        self.assertEqual([size % 4 for size in sizes], [0] * len(sizes))
        self.assertEqual(len(sizes), 9)


class OptimumTest(unittest.TestCase):
    """BytePS's formula, compared with a count of the bytes of every link."""

    def test_the_busiest_link_takes_that_long(self) -> None:
        for hosts in (2, 3, 4, 8):
            for servers in range(hosts + 1):
                server_share, host_share = figures.optimal_shares(hosts, servers)
                self.assertAlmostEqual(servers * server_share + hosts * host_share, 1)
                self.assertGreaterEqual(host_share, 0)
                # In each direction a server hears every host. A host sends all that it does not sum
                # itself, and the results of its own share to all others.
                server_bytes = hosts * server_share
                host_bytes = (1 - host_share) + (hosts - 1) * host_share
                best = figures.optimum_s(hosts, servers, 1.0, 1.0)
                self.assertAlmostEqual(host_bytes, best)
                if servers:
                    self.assertAlmostEqual(server_bytes, best)

    def test_ends_of_the_formula(self) -> None:
        self.assertAlmostEqual(figures.optimum_s(4, 0, 100, 10), figures.ring_s(4, 100, 10))
        self.assertAlmostEqual(figures.optimum_s(4, 4, 100, 10), 10)
        # With more servers than hosts, a host still has to send its whole gradient.
        self.assertEqual(figures.optimum_s(4, 9, 100, 10), figures.optimum_s(4, 4, 100, 10))
        self.assertEqual(figures.optimum_s(1, 2, 100, 10), 0)


class ResultsTest(unittest.TestCase):
    def test_a_batch_becomes_figures(self) -> None:
        made = result("Talweg")
        batches = [
            Batch(10, elapsed_s, [elapsed_s / 10] * 20, cpu_s, wire)
            for elapsed_s, cpu_s, wire in (
                (0.01, 0.04, [2e7, 1e7]),
                (0.02, 0.02, [2e7, 1e7]),
                (0.04, 0.06, [3e7, 0]),
            )
        ]
        summarize(made, batches, 5_000_000)
        self.assertAlmostEqual(made.gigabytes_per_s_median, 0.5)  # 10 MB in 20 ms.
        self.assertAlmostEqual(made.median_s, 0.002)
        self.assertAlmostEqual(made.p99_s, 0.004)
        tail = [Batch(50, 1.0, [0.001] * 94 + [0.002] * 4 + [0.003] * 2, 0.0, [])]
        summarize(late := result("Talweg"), tail, 0)
        self.assertAlmostEqual(late.p99_s, 0.003)
        self.assertAlmostEqual(made.cpu_s_per_gigabyte, 2.0)  # 40 ms for 2 workers' 10 MB.
        self.assertEqual(made.wire_bytes_per_round, 3e6)
        self.assertEqual(made.wire_bytes_of_hosts, [2e6, 1e6])
        summarize(unknown := result("Talweg"), [Batch(1, 1, [1], 1, [])], 0)
        self.assertIsNone(unknown.wire_bytes_per_round)
        self.assertEqual((made.rounds, made.memory_bytes), (10, 5_000_000))

    def test_ratios_stay_within_a_case(self) -> None:
        results = [
            result("Talweg", 6),
            result("Gloo", 2),
            result("Gloo", 1, "4 KiB"),
            result("MPI"),
        ]
        add_ratios(results)
        self.assertEqual({k: round(v, 9) for k, v in results[0].ratios.items()}, {"Gloo": 3})
        self.assertEqual(results[2].ratios, {})

    def test_ranks_of_one_node_are_measured_by_their_faster_mode(self) -> None:
        def measured(own_buffers: float) -> dict[str, float | None]:
            results = []
            for contender, speed in {
                "Talweg": 3.0,
                "Talweg, own buffers": own_buffers,
                "Gloo": 1.5,
                "OpenMPI": 4.0,
            }.items():
                made = result(contender, speed, one_node.NAMED)
                made.setting = "2 ranks, f32"
                results.append(made)
            return {bar.text: bar.measured for bar in one_node.bars(results)}

        named = "2 ranks, f32, 25 MB%s: GB/s as a multiple of Gloo's"
        self.assertAlmostEqual(measured(6.0)[named % " (own buffers)"] or 0, 4.0)
        self.assertAlmostEqual(measured(2.0)[named % ""] or 0, 2.0)

    def test_bars(self) -> None:
        ours, theirs = result("Talweg", 6), result("Gloo", 2)

        def speed(each: Result) -> float:
            return each.gigabytes_per_s_median

        self.assertEqual(ratio_bar("", ours, theirs, 2.9, speed).verdict, "holds")
        self.assertEqual(ratio_bar("", ours, theirs, 3.1, speed).verdict, "DOES NOT HOLD")
        self.assertEqual(ratio_bar("", ours, theirs, 3.1, speed, at_most=True).verdict, "holds")
        self.assertEqual(ratio_bar("", ours, None, 3.0, speed).verdict, "not measured")
        self.assertEqual(ratio_bar("", ours, result("MPI"), 3.0, speed).verdict, "not measured")
        failed = result("Gloo", 2)
        failed.failure = "gone"
        self.assertIsNone(find([failed], "2 ranks", "1 MB", "Gloo"))
        self.assertIs(find([ours, theirs], "2 ranks", "1 MB", "Gloo"), theirs)

    def test_the_fastest_of_our_modes_counts(self) -> None:
        one, other, failed = result("Talweg", 2), result("own", 3), result("third", 9)
        failed.failure = "gone"
        results, names = [one, other, failed], ("Talweg", "own", "third", "fourth")
        self.assertIs(fastest(results, "2 ranks", "1 MB", names), other)
        self.assertIsNone(fastest([failed], "2 ranks", "1 MB", names))

    def test_tables(self) -> None:
        results = [result("Talweg", 6), result("Gloo", 2)]
        results.append(result("OpenMPI"))
        results[2].failure = "OpenMPI rank 1 is gone"
        add_ratios(results)
        text = report.tables(results)
        rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines()[2:]]
        self.assertEqual(len({len(row) for row in rows if row}), 1)
        gloo = next(row for row in rows if "Gloo" in row)
        self.assertEqual((gloo[2], gloo[-1]), ("2", "3.00"))
        self.assertEqual(gloo[6:9], ["2", "3 MB", "12 MB"])
        self.assertIn("failed", next(row for row in rows if "OpenMPI" in row))

    def test_a_page_says_where_and_how(self) -> None:
        machine = {
            "commit": "abc with changes",
            "cores": 2,
            "cpu": "X",
            "kernel": "6",
            "torch": "2",
        }
        machine.update(memory_bytes=24 * 10**9, openmpi="", load_at_start=0.5)
        document: dict[str, Any] = {
            "command": "./bench --quick",
            "date": "today",
            "machine": machine,
        }
        document.update(congestion_control="reno", repetitions=7)
        text = report.page(document, [("One", "body\n")])
        for wanted in (
            "./bench --quick",
            "abc with changes",
            "reno",
            "no OpenMPI",
            "## One\n\nbody",
        ):
            self.assertIn(wanted, text)

    def test_files(self) -> None:
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as directory:
            path = Path(directory) / "results.json"
            report.write_json({"results": [result("Talweg", 6).as_json()]}, path)
            read = json.loads(path.read_text())["results"][0]
            self.assertAlmostEqual(read["gigabytes_per_s_median"], 6)
            plot = Path(directory) / "plot.png"
            one_size = [result("Talweg", 6), result("Gloo", 2)]
            self.assertFalse(report.plot_curves(one_size, "t", plot))
            curve = [result("Talweg", speed) for speed in (1, 2, 3)]
            for index, each in enumerate(curve):
                each.total_bytes = 1000 * 10**index
            self.assertTrue(report.plot_curves(curve, "t", plot))
            self.assertTrue(plot.read_bytes().startswith(b"\x89PNG"))


class GrowthTest(unittest.TestCase):
    def test_a_fair_share_is_everybodys_mean_speed(self) -> None:
        self.assertEqual(growth.farthest_from_fair([2.0, 2.0, 2.0]), 0)
        self.assertAlmostEqual(growth.farthest_from_fair([1.0, 3.0]), 0.5)

    def test_a_bytes_cost_is_what_servers_spend_on_it(self) -> None:
        jobs = growth._Grown(2, Contender("jobs", 2, []))
        spent_s = {"talweg-aggregator": 3.0, "talweg-scheduler": 1.0, "talweg": 8.0}
        jobs.batches.append(
            Batch(5, 1.0, [], 12.0, [], cpu_s_of_programs=spent_s, cpu_s_of_daemons=4.0)
        )
        self.assertAlmostEqual(jobs.aggregator_cpu_s_per_gigabyte(100_000_000), 3.0)
        self.assertAlmostEqual(jobs.daemons_cpu_s_per_gigabyte(100_000_000), 4.0)

    def test_chance_evens_out_over_repetitions(self) -> None:
        jobs = growth._Grown(2, Contender("jobs", 2, []))
        for times_s in ([1.0, 3.0], [3.0, 1.0]):
            jobs.batches.append(Batch(1, 3.0, [], 0.0, [], workers_s=times_s))
        self.assertEqual(jobs.worst_share(), 0)
        self.assertAlmostEqual(jobs.worst_share_of_one(), 0.5)
        jobs.batches.append(Batch(1, 3.0, [], 0.0, [], workers_s=[2.0, 6.0]))
        self.assertGreater(jobs.worst_share(), 0.2)


class PrioritiesTest(unittest.TestCase):
    def test_each_ranks_first_step_is_left_out(self) -> None:
        batch = Batch(3, 1.0, [9.0, 1.0, 2.0, 9.0, 3.0, 4.0], 0.0, [])
        self.assertEqual(priorities.without_first(batch), [1.0, 2.0, 3.0, 4.0])

    def test_priorities_gain_what_lies_before_the_largest_layer(self) -> None:
        profile = [("a", 3.0, 1.0), ("b", 1.0, 1.0)]
        model: list[tuple[str, tuple[int, ...]]] = [("a.weight", (2, 2)), ("b.weight", (9,))]
        self.assertAlmostEqual(priorities.ideal_gain(profile, model, 0.25), 1.25 / 1.0625)
        self.assertAlmostEqual(priorities.ideal_gain(profile, model[:1], 0.25), 1.0)


class LinksTest(unittest.TestCase):
    def test_a_row_has_what_links_could_do_and_what_was_made_of_it(self) -> None:
        ours, failed = result("Talweg", 1), result("Gloo", 1)
        failed.failure = "gone"
        self.assertEqual(links.add_optimum([ours, failed], 12.5e6, 0.001), [ours])
        self.assertEqual(failed.extra, {"goodput_bytes_per_s": 12.5e6, "optimum_s": 0.001})
        ours.extra["over"] = ours.median_s / 0.001
        row = links.table_row("2 ranks", [failed, ours], ["Talweg", "Gloo"], "over")
        self.assertEqual(row[:4], ["2 ranks", "1 MB", "12.5", "0.001 s"])
        self.assertEqual(row[4:], [f"{ours.median_s:.3f} s", "1.500", "", ""])


class KernelsTest(unittest.TestCase):
    def benchmark(self, name: str, speed: float, aggregate: str = "") -> dict[str, Any]:
        kind = "aggregate" if aggregate else "iteration"
        made = {"run_name": name, "run_type": kind, "bytes_per_second": speed}
        return {**made, "aggregate_name": aggregate} if aggregate else made

    def test_medians_where_there_are_any(self) -> None:
        once = [self.benchmark("BM_Copy/64", 5.0)]
        self.assertEqual(google_benchmark.medians({"benchmarks": once}), {"Copy/64": 5.0})
        often = [*once, self.benchmark("BM_Copy/64", 4.0, "median")]
        often.append(self.benchmark("BM_Copy/64", 4.2, "mean"))
        self.assertEqual(google_benchmark.medians({"benchmarks": often}), {"Copy/64": 4.0})

    def test_the_slowest_kernel_of_the_best_set_is_judged(self) -> None:
        speeds = {"Copy/196608": 10.0, "Reduce/avx2/f32/sum/196608": 9.5}
        speeds.update({"Reduce/avx2/i8/max/196608": 8.0, "Reduce/portable/i8/max/196608": 1.0})
        (bar,) = kernels.bars(speeds, "avx2")
        self.assertIn("avx2/i8/max", bar.text)
        self.assertEqual((bar.measured, bar.holds), (0.8, False))
        self.assertIn("| avx2/f32/sum | 0.0 | 0.95 |", kernels.table(speeds))

    def test_a_kernel_in_cache_is_judged_by_loads_and_stores_where_it_writes(self) -> None:
        speeds = {"Copy/196608": 16.0, "Touch/avx2/apart/196608": 10.0}
        speeds["Touch/avx2/in_place/196608"] = 20.0
        for name, speed in (
            ("f32/sum", 9.5),
            ("f32/sum_in_place", 15.0),
            ("bf16/average_of_2", 9.0),
            ("f32/sum_of_8", 7.0),
        ):
            speeds[f"Reduce/avx2/{name}/196608"] = speed
        found = {bar.text.partition(":")[0]: bar.measured for bar in kernels.bars(speeds, "avx2")}
        self.assertEqual(found["192 KiB, 32 and 64 bits, integers"], 0.75)
        self.assertEqual(found["192 KiB, floats of 16 bits"], 0.9)
        self.assertEqual(found["192 KiB, many inputs"], 0.7)
        self.assertEqual(found["192 KiB"], 7 / 16)
        self.assertIn("| avx2/f32/sum_in_place | 0.0 | 0.94 | 0.75 |", kernels.table(speeds))

    def test_transports_are_judged_by_libfabric_and_tls_by_the_plain_path(self) -> None:
        name = "WriteAndFrame/fabric_local_none_keyed_tls:{}/bytes:65536/real_time"
        speeds = transports.speeds_of(
            {name.format(each): speed for each, speed in ((0, 2e9), (2, 1.9e9), (4, 1.0e9))}
        )
        self.assertEqual(speeds, {(0, 65536): 2e9, (2, 65536): 1.9e9, (4, 65536): 1.0e9})
        plain, tls = transports.bars(speeds)
        self.assertEqual((plain.measured, plain.holds), (0.95, False))
        self.assertIn("none over libfabric's tcp", plain.text)
        self.assertEqual((tls.measured, tls.holds), (1.0 / 1.9, True))
        self.assertIn("| tls | 1.00 |", transports.table(speeds))
        # What failed has no figure, and no bar.
        self.assertEqual(transports.bars({(2, 65536): 1.9e9}), [])

    def test_what_failed_is_named_and_has_no_figure(self) -> None:
        broken: dict[str, object] = {"run_name": "BM_Reduce/f32/9", "run_type": "iteration"}
        broken |= {"error_occurred": True, "error_message": "UNIMPLEMENTED: no kernels"}
        document = {"benchmarks": [broken, self.benchmark("BM_Copy/9/manual_time", 5.0)]}
        self.assertEqual(google_benchmark.medians(document), {"Copy/9": 5.0})
        failures = google_benchmark.failures(document)
        self.assertEqual(failures, {"Reduce/f32/9": "UNIMPLEMENTED: no kernels"})

    def test_a_gpu_is_judged_by_its_bus_and_its_memory(self) -> None:
        speeds = {"Down/9": 20.0, "Up/9": 30.0, "BothWays/4": 44.0, "Copy/9": 100.0}
        speeds["AtOnce/9"] = 45.0
        speeds.update({"Reduce/f32/9": 95.0, "Reduce/bf16/9": 81.0})
        both_ways, reduce = gpu_device.bars(speeds)
        self.assertEqual((both_ways.measured, both_ways.holds), (0.88, False))
        self.assertIn("Reduce/bf16/9", reduce.text)
        self.assertEqual((reduce.measured, reduce.holds), (0.81, True))
        self.assertIn("| BothWays/4 | 0.0 | 0.88 |", gpu_device.table(speeds))
        self.assertIn("| AtOnce/9 | 0.0 | 0.90 | both directions alone |", gpu_device.table(speeds))
        self.assertEqual([bar.measured for bar in gpu_device.bars({})], [None, None])

    def test_the_way_between_gpus_is_judged_by_one_direction(self) -> None:
        table = gpu_device.table({"Peer/9": 20.0, "PeerBothWays/9": 30.0})
        self.assertIn("| PeerBothWays/9 | 0.0 | 0.75 | twice one direction alone |", table)

    def test_the_limit_of_a_sum_on_gpus(self) -> None:
        speeds = gpu_push_pull.speeds_of({"Copy/9": 1e6, "PeerBothWays/9": 4e5})
        self.assertEqual(speeds, gpu_push_pull.Speeds(1e6, 2e5))
        # Two tensors are read and written, so 4 bytes are touched for each byte of a tensor.
        self.assertAlmostEqual(gpu_push_pull.limit_s(1000, speeds, 1) or 0.0, 4e-3)
        # With two GPUs of one rank each, each touches 2 + 2 bytes and sends one to the other.
        self.assertAlmostEqual(gpu_push_pull.limit_s(1000, speeds, 2) or 0.0, 4e-3 + 5e-3)
        stream = {"bytes": 1000, "alone_s": 2e-3, "beside_s": 3e-3, "latency_s": 8e-3}
        stream["device_calls"] = 0
        table = gpu_push_pull.stream_table([stream], speeds, 1)
        self.assertIn("| 1.500 | 0 | 8 ms | 4 ms | 2.00 |", table)
        table = gpu_push_pull.stream_table([{**stream, "latency_s": 18e-3}], speeds, 2)
        self.assertIn("| 18 ms | 9 ms | 2.00 |", table)

    def test_what_was_not_measured_limits_no_sum(self) -> None:
        alone = gpu_push_pull.speeds_of({"Copy/9": 1e6})
        self.assertAlmostEqual(gpu_push_pull.limit_s(1000, alone, 1) or 0.0, 4e-3)
        stream = {"bytes": 1000, "alone_s": 2e-3, "beside_s": 3e-3, "latency_s": 14e-3}
        stream["device_calls"] = 0
        for gpus in (0, 2):
            self.assertIsNone(gpu_push_pull.limit_s(1000, alone, gpus))
            self.assertNotIn("limit", gpu_push_pull.stream_table([stream], alone, gpus))
        with self.assertRaises(ValueError):
            gpu_push_pull.speeds_of({})


if __name__ == "__main__":
    unittest.main()
