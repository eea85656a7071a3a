# SPDX-License-Identifier: Apache-2.0
"""Searches for the secrets of a running job in all that its daemons show, and send."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import re
import socket
import struct
import subprocess
import threading
import types
import unittest
from pathlib import Path
from typing import Any, cast

from cluster import DEADLINE_S, RUNFILES, Cluster, Daemon, Job

_GENERIC_TOOL = RUNFILES / "tests" / "fault" / "generic_tool"
_JOB_SECRET = hashlib.sha256(b"a job's secret").hexdigest()
# A field of 32 bytes in a message, wherever it lies.
_FIELD_OF_32_BYTES = re.compile(rb"(?=\x20(.{32}))", re.DOTALL)
_LISTENER_KEY = re.compile(rb"[/#]s([0-9a-f]{64})")
_MEMBER_SEED = re.compile(rb"[/#]s\d+\.\d+\.\d+\.\d+\.([0-9a-f]{64})")
_HASH = re.compile(rb"(?=([0-9a-f]{64}))")
_EPOCHS = range(1, 10)


class _Tap:
    """Forwards connections, and keeps what they carry."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._carried: list[bytearray] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def carried(self) -> bytes:
        with self._lock:
            return b"\n".join(self._carried)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(self._target, DEADLINE_S)
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        kept = bytearray()
        with self._lock:
            self._carried.append(kept)
        one.settimeout(None)
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                with self._lock:
                    kept += data
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


def _forms(secret: bytes) -> list[bytes]:
    """Returns the beginning of a secret in each form in which it may be shown."""
    digits = secret[:8].hex().encode()
    return [secret[:12], digits, digits.upper(), base64.b64encode(secret[:12])]


def _stored(store: Path) -> bytes:
    """Returns what the scheduler has stored, which is locked while it runs."""
    return b"".join(each.read_bytes() for each in sorted(store.parent.glob(f"{store.name}*")))


class SecretsTest(unittest.TestCase):
    def _secrets(self, carried: bytes, store: Path) -> dict[str, set[bytes]]:
        """Returns the secrets that the daemons have told the scheduler, or have been told."""
        stored = _stored(store)
        candidates = {match[1] for match in _FIELD_OF_32_BYTES.finditer(carried)}
        sessions = {
            each for each in candidates if hashlib.sha256(each).hexdigest().encode() in stored
        }
        self.assertEqual(len(sessions), 3)  # Two agents and an aggregator.
        listeners = {bytes.fromhex(key.decode()) for key in _LISTENER_KEY.findall(carried)}
        seeds = {bytes.fromhex(seed.decode()) for seed in _MEMBER_SEED.findall(carried)}
        keys = {
            hmac.digest(seed, b"talweg data key" + struct.pack("<Q", epoch), "sha256")
            for seed in seeds
            for epoch in _EPOCHS
        }
        return {
            "session secret": sessions,
            "listener key": listeners,
            "member seed": seeds,
            "member key": keys,
        }

    def _ask_everything(self, daemon: Daemon, place: str) -> bytes:
        done = subprocess.run(
            [_GENERIC_TOOL, daemon.addresses[place], "default"],
            capture_output=True,
            check=False,
            timeout=DEADLINE_S,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout + done.stderr

    def _run(self, cluster: Cluster, options: list[str]) -> tuple[bytes, dict[str, bytes], Path]:
        """Runs a job. Returns what its scheduler's clients send and get, what daemons show, and the
        scheduler's store."""
        store = cluster.directory / "store"
        options = [*options, "--log_level=debug"]
        data = ["--data_transport=tcp", "--data_security=keyed"]
        scheduler = cluster.scheduler([f"--store_path={store}", *options])
        tap = _Tap(scheduler.addresses["listen"])
        direct = Daemon(scheduler.name, scheduler.process, {"addresses": dict(scheduler.addresses)})
        scheduler.addresses["listen"] = tap.address
        pool = types.SimpleNamespace(
            scheduler=scheduler,
            aggregators=[cluster.aggregator(tap.address, "a0", [*options, *data])],
        )
        job = Job(
            cluster,
            beside=cast(Any, pool),
            agent_options=[*options, *data],
            options_of_agent=lambda node: [f"--trace_path={cluster.directory}/trace{node}"],
        )
        shown = {"scheduler": self._ask_everything(direct, "listen")}
        for daemon in (*job.aggregators, *job.agents):
            shown[daemon.name] = self._ask_everything(daemon, "admin")
        for rank in job.all_ranks():
            rank.goes_on()
        self.assertIn(b"data_address", b"".join(shown.values()).replace(b"dataA", b"data_a"))
        for daemon in (job.scheduler, *job.aggregators, *job.agents):
            shown[f"log of {daemon.name}"] = cluster.log(daemon).encode()
            self._look_at(daemon.name, daemon.process.pid, shown)
        for number, rank in enumerate(job.all_ranks()):
            self._look_at(f"rank {number}", rank.process.pid, shown)
        return tap.carried(), shown, store

    def test_no_daemon_shows_a_secret(self) -> None:
        with Cluster() as cluster:
            carried, shown, store = self._run(cluster, ["--secret_file=none"])
            secrets = self._secrets(carried, store)
            self._search(shown, secrets)
            # The search finds what is there. Without a job secret a tap sees all secrets but keys.
            for kind, each in secrets.items():
                self.assertTrue(each, kind)
                if kind == "member key":
                    continue
                with self.assertRaises(AssertionError, msg=kind):
                    self._search({"tap": carried}, {kind: each})

    def test_with_a_job_secret_no_secret_is_sent(self) -> None:
        with Cluster() as cluster:
            secret = cluster.directory / "secret"
            secret.touch(mode=0o600)
            secret.write_text(_JOB_SECRET + "\n")
            carried, shown, store = self._run(cluster, [f"--secret_file={secret}"])
            stored = _stored(store)
            listeners = {bytes.fromhex(key.decode()) for key in _LISTENER_KEY.findall(stored)}
            self.assertTrue(listeners)
            secrets = {
                "job secret": {bytes.fromhex(_JOB_SECRET), _JOB_SECRET.encode()},
                "listener key": listeners,
            }
            self._search({"tap": carried, **shown}, secrets)
            self.assertGreater(len(carried), 2000)
            self.assertFalse(_LISTENER_KEY.search(carried))
            self.assertFalse(_MEMBER_SEED.search(carried))
            # The store knows a session secret by its SHA-256. None of the bytes sent are one.
            hashes = {match[1].decode() for match in _HASH.finditer(stored)}
            self.assertTrue(hashes)
            windows = (carried[at : at + 32] for at in range(len(carried) - 31))
            self.assertFalse(hashes & {hashlib.sha256(each).hexdigest() for each in windows})

    def _look_at(self, name: str, pid: int, shown: dict[str, bytes]) -> None:
        for file in ("cmdline", "environ"):
            shown[f"{file} of {name}"] = Path(f"/proc/{pid}/{file}").read_bytes()

    def _search(self, shown: dict[str, bytes], secrets: dict[str, set[bytes]]) -> None:
        for place, text in shown.items():
            self.assertTrue(text, place)
            for kind, each in secrets.items():
                for secret in each:
                    for form in _forms(secret):
                        self.assertFalse(form in text, f"{place} shows a {kind}")


if __name__ == "__main__":
    unittest.main()
