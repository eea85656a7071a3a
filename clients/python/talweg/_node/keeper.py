# SPDX-License-Identifier: Apache-2.0
"""The keeper of a node. It starts the node's daemons, and ends them when the last rank has left.

    kMeeting -> kStarting -> kServing -> kEnding

Local rank 0 starts it and hands it a Plan. The keeper is no child of that rank and has a session of
its own, so it outlives the rank. Each rank of the node keeps a connection to it. A rank is gone
when it says so, when its connection closes or when its process has ended, whichever is first. Ranks
that have outlived their agent ask for another one (docs/elastic.md).
One thread owns everything except the connection attempts to the first node.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import handshake, places
from .daemons import Daemon
from .group import Group, refusal_of
from .meeting_point import MeetingPoint
from .signals import Signals
from .stderr import say

SOCKET_NAME = "keeper.sock"
_CLAIM_S = 60.0
_NAMED_MAX = 8  # At most so many missing ranks are named.
_SAY_S = 10.0
# How often an agent is started again for ranks that have outlived it, within how many seconds.
RESTARTS = 3
RESTARTS_VARIABLE = "TALWEG_AGENT_RESTARTS"
_RESTARTS_WINDOW_S = 300.0
# How long nodes that a launcher has counted wait for each other, if a job may begin with fewer.
_GATHER_MS = 600_000
# How long the job may take to end after this node's ranks have left.
_OVER_S = 60.0
_GRACE_S = 10.0

MEETING, STARTING, SERVING, ENDING = range(4)


@dataclass
class Plan:
    """The keeper's orders, which it reads as a line of JSON from stdin."""

    tool: str
    directory: str
    job: str  # Tells jobs apart. It is the same on all nodes of a job.
    name: str  # The job's name, for people and the scheduler. The first node's counts.
    rank: int  # The rank of the node's local rank 0.
    size: int
    local_size: int
    host: str
    # The working directory of the node's local rank 0, in which the daemons run.
    rank_directory: str = "/"
    restarts: int = RESTARTS  # How often the node's agent may be started again.
    scheduler: str = ""  # The address of a scheduler that runs already, if there is one.
    node_rank: int | None = None  # None if the first node tells it.
    nodes: int = 1
    # How nodes meet. They do not meet if there is only one node, or if everything is known.
    meets: bool = False
    secret: str = ""
    # The socket of munge if it hands out the secret; "" is the usual socket.
    munge: str | None = None
    ports: list[int] = field(default_factory=list)  # The first node listens on one of them.
    addresses: list[list[Any]] = field(default_factory=list)  # The other nodes look there for it.

    @property
    def is_first(self) -> bool:
        return self.rank == 0


class _Rank:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.local_rank = -1
        self.text = b""
        self.life = 0  # The number of the agent that the rank is attached to, or was last.
        self.waits = False  # Whether that agent is lost, and the rank waits for the next one.
        self.pidfd = -1
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid, self.uid, _ = struct.unpack("iII", credentials)
        # It fails if the rank is in another PID namespace.
        with contextlib.suppress(OSError):
            self.pidfd = os.pidfd_open(self.pid)

    def tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self.connection.send(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        self.connection.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class Keeper:
    def __init__(self, plan: Plan, claim: places.Claim) -> None:
        self._plan = plan
        self._claim = claim
        self._selector = selectors.DefaultSelector()
        self._phase = MEETING
        self._ranks: list[_Rank] = []
        self._last: list[_Rank] = []  # Ranks whose goodbye is answered when everything has ended.
        self._seen: set[int] = set()  # Local ranks that have come.
        self._has_begun = False  # A rank has said that the whole job is there.
        self._daemons: list[Daemon] = []
        self._agent: Daemon | None = None
        self._life = 0  # The number of the agent: how many agents there were before it.
        self._restarts: deque[float] = deque()  # When agents were started again.
        self._failure = ""
        self._waiting = ""
        self._said_at = time.monotonic()
        self._munge = handshake.Munge(plan.munge) if plan.munge is not None else None
        self._point: MeetingPoint | None = None  # Only at the first node.
        self._group: Group | None = None  # Only at another node: its way to the first node.
        self._agent_path = f"{plan.directory}/agent.sock"
        self._agent_line: list[str] = []
        self._environment = dict(os.environ)
        self._environment.setdefault("TALWEG_LOG_LEVEL", "warning")
        path = f"{plan.directory}/{SOCKET_NAME}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{path}.new")
        self._listener.listen(256)
        self._listener.setblocking(False)
        os.rename(f"{path}.new", path)  # A rank that finds the path can connect.
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._wake, self._wake_writer = socket.socketpair()
        for end in (self._wake, self._wake_writer):
            end.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ, self._on_wake)
        self._signals = Signals()

    # ----- The loop -----

    def listen(self) -> int:
        """Listens for the other nodes, at the first node. Returns the port."""
        self._point = MeetingPoint(
            self._selector, self._plan, self._munge, self._on_all_here, self._on_node_lost
        )
        return self._point.port

    def run(self) -> None:
        """Runs the keeper. Returns when everything has ended."""
        signal.set_wakeup_fd(self._wake_writer.fileno())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            if not self._plan.meets:
                self._start(self._plan.node_rank or 0, self._plan.nodes, self._plan.scheduler)
            elif not self._plan.is_first:
                self._group = Group(self._plan, self._munge, self._wake_writer)
            while self._phase != ENDING:
                self._turn(1.0)
            self._end()
        finally:
            for daemon in self._daemons:
                daemon.process.kill()
                daemon.process.wait()
            for rank in [*self._ranks, *self._last]:
                rank.close()
            self._claim.release()

    def _turn(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            key.data()
        if self._point is not None:
            self._point.drop_silent()
        self._say_waiting()

    def _wait(self, is_over: Callable[[], bool], timeout_s: float, signals: int = 1) -> None:
        """Returns when it is over, or at the time limit, or after so many signals."""
        end = time.monotonic() + timeout_s
        while not is_over() and time.monotonic() < end and self._signals.count < signals:
            self._turn(0.2)

    def _on_signal(self, number: int, _: object) -> None:
        self._signals.add(number, time.monotonic())

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake.recv(4096):
                pass
        if self._signals.count and self._phase != ENDING:
            number = self._signals.first
            self._fail(f"the keeper of this node's daemons was ended by signal {number}")
        for daemon in list(self._daemons):
            if daemon.process.poll() is not None and daemon.ready_fd < 0 and self._phase != ENDING:
                self._on_daemon_ended(daemon)
        if self._group is not None:
            self._on_group()

    # ----- Ranks -----

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        rank = _Rank(connection)
        if rank.uid != os.getuid():
            rank.close()
            return
        connection.setblocking(False)
        self._ranks.append(rank)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(rank))
        if rank.pidfd >= 0:
            self._selector.register(
                rank.pidfd, selectors.EVENT_READ, lambda: self._on_gone(rank, False)
            )

    def _read(self, rank: _Rank) -> None:
        try:
            part = rank.connection.recv(handshake.LINE_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._on_gone(rank, False)
            return
        rank.text += part
        while b"\n" in rank.text:
            line, _, rank.text = rank.text.partition(b"\n")
            message = json.loads(line)
            if "local_rank" in message:
                self._on_hello(rank, int(message["local_rank"]))
            elif "joined" in message:
                self._has_begun = True
            elif "lost" in message:
                rank.waits = True
                self._see_to_agent()
            elif "attached" in message:
                rank.waits, rank.life = False, self._life
            elif "bye" in message:
                self._on_gone(rank, True)
                return

    def _on_hello(self, rank: _Rank, local_rank: int) -> None:
        if local_rank in self._seen or self._phase == ENDING:
            # The other process is of an earlier life of the job, or of another job of this name.
            # The rank asks again.
            rank.tell({"waiting": f"local rank {local_rank} of this job is another process"})
            self._forget(rank)
            rank.close()
            return
        rank.local_rank = local_rank
        self._seen.add(local_rank)
        if self._phase == SERVING:
            self._tell_agent()
        elif self._waiting:
            rank.tell({"waiting": self._waiting})

    def _forget(self, rank: _Rank) -> None:
        self._selector.unregister(rank.connection)
        if rank.pidfd >= 0:
            self._selector.unregister(rank.pidfd)
        self._ranks.remove(rank)

    def _on_gone(self, rank: _Rank, has_said_so: bool) -> None:
        if rank not in self._ranks:
            return
        self._forget(rank)
        is_last = not any(each.local_rank >= 0 for each in self._ranks)
        if has_said_so and is_last:
            self._last.append(rank)
        else:
            rank.close()
        if rank.local_rank < 0 or self._phase == ENDING:
            return
        if not self._has_begun:
            self._fail(
                f"local rank {rank.local_rank} of {self._plan.host} has left before the job began"
            )
        elif is_last:
            self._phase = ENDING
        else:
            self._see_to_agent()

    def _fail(self, text: str) -> None:
        """Ends, because the job does not begin or has failed. Tells the ranks why."""
        if self._phase == ENDING:
            return
        self._failure = text
        self._phase = ENDING
        for rank in list(self._ranks):
            rank.tell({"failed": text})
        if self._point is not None and not self._has_begun:
            self._point.tell_all({"failed": text})

    def _say_waiting(self) -> None:
        if self._phase != MEETING:
            return
        text = ""
        if self._point is not None:
            text = self._point.waiting()
        elif self._group is not None:
            text = self._group.waiting()
        if text != self._waiting:
            self._waiting = text
            for rank in self._ranks:
                rank.tell({"waiting": text})
            if self._point is not None:
                self._point.tell_all({"waiting": text})
        if time.monotonic() - self._said_at > _SAY_S:
            self._said_at = time.monotonic()
            say(text)

    # ----- The other nodes -----

    def _on_all_here(self) -> None:
        """Starts the first node's scheduler when all ranks have come, and tells the others."""
        assert self._point is not None
        self._phase = STARTING
        if self._plan.scheduler:
            self._tell_nodes(self._plan.scheduler)
            return
        daemon = self._launch(
            "talweg-scheduler",
            [
                "scheduler",
                f"--listen={self._point.address}:0",
                "--in_memory",
                "--insecure",  # There is no certificate. The job's secret says who may join.
            ],
        )
        self._await(daemon, lambda addresses: self._tell_nodes(addresses["listen"]))

    def _tell_nodes(self, scheduler: str) -> None:
        assert self._point is not None
        self._start(0, self._point.tell_places(scheduler), scheduler)

    def _on_node_lost(self, host: str) -> None:
        if not self._has_begun:
            self._fail(f"the ranks of {host} have left before the job began")

    def _on_group(self) -> None:
        """Goes on if the thread that looks for the first node has found it."""
        assert self._group is not None
        connection = self._group.take_found()
        if connection is not None:
            self._selector.register(connection, selectors.EVENT_READ, self._read_group)

    def _read_group(self) -> None:
        assert self._group is not None and self._group.connection is not None
        connection = self._group.connection
        for message in self._group.read():
            if "node_rank" in message and self._phase == MEETING:
                self._plan.name, scheduler = message["name"], message["scheduler"]
                refusal = "" if self._plan.scheduler else refusal_of(scheduler)
                if refusal:
                    self._fail(refusal)
                else:
                    self._start(int(message["node_rank"]), int(message["nodes"]), scheduler)
            elif "failed" in message:
                self._fail(message["failed"])
            elif "waiting" in message:
                self._group.told = message["waiting"]
        if self._group.has_ended:
            self._selector.unregister(connection)
            if self._group.is_refused and self._phase == MEETING:
                self._group.look_again()
            elif not self._has_begun:
                self._fail("the first node's ranks have left before the job began")

    # ----- Daemons -----

    def _start(self, node_rank: int, nodes: int, scheduler: str) -> None:
        self._phase = STARTING
        self._plan.node_rank, self._plan.nodes = node_rank, nodes
        if not scheduler or self._plan.scheduler:
            self._start_agent(scheduler)
            return
        # Daemons bind to the address by which this node and the first one have met.
        point = self._point or self._group
        assert point is not None
        daemon = self._launch(
            "talweg-aggregator",
            [
                "aggregator",
                f"--scheduler={scheduler}",
                f"--name={self._plan.name}-{node_rank}",
                f"--listen={point.address}:0",
                f"--admin_listen=unix:{self._plan.directory}/agg.sock",
            ],
        )
        self._await(daemon, lambda _: self._start_agent(scheduler))

    def _start_agent(self, scheduler: str) -> None:
        plan = self._plan
        line = [
            "agent",
            f"--job={plan.name}",
            f"--node_rank={plan.node_rank}",
            f"--rank_count={plan.local_size}",
            f"--socket_path={self._agent_path}",
        ]
        if not {"TALWEG_ADMIN_LISTEN", "TALWEG_INTERFACE"} & self._environment.keys():
            line.append(f"--admin_listen=unix:{plan.directory}/adm.sock")
        if scheduler:
            line += [f"--scheduler={scheduler}", f"--max_members={plan.nodes}"]
            line += self._bounds()
        else:
            line.append("--standalone")
        self._agent_line = line
        self._agent = self._launch("talweg-agent", line)
        self._await(self._agent, lambda _: self._serve())

    def _bounds(self) -> list[str]:
        """Returns the agent's options for the fewest nodes with which the job goes on.

        The job always begins with all nodes.
        """
        if self._environment.get("TALWEG_LOSS_POLICY") != "continue":
            return [f"--min_members={self._plan.nodes}"]
        told = self._environment.keys()
        line = [] if "TALWEG_MIN_MEMBERS" in told else ["--min_members=1"]
        return line if "TALWEG_GATHER_MS" in told else [*line, f"--gather_ms={_GATHER_MS}"]

    def _see_to_agent(self) -> None:
        """Starts an agent in the place of one that ranks have outlived and wait for."""
        here = [rank for rank in self._ranks if rank.local_rank >= 0]
        if self._phase != SERVING or not any(rank.waits for rank in here):
            return
        if self._agent is not None:
            # If all ranks have left the agent, it hangs. This is called again when it has ended.
            if all(rank.waits and rank.life == self._life for rank in here):
                self._agent.process.kill()
            return
        now, most = time.monotonic(), self._plan.restarts
        while self._restarts and now - self._restarts[0] > _RESTARTS_WINDOW_S:
            self._restarts.popleft()
        refusal = ""
        if len(here) < self._plan.local_size:
            refusal = "another rank of this node has ended, and an agent needs all of them"
        elif len(self._restarts) >= most:
            count = len(self._restarts)
            refusal = (
                f"it was started again {count} time{'' if count == 1 else 's'} in "
                f"{_RESTARTS_WINDOW_S:g} s, and "
                f"{RESTARTS_VARIABLE} allows {most}"
            )
        if refusal:
            text = f"this node's agent is not started again: {refusal}"
            say(text)
            for rank in here:
                rank.waits = False
                rank.tell({"failed": text})
            return
        self._restarts.append(now)
        self._life += 1
        say(
            f"this node's agent is started again, {len(self._restarts)} of {most} times in "
            f"{_RESTARTS_WINDOW_S:g} s; its ranks wait for it"
        )
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._agent_path)
        self._agent = self._launch("talweg-agent", self._agent_line)
        self._await(self._agent, lambda _: None)  # Ranks try the agent's socket themselves.

    def _serve(self) -> None:
        self._phase = SERVING
        self._tell_agent()

    def _tell_agent(self) -> None:
        """Tells the agent's address to all ranks, when all have come.

        The daemons end with the last rank. Without this wait, a rank that leaves before another one
        has come would be the last.
        """
        missing = sorted(set(range(self._plan.local_size)) - self._seen)
        message = {"agent": self._agent_path}
        if missing:
            named = ", ".join(str(local_rank) for local_rank in missing[:_NAMED_MAX])
            more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
            message = {
                "waiting": f"local rank {named}{more} of {self._plan.host} has not called init() yet"
            }
        for rank in self._ranks:
            if rank.local_rank >= 0:
                rank.tell(message)

    def _launch(self, name: str, line: list[str]) -> Daemon:
        plan = self._plan
        # For a scheduler that ran before, the user's own secret counts.
        if plan.meets and not plan.scheduler:
            line.append(f"--secret_file={self._secret_file()}")
        daemon = Daemon(name, [plan.tool, *line], self._environment, plan.rank_directory)
        self._daemons.append(daemon)
        return daemon

    def _secret_file(self) -> str:
        path = f"{self._plan.directory}/secret"
        secret = self._group.secret if self._group is not None else self._plan.secret
        with contextlib.suppress(FileExistsError):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(file, "w") as stream:
                stream.write(f"{secret}\n")
        return path

    def _await(self, daemon: Daemon, then: Callable[[dict[str, str]], None]) -> None:
        def on_ready() -> None:
            self._selector.unregister(daemon.ready_fd)
            addresses = daemon.read_ready()
            if addresses is None and self._phase == SERVING:
                daemon.process.wait()
                self._on_daemon_ended(daemon)
            elif addresses is None:
                self._fail(f"{daemon.how_it_ended()}: see above why")
            elif self._phase == STARTING:
                then(addresses)

        self._selector.register(daemon.ready_fd, selectors.EVENT_READ, on_ready)

    def _on_daemon_ended(self, daemon: Daemon) -> None:
        """Reports a daemon that has ended, and fails if the job has not begun.

        After that, ranks learn from the library that their agent is lost, and agents tell of other
        losses.
        """
        if daemon not in self._daemons:
            return
        self._daemons.remove(daemon)
        is_agent = daemon is self._agent
        # With the status 0 the agent's ranks are done.
        if not is_agent or daemon.process.returncode != 0 or not self._has_begun:
            say(daemon.how_it_ended())
        if is_agent:
            self._agent = None
            self._see_to_agent()
        if not self._has_begun:
            self._fail(f"{daemon.how_it_ended()}: see above why")

    # ----- The end -----

    def _end(self) -> None:
        """Ends the agent; then the aggregators and the scheduler, when no node needs them."""
        self._selector.unregister(self._listener)
        self._listener.close()
        if self._agent is not None:
            agent = self._agent
            # In a job with a scheduler the agent ends by itself when its ranks have left.
            if "--standalone" not in agent.process.args and not self._failure:  # type: ignore[operator]
                self._wait(lambda: agent.process.poll() is not None, _GRACE_S)
            self._end_daemon(agent)
        if self._group is not None:
            self._group.leave()
            self._wait(self._group.is_over, 0 if self._failure else _OVER_S)
        if self._point is not None:
            self._wait(self._point.have_all_left, 0 if self._failure else _OVER_S)
            self._point.tell_all({"over": True})
        for daemon in reversed(self._daemons):  # The scheduler is the first in the list.
            is_scheduler = daemon.name == "talweg-scheduler"
            if is_scheduler and self._point is not None and not self._failure:
                self._wait(self._point.are_all_gone, _GRACE_S)
            self._end_daemon(daemon)
        self._daemons.clear()
        if self._group is not None:
            self._group.close()

    def _end_daemon(self, daemon: Daemon) -> None:
        daemon.ask_to_end()
        # After a second signal the user does not want to wait.
        self._wait(lambda: daemon.process.poll() is not None, _GRACE_S, signals=2)
        daemon.end(0)


def main() -> None:
    line = sys.stdin.buffer.readline()
    plan = Plan(**json.loads(line))
    if os.fork() > 0:  # The rank waits for this parent alone, so it has no child to reap later.
        os._exit(0)
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        claim = places.Claim(Path(plan.directory), _CLAIM_S)
        keeper = Keeper(plan, claim)
        told: dict[str, Any] = {"port": keeper.listen() if plan.meets and plan.is_first else 0}
    except (OSError, TimeoutError) as error:
        os.write(answer, json.dumps({"failed": str(error)}).encode() + b"\n")
        os._exit(1)
    os.write(answer, json.dumps(told).encode() + b"\n")
    os.close(answer)
    keeper.run()
    os._exit(0)  # A thread may still read from stdin.
