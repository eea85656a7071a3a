# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine: network namespaces, joined by veth pairs and a bridge.

    with Network(["a", "b"]) as network:
        subprocess.run([*network.enter("a"), "ping", "-c1", network.address("b")])

A namespace lives as long as the process that holds it, and that process lives as long as this one. So nothing
is left over, however this ends. Nothing has a name that another could use: `ip netns add` would need /run, which
a sandbox or a chroot may not have. The host's own network is neither used nor changed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

INTERFACE = "eth0"
_DELAY_LINE = Path(__file__).with_name("delay_line.py")


class NotPermitted(Exception):
    """This machine does not let this user make networks. The text says what it answered."""


def _environment() -> dict[str, str]:
    """Adds the directories of the system's tools, which a test's PATH may not have."""
    return dict(os.environ, PATH=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _run(line: Sequence[str], what: str) -> None:
    try:
        result = subprocess.run(
            line, capture_output=True, text=True, check=False, timeout=60, env=_environment()
        )
    except OSError as error:
        raise NotPermitted(f"{what}: {error}") from None
    if result.returncode != 0:
        output = (result.stderr or result.stdout).strip()
        raise NotPermitted(f"{what}: {' '.join(line)}: status {result.returncode}: {output}")


class _Namespace:
    """A process that holds one network namespace until our end of its stdin is closed."""

    def __init__(self) -> None:
        line = ["unshare", "--net", "--", "sh", "-c", "echo made; exec cat >/dev/null"]
        try:
            self._holder = subprocess.Popen(
                line,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C must not take the network from under its users.
            )
        except OSError as error:
            raise NotPermitted(f"unshare: {error}") from None
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "made\n":
            _, errors = self._holder.communicate()
            raise NotPermitted(f"unshare --net: {errors.strip()}")

    @property
    def pid(self) -> int:
        return self._holder.pid

    def enter(self) -> tuple[str, ...]:
        return ("nsenter", f"--net=/proc/{self.pid}/ns/net", "--")

    def shell(self, script: str, what: str) -> None:
        _run([*self.enter(), "sh", "-ec", script], what)

    def close(self) -> None:
        self._holder.communicate()


class Network:
    """Hosts 10.77.0.1, 10.77.0.2, ... on one switch. A context manager."""

    def __init__(self, hosts: Sequence[str], congestion_control: str = "") -> None:
        """`congestion_control`: empty for the machine's own."""
        if len(set(hosts)) != len(hosts) or not 0 < len(hosts) < 250:
            raise ValueError(f"hosts need names of their own, 1 to 249 of them: {list(hosts)}")
        self._names = list(hosts)
        self._congestion_control = congestion_control
        self._closing = contextlib.ExitStack()
        self._hosts: dict[str, _Namespace] = {}

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _namespace(self) -> _Namespace:
        namespace = _Namespace()
        self._closing.callback(namespace.close)
        return namespace

    def _make(self) -> None:
        self._switch = self._namespace()
        self._switch.shell("ip link add bridge type bridge; ip link set bridge up", "make a bridge")
        for name in self._names:
            host = self._hosts[name] = self._namespace()
            port = self._port(name)
            self._switch.shell(
                f"ip link add {port} type veth peer name {INTERFACE} netns {host.pid};"
                f"ip link set {port} master bridge up",
                f"plug in host {name}",
            )
            script = (
                f"ip link set lo up; ip address add {self.address(name)}/24 dev {INTERFACE};"
                f"ip link set {INTERFACE} up;"
            )
            if self._congestion_control:
                path = "/proc/sys/net/ipv4/tcp_congestion_control"
                script += f"echo {self._congestion_control} >{path}"
            host.shell(script, f"give host {name} an address")

    def _port(self, host: str) -> str:
        return f"port{self._names.index(host)}"

    # ---- Use

    def address(self, host: str) -> str:
        return f"10.77.0.{self._names.index(host) + 1}"

    def enter(self, host: str) -> tuple[str, ...]:
        """What goes before a command, to run it on that host."""
        return self._hosts[host].enter()

    def pid(self, host: str) -> int:
        """A process of that host, for /proc/<pid>/net."""
        return self._hosts[host].pid

    def bytes_moved(self, host: str) -> tuple[int, int]:
        """Bytes that the host's interface has received and sent so far."""
        for line in Path(f"/proc/{self.pid(host)}/net/dev").read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name.strip() == INTERFACE:
                return int(numbers.split()[0]), int(numbers.split()[8])
        raise NotPermitted(f"host {host} has no interface {INTERFACE}")

    def shell(self, host: str, script: str) -> None:
        """Runs a command that changes the host's network."""
        self._hosts[host].shell(script, f"change host {host}")

    # ---- Weather

    def unplug(self, host: str) -> None:
        self._switch.shell(f"ip link set {self._port(host)} down", f"unplug host {host}")

    def plug(self, host: str) -> None:
        self._switch.shell(f"ip link set {self._port(host)} up", f"plug in host {host}")

    def delay(self, host: str, each_way_ms: float) -> None:
        """Puts the host at the end of a long cable, that much further from all others. Call it once."""
        port, index = self._port(host), self._names.index(host)
        near, far = f"near{index}", f"far{index}"
        self._switch.shell(
            f"ip link set {port} nomaster; ip link add {near} type veth peer name {far};"
            f"ip link set {near} up; ip link set {far} master bridge up",
            f"move host {host} away",
        )
        line = [sys.executable, str(_DELAY_LINE), port, near, str(round(each_way_ms * 1000))]
        cable = subprocess.Popen(
            [*self._switch.enter(), *line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._closing.callback(cable.communicate)
        assert cable.stdout is not None
        if cable.stdout.readline() != "ready\n":
            _, errors = cable.communicate()
            raise NotPermitted(f"move host {host} away: {errors.strip()}")

    def shape(self, host: str, bits_per_s: int, queue_ms: int = 25) -> None:
        """Gives the host a link of that rate, each way, with a queue of that length before it."""
        # A bucket of 2 ms, or a few packets as TCP hands them down.
        burst_bytes = max(64 * 1024, bits_per_s // 8 // 500)
        limit = f"rate {bits_per_s}bit burst {burst_bytes} latency {queue_ms}ms"
        what = f"shape the link of host {host}"
        self._hosts[host].shell(f"tc qdisc replace dev {INTERFACE} root tbf {limit}", what)
        self._switch.shell(f"tc qdisc replace dev {self._port(host)} root tbf {limit}", what)
