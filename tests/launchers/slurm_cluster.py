# SPDX-License-Identifier: Apache-2.0
"""Runs a Slurm cluster on this host: munge, the controller, and nodes that are processes."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import job

_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldPidFile={directory}/slurmctld.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
TaskPlugin=task/none
ProctrackType=proctrack/pgid
SchedulerType=sched/builtin
SelectType=select/cons_tres
ReturnToService=2
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}\n"


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class SlurmCluster:
    """Nodes n1, n2 and so on, with as many CPUs as ranks. A context manager that needs root."""

    def __init__(self, directory: Path, nodes: int, cpus: int) -> None:
        self._directory = directory
        self._variables = {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        self._names = [f"n{number}" for number in range(1, nodes + 1)]
        self._cpus = cpus
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> dict[str, str]:
        """Returns the variables by which srun finds the cluster."""
        try:
            return self._start()
        except BaseException:
            self.__exit__()
            raise

    def _start(self) -> dict[str, str]:
        directory, host = self._directory, socket.gethostname()
        directory.chmod(0o755)
        for each in (directory / "state", directory / "munge"):
            each.mkdir(mode=0o755)
        ports = _free_ports(1 + len(self._names))
        text = _CONFIGURATION.format(host=host, port=ports[0], directory=directory)
        for name, port in zip(self._names, ports[1:]):
            text += _NODE.format(name=name, host=host, port=port, cpus=self._cpus)
        text += f"PartitionName=all Nodes={','.join(self._names)} Default=YES State=UP\n"
        configuration = directory / "slurm.conf"
        configuration.write_text(text)
        key = directory / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        files = {"key-file": key, "socket": directory / "munge" / "socket"}
        files |= {"pid-file": directory / "munged.pid", "log-file": directory / "munged.log"}
        files["seed-file"] = directory / "munge.seed"
        options = [f"--{name}={path}" for name, path in files.items()]
        self._spawn(["munged", "--foreground", "--force", *options])
        self._await(files["socket"].exists, "munged")
        self._variables["SLURM_CONF"] = str(configuration)
        self._spawn(["slurmctld", "-D", "-f", str(configuration)])
        for name in self._names:
            self._spawn(["slurmd", "-D", "-N", name, "-f", str(configuration)])
        self._await(self._are_idle, "the nodes")
        return self._variables

    def _spawn(self, line: list[str]) -> None:
        log = (self._directory / f"{line[0]}.output").open("ab")
        with log:
            self._processes.append(
                subprocess.Popen(
                    line,
                    env={**os.environ, **self._variables},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _are_idle(self) -> bool:
        line = ["sinfo", "--noheader", "--Node", "--format=%T"]
        done = subprocess.run(
            line, env={**os.environ, **self._variables}, capture_output=True, text=True, check=False
        )
        return done.stdout.split() == ["idle"] * len(self._names)

    def _await(self, is_there: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + job.TIMEOUT_S
        while not is_there():
            if time.monotonic() > end or any(each.poll() is not None for each in self._processes):
                logs = [
                    path.read_text()[-3000:] for path in sorted(self._directory.glob("*.output"))
                ]
                raise AssertionError(f"{what} of Slurm did not come: {logs}")
            time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
