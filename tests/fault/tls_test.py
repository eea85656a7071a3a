# SPDX-License-Identifier: Apache-2.0
"""Tests a job whose daemons use TLS, and processes that must not get in."""

from __future__ import annotations

import re
import shutil
import subprocess
import unittest
from collections.abc import Sequence
from pathlib import Path

from cluster import DEADLINE_S, RUNFILES, TOOL, Cluster, Job

_GENERIC_TOOL = RUNFILES / "tests" / "fault" / "generic_tool"
_SCHEDULER = "talweg.scheduler.v1"
_ROLES = ["scheduler", "aggregator:a0", "node:default", "operator", "viewer"]
_NOBODY = "nobody"  # A client that knows the authority, and shows no certificate.
# The roles that may make each call, as docs/security.md says. Others may not.
_READERS = {"operator", "viewer"}
_NODES = {"node:default"}
_AGGREGATORS = {"aggregator:a0"}
_SEALERS = {*_NODES, *_AGGREGATORS, "operator"}
_MAY_CALL = {
    f"{_SCHEDULER}.MembershipService/Join": _NODES,
    f"{_SCHEDULER}.MembershipService/RenewLease": _NODES,
    f"{_SCHEDULER}.MembershipService/Leave": _NODES,
    f"{_SCHEDULER}.MembershipService/ReportLost": _NODES,
    f"{_SCHEDULER}.MembershipService/Quiesced": _NODES,
    f"{_SCHEDULER}.MembershipService/WatchViews": _NODES,
    f"{_SCHEDULER}.PoolService/RegisterAggregator": _AGGREGATORS,
    f"{_SCHEDULER}.PoolService/RenewAggregator": _AGGREGATORS,
    f"{_SCHEDULER}.PoolService/DeregisterAggregator": _AGGREGATORS,
    f"{_SCHEDULER}.PoolService/WatchJobs": _AGGREGATORS,
    # scheduler_certificates_test has what is inside.
    f"{_SCHEDULER}.SealedService/Greet": _SEALERS,
    f"{_SCHEDULER}.SealedService/Call": _SEALERS,
    f"{_SCHEDULER}.SealedService/Watch": _SEALERS,
    f"{_SCHEDULER}.AdminService/ListJobs": _READERS,
    f"{_SCHEDULER}.AdminService/GetJob": _READERS,
    f"{_SCHEDULER}.AdminService/ListAggregators": _READERS,
    f"{_SCHEDULER}.AdminService/GetScheduler": _READERS,
    f"{_SCHEDULER}.AdminService/LowerBeginMembers": {"operator"},
    "talweg.aggregator.v1.AdminService/GetStatus": _READERS,
    "talweg.agent.v1.AdminService/GetStatus": _READERS,
    "talweg.agent.v1.AdminService/GetTrace": _READERS,
    "talweg.agent.v1.AdminService/SetTrace": {"operator"},
    "grpc.health.v1.Health/Check": {*_ROLES, _NOBODY},
    "grpc.health.v1.Health/Watch": {*_ROLES, _NOBODY},
}
# These calls ask for the job secret, and look at it before anything else of the request.
_ASKS_SECRET = {
    f"{_SCHEDULER}.AdminService/LowerBeginMembers",
    "talweg.agent.v1.AdminService/SetTrace",
}
_DENIED = {
    "PERMISSION_DENIED": re.compile(r" is for .*, and the caller is "),
    "UNAUTHENTICATED": re.compile(r" is for .*, and the caller has shown no identity: give "),
}


def _directory(role: str) -> str:
    return role.replace(":", "-")


class TlsTest(unittest.TestCase):
    def setUp(self) -> None:
        self._shown: list[str] = []  # What daemons have answered.

    def _make_certificates(self, directory: Path, *roles: str) -> None:
        subprocess.run(
            [str(TOOL), "certs", "--days=2", "--hosts=localhost,127.0.0.1", str(directory), *roles],
            check=True,
            capture_output=True,
            timeout=DEADLINE_S,
        )

    def _job(
        self, cluster: Cluster, options: Sequence[str] = ("--secret_file=none",)
    ) -> tuple[Job, Path]:
        pki = cluster.directory / "pki"
        self._make_certificates(pki, *_ROLES, "node:other", "aggregator:b0")
        cluster.tool_options = [f"--tls-dir={pki}/viewer"]
        job = Job(
            cluster,
            scheduler_options=[*options, f"--tls_dir={pki}/scheduler"],
            aggregator_options=[*options, f"--tls_dir={pki}/aggregator-a0", "--nolocal_transport"],
            agent_options=[*options, f"--tls_dir={pki}/node-default", "--nolocal_transport"],
        )
        return job, pki

    def _status(self, job: Job, *options: str) -> subprocess.CompletedProcess[str]:
        address = job.scheduler.addresses["listen"]
        return subprocess.run(
            [str(TOOL), "status", f"--scheduler={address}", "--timeout-ms=5000", *options],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )

    def test_a_job_runs_and_is_shown_to_those_who_may_look(self) -> None:
        with Cluster() as cluster:
            job, pki = self._job(cluster)
            for rank in job.all_ranks():
                rank.goes_on()
            self.assertNotIn("there is no job secret", cluster.log(job.scheduler))
            shown = self._status(job, f"--tls-dir={pki}/viewer")
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertIn("default", shown.stdout)
            self.assertNotIn("is for", shown.stdout)
            node = self._status(job, f"--tls-dir={pki}/node-default")
            self.assertIn("and the caller is node of job 'default'", node.stderr)
            plain = self._status(job)
            self.assertEqual(plain.returncode, 1)
            # An impostor has a valid certificate that is not a scheduler's.
            agent = self._status(
                job,
                f"--tls-dir={pki}/viewer",
                f"--scheduler={job.agents[0].addresses['admin']}",
            )
            self.assertEqual(agent.returncode, 1)

    def test_nobody_acts_for_another_job_or_name(self) -> None:
        with Cluster() as cluster:
            job, pki = self._job(cluster)
            scheduler = f"--scheduler={job.scheduler.addresses['listen']}"
            agent = RUNFILES / "services" / "agent" / "talweg-agent"
            aggregator = RUNFILES / "services" / "aggregator" / "talweg-aggregator"
            for line, text in (
                (
                    [agent, "--node_rank=1", f"--tls_dir={pki}/node-other"],
                    "the caller is node of job 'other', and may not act as node of job 'default'",
                ),
                (
                    [agent, "--node_rank=1", f"--tls_dir={pki}/operator"],
                    "is that of operator, and this daemon needs one of role node",
                ),
                (
                    [aggregator, "--name=a0", f"--tls_dir={pki}/viewer"],
                    "is that of viewer, and this daemon needs one of role aggregator",
                ),
                (
                    [aggregator, "--name=a0", f"--tls_dir={pki}/aggregator-b0"],
                    "the caller is aggregator 'b0', and may not act as aggregator 'a0'",
                ),
            ):
                with self.subTest(text):
                    done = subprocess.run(
                        [*map(str, line), scheduler],
                        capture_output=True,
                        text=True,
                        check=False,
                        cwd=cluster.directory,
                        timeout=DEADLINE_S,
                    )
                    self.assertEqual(done.returncode, 1)
                    self.assertIn(text, done.stderr)
            for rank in job.all_ranks():
                rank.goes_on()

    def test_every_call_of_every_daemon_with_every_role(self) -> None:
        """A caller shows its role by a certificate or by a bearer token, and never the job secret."""
        with Cluster() as cluster:
            tokens = cluster.directory / "tokens"
            tokens.touch(mode=0o600)
            texts = {role: f"{role:*<40}" for role in _ROLES}
            tokens.write_text("".join(f"{role} token {text}\n" for role, text in texts.items()))
            secret = cluster.directory / "secret"
            secret.touch(mode=0o600)
            secret.write_text("0123456789abcdef" * 4 + "\n")
            options = [f"--tokens_file={tokens}", f"--secret_file={secret}"]
            job, pki = self._job(cluster, options)
            nobody = pki / _NOBODY
            nobody.mkdir()
            shutil.copy(pki / "viewer" / "ca.crt", nobody)
            shows = {f"{role}, certificate": str(pki / _directory(role)) for role in _ROLES}
            shows[_NOBODY] = str(nobody)
            for role, text in texts.items():
                shown = cluster.directory / f"{_directory(role)}.token"
                shown.write_text(text)
                shows[f"{role}, token"] = f"{nobody},{shown}"
            for how, show in shows.items():
                self._call_everything(job, how, show, pki)
            for rank in job.all_ranks():  # The job is not affected.
                rank.goes_on()
            # Nothing that was answered, or that others may see, has a secret in it.
            for daemon in (job.scheduler, *job.aggregators, *job.agents):
                self._shown.append(cluster.log(daemon))
                for file in ("cmdline", "environ"):
                    found = Path(f"/proc/{daemon.process.pid}/{file}").read_bytes()
                    self._shown.append(found.decode(errors="replace"))
            for text in (*texts.values(), "0123456789abcdef"):
                self.assertFalse(any(text in each for each in self._shown), text)

    def _call_everything(self, job: Job, how: str, show: str, pki: Path) -> None:
        role = how.partition(",")[0]
        seen = set()
        for address in (
            job.scheduler.addresses["listen"],
            job.aggregators[0].addresses["admin"],
            job.agents[0].addresses["admin"],
        ):
            for method, code, text in self._called(address, show, str(pki / "viewer")):
                with self.subTest(method, how=how):
                    self.assertIn(method, _MAY_CALL)
                    denied = code in _DENIED and _DENIED[code].search(text)
                    self.assertEqual(not denied, role in _MAY_CALL[method], text)
                    asked = "which shows no job secret" in text
                    self.assertEqual(asked, not denied and method in _ASKS_SECRET, text)
                seen.add(method)
            # The tool asks reflection as a reader, so this call is made with the role itself.
            listed = self._tool(address, show, show)
            self.assertEqual("service " in listed.stdout, role in _READERS, how)
        self.assertEqual(seen, set(_MAY_CALL))

    def _called(self, address: str, caller: str, reader: str) -> list[tuple[str, str, str]]:
        done = self._tool(address, caller, reader)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        called = re.findall(r"^called (\S+): (\S+) (.*)$", done.stdout, re.MULTILINE)
        self.assertTrue(called)
        return called

    def _tool(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [_GENERIC_TOOL, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        self._shown += [done.stdout, done.stderr]
        return done

    def test_defective_new_certificates_change_nothing(self) -> None:
        with Cluster() as cluster:
            job, pki = self._job(cluster)
            daemons = {
                "scheduler": job.scheduler,
                "aggregator-a0": job.aggregators[0],
                "node-default": job.agents[0],
            }
            for directory, daemon in daemons.items():
                # A program that writes certificates in place may stop halfway.
                (pki / directory / "tls.crt").write_text("")
                cluster.wait_for_log(daemon, "changed certificates are not used, and those before")
            shown = self._status(job, f"--tls-dir={pki}/viewer")
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertNotIn("does not answer", shown.stdout + shown.stderr)
            for rank in job.all_ranks():
                rank.goes_on()

    def test_a_network_without_tls_is_asked_for(self) -> None:
        scheduler = RUNFILES / "services" / "scheduler" / "talweg-scheduler"
        refused = subprocess.run(
            [scheduler, "--in_memory", "--listen=0.0.0.0:0"],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        self.assertEqual(refused.returncode, 1)
        self.assertIn("will not listen on 0.0.0.0 without TLS", refused.stderr)
        with Cluster() as cluster:
            daemon = cluster.scheduler(["--in_memory", "--listen=0.0.0.0:0", "--insecure"])
            said = "insecure: listening on 0.0.0.0:[0-9]+ without TLS"
            cluster.wait_for_log(daemon, said)
            # An aggregator and an agent refuse their admin ports, and say so, in the same way.
            scheduler_at = f"--scheduler={daemon.addresses['listen']}"
            alone = ["--standalone", f"--socket_path={cluster.directory}/open.sock"]
            for service, own in (("aggregator", [scheduler_at, "--name=open"]), ("agent", alone)):
                line = [*own, "--admin_listen=0.0.0.0:0"]
                refused = subprocess.run(
                    [RUNFILES / "services" / service / f"talweg-{service}", *line],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=DEADLINE_S,
                )
                self.assertEqual(refused.returncode, 1)
                self.assertIn("will not listen on 0.0.0.0 without TLS", refused.stderr)
                self.assertIn("or insecure, or listen on 127.0.0.1", refused.stderr)
                opened = cluster.start(service, f"open-{service}", [*line, "--insecure"])
                cluster.wait_for_log(opened, said)
                opened.kill()
            # `talweg doctor` finds the scheduler, in whichever form its address is given.
            other = cluster.start(
                "scheduler",
                "other",
                ["--in_memory", "--listen=0.0.0.0:0"],
                ("env", "TALWEG_INSECURE=yes"),
            )
            written = cluster.directory / "scheduler.conf"
            written.write_text("in_memory: true listen: '0.0.0.0:0'\n insecure : true")
            third = cluster.start("scheduler", "third", [f"--config={written}"])
            doctor = subprocess.run(
                [str(TOOL), "doctor"],
                capture_output=True,
                text=True,
                check=False,
                timeout=DEADLINE_S,
            )
            for each in (daemon, other, third):
                name = rf"talweg-scheduler \(process {each.process.pid}\)"
                self.assertRegex(doctor.stdout, f"warn +network without TLS +{name}")
            self.assertIn(f", of {written}", doctor.stdout)


if __name__ == "__main__":
    unittest.main()
