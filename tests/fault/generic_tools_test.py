# SPDX-License-Identifier: Apache-2.0
"""Tests that generic gRPC tools can list, describe and call all services of every daemon."""

from __future__ import annotations

import re
import subprocess
import unittest

from cluster import DEADLINE_S, RUNFILES, Cluster, Job

_TOOL = RUNFILES / "tests" / "fault" / "generic_tool"
_SERVICES = {
    "scheduler": ["MembershipService", "PoolService", "AdminService"],
    "aggregator": ["AdminService"],
    "agent": ["AdminService"],
}


class GenericToolsTest(unittest.TestCase):
    def test_every_service_of_every_daemon(self) -> None:
        with Cluster() as cluster:
            job = Job(cluster, nodes=(1, 1))
            served = {
                "scheduler": job.scheduler.addresses["listen"],
                "aggregator": job.aggregators[0].addresses["admin"],
                "agent": job.agents[0].addresses["admin"],
            }
            for daemon, address in served.items():
                with self.subTest(daemon):
                    done = subprocess.run(
                        [str(_TOOL), address],
                        capture_output=True,
                        text=True,
                        timeout=DEADLINE_S,
                        check=False,
                    )
                    self._check(daemon, done)
            for rank in job.all_ranks():  # Empty requests harm no rank.
                for _ in range(5):
                    rank.wait_for("step ")

    def test_daemons_on_sockets(self) -> None:
        """Daemons on Unix sockets can be called, as by grpcurl -unix."""
        with Cluster() as cluster:

            def at(name: str) -> str:
                return f"unix:{cluster.directory}/{name}.sock"

            job = Job(
                cluster,
                nodes=(1,),
                scheduler_options=[f"--listen={at('scheduler')}"],
                aggregator_options=[f"--listen={at('data')}", f"--admin_listen={at('aggregator')}"],
                agent_options=[f"--admin_listen={at('agent')}"],
            )
            self.assertEqual(job.aggregators[0].addresses["data"], "local")
            for daemon in ("scheduler", "aggregator", "agent"):
                with self.subTest(daemon):
                    done = subprocess.run(
                        [str(_TOOL), at(daemon)],
                        capture_output=True,
                        text=True,
                        timeout=DEADLINE_S,
                        check=False,
                    )
                    self._check(daemon, done)
            for rank in job.all_ranks():
                rank.goes_on()

    def _check(self, daemon: str, done: subprocess.CompletedProcess[str]) -> None:
        output = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, output)
        listed = set(re.findall(r"^service (\S+)$", output, re.MULTILINE))
        wanted = {f"talweg.{daemon}.v1.{service}" for service in _SERVICES[daemon]}
        self.assertLessEqual(wanted | {"grpc.health.v1.Health"}, listed)
        called = re.findall(r"^called (\S+)/(\w+): (\S+)(.*)$", output, re.MULTILINE)
        # All services of Talweg are described and called.
        self.assertLessEqual(wanted, {service for service, *_ in called})
        for service, method, code, text in called:
            # An empty request gets an answer, or is refused with a reason.
            self.assertNotIn(code, ("UNIMPLEMENTED", "UNKNOWN", "INTERNAL", "UNAVAILABLE"), output)
            if code != "OK" and code != "DEADLINE_EXCEEDED":
                self.assertGreater(len(text), 10, f"{service}/{method}")
        self.assertIn('called grpc.health.v1.Health/Check: OK {"status":"SERVING"}', output)
        self.assertIn('called grpc.health.v1.Health/Watch: OK {"status":"SERVING"}', output)
        # A request that needs no arguments gets an answer.
        answers = {f"{service}/{method}": code for service, method, code, _ in called}
        for call in ("AdminService/GetStatus", "AdminService/GetScheduler"):
            if f"talweg.{daemon}.v1.{call}" in answers:
                self.assertEqual(answers[f"talweg.{daemon}.v1.{call}"], "OK", output)


if __name__ == "__main__":
    unittest.main()
