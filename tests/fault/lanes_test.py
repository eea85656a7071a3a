# SPDX-License-Identifier: Apache-2.0
"""Tests aggregators with several lanes. All lanes sum, and they come and go together."""

from __future__ import annotations

import json
import signal
import subprocess
import unittest
from typing import Any

from cluster import DEADLINE_S, TOOL, Cluster, Job

_LANES = 2
_GOES_ON = ["--loss_policy=continue"]


def _status(job: Job) -> dict[str, Any]:
    address = job.scheduler.addresses["listen"]
    line = [str(TOOL), "status", f"--scheduler={address}", "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _live(job: Job) -> list[str]:
    pool = _status(job)["pool"]
    return [each["aggregator"]["name"] for each in pool if each["state"] == "STATE_LIVE"]


class LanesTest(unittest.TestCase):
    def _job(self, cluster: Cluster) -> Job:
        options = [f"--lanes={_LANES}", "--cpus=0"]
        job = Job(
            cluster,
            nodes=(1, 1),
            aggregators=2,
            aggregator_options=options,
            agent_options=_GOES_ON,
        )
        # The second lanes may have come after the view that the first lanes made.
        self.assertEqual(_live(job), ["a0", "a0/1", "a1", "a1/1"])
        return job

    def test_every_lane_sums(self) -> None:
        with Cluster() as cluster:
            job = self._job(cluster)
            job = Job(cluster, nodes=(1, 1), beside=job, name="later")
            for rank in job.all_ranks():
                rank.goes_on()
            lanes = _status(job)["aggregators"]
            self.assertEqual(sorted(lanes), ["a0", "a0/1", "a1", "a1/1"])
            for lane in lanes.values():
                done = {one["name"]: int(one["rounds_done"]) for one in lane["jobs"]}
                self.assertGreater(done["later"], 0, lane)
                self.assertGreater(int(lane["bytes_summed"]), 1_000_000, lane)

    def test_lanes_are_killed_together(self) -> None:
        with Cluster() as cluster:
            job = self._job(cluster)
            job.aggregators[1].kill()
            for rank in job.all_ranks():
                rank.goes_on()
            self.assertEqual(_live(job), ["a0", "a0/1"])

    def test_lanes_drain_together(self) -> None:
        with Cluster() as cluster:
            job = self._job(cluster)
            process = job.aggregators[1].process
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(DEADLINE_S), 0)
            for rank in job.all_ranks():
                rank.goes_on()
            self.assertEqual(_live(job), ["a0", "a0/1"])


if __name__ == "__main__":
    unittest.main()
