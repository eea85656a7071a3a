# SPDX-License-Identifier: Apache-2.0
"""Tests rules for jobs and tenants, and jobs that take more than their share."""

from __future__ import annotations

import json
import subprocess
import unittest
from pathlib import Path
from typing import Any

from cluster import DEADLINE_S, RUNFILES, TOOL, Cluster, Job, Rank

_TCP = ["--data_transport=tcp", "--local_transport=false"]
_FABRIC = ["--data_transport=libfabric", "--local_transport=false"]


def _write(path: Path, text: str) -> None:
    """Replaces a file as a whole, so nobody reads half of it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def _status(address: str) -> dict[str, Any]:
    line = [str(TOOL), "status", f"--scheduler={address}", "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _resident_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) // 1024


def _rude(cluster: Cluster, job: Job, manner: str, name: str = "rude") -> Rank:
    """Starts a member of another job that misbehaves in that manner. Returns when it does."""
    program = str(RUNFILES / "tests/attackers/rude_member")
    scheduler = job.scheduler.addresses["listen"]
    rude = Rank(cluster.process([program, scheduler, "none", name, manner]))
    rude.wait_for("ready")
    return rude


class QuotasTest(unittest.TestCase):
    def test_a_job_waits_for_its_tenants_room_and_the_rules_can_change(self) -> None:
        with Cluster() as cluster:
            rules = cluster.directory / "quotas"
            _write(rules, "tenant vision jobs_max=1\n")
            job = Job(
                cluster,
                scheduler_options=[f"--quotas_file={rules}"],
                agent_options=["--tenant=vision"],
                name="first",
            )
            address = job.scheduler.addresses["listen"]
            options = [f"--scheduler={address}", "--job=second", "--tenant=vision"]
            agent = cluster.agent(0, options)
            rank = cluster.rank(agent, "steady.py")
            cluster.wait_for_log(agent, "not let in yet: .*job 'second' waits: tenant 'vision' has")
            status = _status(address)
            [waiting] = status["waiting"]
            self.assertIn("1 of the jobs_max=1 jobs that it may have", waiting["text"])
            [tenant] = status["tenants"]
            self.assertEqual((tenant["name"], tenant["job_count"]), ("vision", "1"))
            # A wrong rule changes nothing and is reported. Then a correct rule makes room.
            _write(rules, "tenant vision jobs_max=many\n")
            cluster.wait_for_log(job.scheduler, "line 1 has a wrong setting: jobs_max is 'many'")
            [tenant] = _status(address)["tenants"]
            self.assertEqual((tenant["name"], tenant["jobs_max"]), ("vision", "1"))
            _write(rules, "tenant vision jobs_max=2\n")
            rank.wait_for("step 3")
            self.assertEqual(_status(address)["waiting"], [])
            for each in job.all_ranks():
                each.goes_on()

    def test_wrong_rules_end_the_start(self) -> None:
        with Cluster() as cluster:
            rules = cluster.directory / "quotas"
            rules.write_text("job a priority=top\n")
            with self.assertRaisesRegex(AssertionError, "line 1 .*give low, normal or high"):
                cluster.scheduler(["--in_memory", f"--quotas_file={rules}"])

    def test_a_rank_is_told_which_limit_its_tensor_passes(self) -> None:
        limits = {
            "memory_bytes_max=1MiB": "of the memory_bytes_max=1 MiB that it may have there",
            "tensors_max=1": "has 1 of the tensors_max=1 tensors that it may have there",
        }
        for limit, text in limits.items():
            for rule in (f"job big {limit}", f"job big tenant=t\ntenant t {limit}"):
                with self.subTest(rule), Cluster() as cluster:
                    rules = cluster.directory / "quotas"
                    rules.write_text(rule + "\n")
                    address = cluster.scheduler(
                        ["--in_memory", f"--quotas_file={rules}"]
                    ).addresses["listen"]
                    cluster.aggregator(address, "a0")
                    ranks = []
                    for node in range(2):
                        options = [f"--scheduler={address}", "--job=big", f"--node_rank={node}"]
                        options += ["--min_members=2", "--max_members=2"]
                        ranks.append(cluster.rank(cluster.agent(node, options), "steady.py"))
                    for rank in ranks:
                        line = rank.wait_for("error ")
                        self.assertIn(text, line)
                        self.assertIn("in the scheduler's quotas_file", line)

    def test_a_job_goes_on_beside_one_that_behaves_badly(self) -> None:
        """The steps of a job go on, whatever another job does to their aggregator."""
        manners = ("greedy", "refused", "garbage", "silent")
        ways = [(_TCP, manner) for manner in manners] + [(_FABRIC, "garbage")]
        for network, manner in ways:
            with self.subTest(manner, network=network), Cluster() as cluster:
                job = Job(cluster, aggregator_options=network, agent_options=network)
                rude = _rude(cluster, job, manner)
                rude.wait_for("done")
                for rank in job.all_ranks():
                    rank.goes_on()
                rude.wait_for("done 160")  # The rude member has gone on, too.
                for daemon in (*job.aggregators, *job.agents):
                    self.assertIsNone(daemon.process.poll())
                [answer] = _status(job.scheduler.addresses["listen"])["aggregators"].values()
                served = {each["name"]: int(each["bytes_served"]) for each in answer["jobs"]}
                refused = {name: int(count) for name, count in answer["refused_by_reason"].items()}
                self.assertGreater(served["default"], 0)
                if manner == "greedy":
                    self.assertGreater(served["rude"], 64 * 256 * 1024)
                elif manner == "refused":
                    self.assertGreater(refused["not_declared"], 10_000)
                elif manner == "garbage":
                    self.assertGreater(refused["unreadable_frame"], 10)
                else:
                    self.assertGreater(int(answer["counters"]["connections_over_limit"]), 10)
                # Then the rude member goes silent during its attack.
                cluster.stop(rude.process)
                for rank in job.all_ranks():
                    rank.goes_on()

    def test_an_aggregators_memory_is_bounded_beside_jobs_that_make_it_keep_more(self) -> None:
        """A member reads no answers, or declares more names than an aggregator can remember."""
        for manner, enough in (("deaf", "done 2048"), ("names", "done 16384")):
            with self.subTest(manner), Cluster() as cluster:
                job = Job(cluster, aggregator_options=_TCP, agent_options=_TCP)
                pid = job.aggregators[0].process.pid
                before = _resident_mib(pid)
                rude = _rude(cluster, job, manner)
                # Without bounds, the aggregator would keep 3 GiB of answers, or 500 MiB of groups.
                rude.wait_for(enough)
                grown = _resident_mib(pid) - before
                print(f"{manner}: the aggregator has grown by {grown} MiB")
                self.assertLess(grown, 300)
                for rank in job.all_ranks():
                    rank.goes_on()
                if manner == "deaf":
                    why = "(of frames wait for it|contributions and declarations were refused)"
                    cluster.wait_for_log(job.aggregators[0], why)
                for daemon in (*job.aggregators, *job.agents):
                    self.assertIsNone(daemon.process.poll())

    def test_an_agent_comes_in_beside_silent_connections(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, aggregator_options=_TCP, agent_options=_TCP)
            _rude(cluster, job, "silent").wait_for("done")
            beside = Job(cluster, agent_options=_TCP, beside=job, name="beside")
            for rank in (*job.all_ranks(), *beside.all_ranks()):
                rank.goes_on()


if __name__ == "__main__":
    unittest.main()
