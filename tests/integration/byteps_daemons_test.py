# SPDX-License-Identifier: Apache-2.0
"""Tests that daemons of bpslaunch use what BytePS's variables say, and not their defaults."""

from __future__ import annotations

import json
import re
import sys
import time
import unittest
from typing import Any

import job
from byteps_commands import shared, start
from talweg.byteps import _job

# The rank asks the scheduler, its agent and the server's lanes what they use.
_PROGRAM = """
import json, os, subprocess
import numpy as np
import talweg
from talweg import _programs
from talweg.byteps import common as bps
bps.init()
talweg.push_pull(np.ones(160_000, np.float32), op=talweg.Op.SUM, name="many slices")
place = os.environ["DMLC_PS_ROOT_URI"] + ":" + os.environ["DMLC_PS_ROOT_PORT"]
line = [_programs.tool(), "status", "--scheduler=" + place, "--json"]
answer = json.loads(subprocess.run(line, capture_output=True, check=True).stdout)
owners = answer["jobs"][0]["agents"]["0"]["aggregators"]
credit = {each["name"]: int(each["credit_bytes"]) for each in owners}
summed = {name: int(each["bytes_summed"]) for name, each in answer["aggregators"].items()}
print("told " + json.dumps({"credit": credit, "summed": summed}), flush=True)
"""


def _told(given: dict[str, str]) -> dict[str, Any] | None:
    """Returns what the job's scheduler tells; None if it does not answer."""
    return _job.status(f"{given['DMLC_PS_ROOT_URI']}:{given['DMLC_PS_ROOT_PORT']}")


class DaemonsTest(unittest.TestCase):
    def test_what_a_worker_may_have_in_flight_and_who_sums(self) -> None:
        """The worker's variable bounds the bytes in flight, and the server's makes the lanes.

        The agent and the lanes tell what they use. Each lane sums a part of a tensor's slices.
        """
        given = shared(DMLC_NUM_WORKER="1", BYTEPS_FORCE_DISTRIBUTED="1")
        of_server = {"BYTEPS_SERVER_ENGINE_THREAD": "2"}
        of_worker = {"BYTEPS_PARTITION_BYTES": "40960", "BYTEPS_SCHEDULING_CREDIT": "4"}
        scheduler = start(self, [], **given, DMLC_ROLE="scheduler")
        server = start(self, [], **given, DMLC_ROLE="server", **of_server)
        # Each lane registers by itself. A job has those that are there when it begins.
        end = time.monotonic() + job.TIMEOUT_S
        while len((_told(given) or {}).get("pool", [])) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        line = [sys.executable, "-c", _PROGRAM]
        worker = start(self, line, **given, DMLC_ROLE="worker", DMLC_WORKER_ID="0", **of_worker)
        ended = [
            (process.communicate(timeout=job.TIMEOUT_S)[0], process.returncode)
            for process in (worker, server, scheduler)
        ]
        self.assertEqual([status for _, status in ended], [0, 0, 0], ended)
        [text] = re.findall(r"told (\{.*\})", ended[0][0])
        told = json.loads(text)
        self.assertEqual(list(told["credit"].values()), [4 * 40960] * 2, told)
        first, second = sorted(told["credit"])
        self.assertEqual(second, f"{first}/1")
        self.assertEqual(set(told["summed"]), {first, second})
        self.assertTrue(all(count > 0 for count in told["summed"].values()), told)

    def test_how_often_a_server_says_that_it_lives(self) -> None:
        """A server renews as often as PS_HEARTBEAT_INTERVAL says, and not every twelve minutes.

        Its lease lasts as long as PS_HEARTBEAT_TIMEOUT says, and not ten seconds.
        """
        given = shared(PS_HEARTBEAT_TIMEOUT="3600", PS_HEARTBEAT_INTERVAL="1")
        start(self, [], **given, DMLC_ROLE="scheduler")
        start(self, [], **given, DMLC_ROLE="server")
        end = time.monotonic() + job.TIMEOUT_S
        last_s = longest_s = 0.0
        renewals = 0
        while renewals < 2 and time.monotonic() < end:
            for each in (_told(given) or {}).get("pool", []):
                left_s = float(each["lease_remaining"].rstrip("s"))
                self.assertLessEqual(left_s, 3600.0)
                # The lease's time goes down until the server renews it.
                renewals += last_s > 0.0 and left_s > last_s
                last_s = left_s
                longest_s = max(longest_s, left_s)
            time.sleep(0.1)
        self.assertEqual(renewals, 2)
        self.assertGreater(longest_s, 60.0)  # Without the variable it is 10 s at most.


if __name__ == "__main__":
    unittest.main()
