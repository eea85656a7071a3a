# SPDX-License-Identifier: Apache-2.0
"""Tests certificates that become invalid while connections that were made with them stand."""

from __future__ import annotations

import os
import shutil
import subprocess
import unittest
from pathlib import Path

from cluster import DEADLINE_S, RUNFILES, TOOL, Cluster, Job

_CERTIFIER = RUNFILES / "tests" / "fault" / "certifier"
_IN_THE_NODE = r"a connection ends: the certificate of node of job 'default' \(number [0-9A-F]+\) "
_GONE = " agent of node 1 (node1, "


class Pki:
    """A certificate authority, and a directory for each process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certs(str(directory), "scheduler", "viewer", "aggregator:a0")

    def certs(self, *words: str) -> str:
        done = subprocess.run(
            [str(TOOL), "certs", "--days=2", *words],
            check=True,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        return done.stdout

    def path(self, name: str) -> Path:
        return self.directory / name

    def certify(self, name: str, role: str, life_s: int = 86_400) -> None:
        """Makes a certificate, and replaces an earlier one."""
        subprocess.run(
            [_CERTIFIER, self.path("ca"), self.path(name), role, str(life_s)],
            check=True,
            timeout=DEADLINE_S,
        )

    def revoke(self, name: str) -> str:
        return self.certs(f"--revoke={self.path(name)}/tls.crt", str(self.directory))

    def replace(self, name: str, file: str, text: str) -> None:
        written = self.path(name) / f".{file}"
        written.write_text(text)
        written.chmod(0o600)
        written.rename(self.path(name) / file)


@unittest.skipIf(
    os.environ.get("TALWEG_SANITIZER") == "tsan",
    "SKIPPED: gRPC is a shared library here, so its connections are not watched",
)
class CertificatesTest(unittest.TestCase):
    def _job(
        self, cluster: Cluster, pki: Pki, name: str = "default", beside: Job | None = None
    ) -> Job:
        cluster.tool_options = [f"--tls-dir={pki.path('viewer')}"]
        return Job(
            cluster,
            scheduler_options=["--secret_file=none", f"--tls_dir={pki.path('scheduler')}"],
            aggregator_options=[f"--tls_dir={pki.path('aggregator-a0')}"],
            options_of_agent=lambda node: [f"--tls_dir={pki.path(f'{name}-{node}')}"],
            beside=beside,
            name=name,
        )

    def _wait_until_back(self, cluster: Cluster, job: Job) -> None:
        """Returns when each agent's stream has ended, and a new one is open."""
        for agent in job.agents:
            cluster.wait_for_log(agent, "the scheduler answers again")

    def test_a_member_whose_certificate_is_revoked_is_lost(self) -> None:
        with Cluster() as cluster:
            pki = Pki(cluster.directory / "pki")
            for name in ("default", "other"):
                for node in range(2):
                    pki.certify(f"{name}-{node}", f"node:{name}")
            job = self._job(cluster, pki)
            other = self._job(cluster, pki, "other", job)
            self.assertIn("default-0/ca.crl  the same list", pki.revoke("default-1"))
            cluster.wait_for_log(job.scheduler, _IN_THE_NODE + "is revoked: ca.crl names it")
            told = job.ranks[0][0].wait_for("error ")
            self.assertIn(_GONE, told)
            self.assertIn("is revoked: ca.crl names it; give its process a new one", told)
            cluster.wait_for_log(job.agents[1], "others end connections with this process: ")
            for rank in other.all_ranks():
                rank.goes_on()
            # The agent does not come back.
            again = subprocess.run(
                [
                    RUNFILES / "services" / "agent" / "talweg-agent",
                    f"--scheduler={job.scheduler.addresses['listen']}",
                    f"--tls_dir={pki.path('default-1')}",
                ],
                capture_output=True,
                text=True,
                check=False,
                timeout=DEADLINE_S,
            )
            self.assertEqual(again.returncode, 1)
            self.assertIn("default-1/tls.crt is revoked: ", again.stderr)

    def test_certificates_that_are_renewed_in_time_harm_nobody(self) -> None:
        with Cluster() as cluster:
            pki = Pki(cluster.directory / "pki")
            short_s = 20
            pki.certify("aggregator-a0", "aggregator:a0", short_s)
            for node in range(2):
                pki.certify(f"default-{node}", "node:default", short_s)
            job = self._job(cluster, pki)
            pki.certify("aggregator-a0", "aggregator:a0")
            for node in range(2):
                pki.certify(f"default-{node}", "node:default")
            ends = " is not good any more: certificate has expired"
            cluster.wait_for_log(job.scheduler, f"the certificate of aggregator 'a0' .*{ends}")
            cluster.wait_for_log(job.scheduler, f"(?s)({_IN_THE_NODE}{ends[1:]}.*){{2}}")
            self._wait_until_back(cluster, job)
            for rank in job.all_ranks():
                rank.goes_on()

    def test_a_stolen_certificate_is_replaced(self) -> None:
        """The owner of a stolen certificate takes a new one, and stays in the job."""
        with Cluster() as cluster:
            pki = Pki(cluster.directory / "pki")
            for node in range(2):
                pki.certify(f"default-{node}", "node:default")
            job = self._job(cluster, pki)
            pki.path("stolen").mkdir()
            for name, role in (("scheduler", "scheduler"), ("default-1", "node:default")):
                shutil.copy(pki.path(name) / "tls.crt", pki.path("stolen") / f"{name}.crt")
                pki.certify(name, role)
            # The scheduler has the new list, and has ended connections with the old certificate.
            self._wait_until_back(cluster, job)
            for name in ("scheduler", "default-1"):
                pki.certs(f"--revoke={pki.path('stolen')}/{name}.crt", str(pki.directory))
            for name in ("default-0", "default-1", "scheduler"):
                self.assertTrue((pki.path(name) / "ca.crl").exists())
            for rank in job.all_ranks():
                rank.goes_on()

    def test_another_authority_takes_the_place_of_one(self) -> None:
        """Processes with a certificate of the new authority stay. Others are lost."""
        with Cluster() as cluster:
            pki = Pki(cluster.directory / "pki")
            after = Pki(cluster.directory / "after")
            names = {"scheduler": "scheduler", "aggregator-a0": "aggregator:a0"}
            for name in ("default", "other"):
                names |= {f"{name}-{node}": f"node:{name}" for node in range(2)}
            for name, role in names.items():
                pki.certify(name, role)
                after.certify(name, role)
            job = self._job(cluster, pki)
            other = self._job(cluster, pki, "other", job)
            new = (after.path("ca") / "ca.crt").read_text()
            for name in ("viewer", *names):
                old = (pki.path(name) / "ca.crt").read_text()
                pki.replace(name, "ca.crt", old + new)
            for name in names:
                if name == "default-1":
                    continue
                for file in ("tls.key", "tls.crt"):
                    text = (after.path(name) / file).read_text()
                    pki.replace(name, file, text)
            for name in names:
                if name != "default-1":
                    pki.replace(name, "ca.crt", new)
            cluster.wait_for_log(job.scheduler, _IN_THE_NODE + "is not good any more: ")
            told = job.ranks[0][0].wait_for("error ")
            self.assertIn(_GONE, told)
            self.assertIn(" is not good any more: ", told)
            for rank in other.all_ranks():
                rank.goes_on()


if __name__ == "__main__":
    unittest.main()
