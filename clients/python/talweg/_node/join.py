# SPDX-License-Identifier: Apache-2.0
"""The rank's side of a keeper. The node's first rank starts it, and all get the agent from it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from talweg import _programs
from talweg._library.native import Connection
from talweg._node import places
from talweg._node.keeper import RESTARTS, RESTARTS_VARIABLE, SOCKET_NAME
from talweg._node.launchers import Place
from talweg._node.meeting import Meeting
from talweg.errors import AgentLost, InvalidArgument, NoAgent, TalwegError, Timeout

# How long a node's last rank waits for the end of the job's other nodes, and of the daemons.
_LEAVE_S = 90.0
_ASK_S = 0.02
_AGAIN_S = 1.0
_START = "import sys; sys.path.insert(0, sys.argv[1]); from _node import keeper; keeper.main()"

# How often this process has joined jobs of the launcher's name. Each of them is a job of its own.
_lives = 0


class Attachment:
    """This rank's connection to its node's keeper."""

    def __init__(self, agent_socket: str, place: Place, connection: socket.socket) -> None:
        self.agent_socket = agent_socket
        self._place = place
        self._connection = connection

    def connect(self, timeout_s: float) -> Connection:
        """Connects to the agent. Returns the connection when the whole job is there."""
        global _lives
        try:
            connection = Connection(self.agent_socket, self._place.local_rank, timeout_s)
        except BaseException:
            self._connection.close()
            raise
        _lives += not self._place.is_drawn
        with contextlib.suppress(OSError):
            self._connection.sendall(b'{"joined": true}\n')
        return connection

    def ask_for_agent(self) -> None:
        """Has the keeper start another agent, because this rank has outlived its own and waits."""
        self._connection.setblocking(True)
        with contextlib.suppress(OSError):
            self._connection.sendall(b'{"lost": true}\n')

    def check_agent_comes(self) -> None:
        """Raises AgentLost if the keeper starts no other agent."""
        text = b""
        self._connection.setblocking(False)
        try:
            while part := self._connection.recv(65536):
                text += part
        except BlockingIOError:
            for line in text.splitlines():
                message = json.loads(line)
                if "failed" in message:
                    raise AgentLost(message["failed"]) from None
            return
        except OSError:
            pass
        raise AgentLost("this node's keeper, which had its daemons, is gone: start the job again")

    def tell_attached(self) -> None:
        """Tells the keeper that this rank is attached to the agent that it has waited for."""
        self._connection.setblocking(True)
        with contextlib.suppress(OSError):
            self._connection.sendall(b'{"attached": true}\n')

    def leave(self) -> None:
        """Says goodbye to the keeper. The node's last rank waits for the end of the daemons."""
        with contextlib.suppress(OSError):
            self._connection.sendall(b'{"bye": true}\n')
            self._connection.settimeout(_LEAVE_S)
            while self._connection.recv(4096):
                pass
        self._connection.close()


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # It was removed.
        return "/"


def _restarts(environment: Mapping[str, str]) -> int:
    """Returns how often the keeper may start an agent again."""
    text = environment.get(RESTARTS_VARIABLE, "") or str(RESTARTS)
    if re.fullmatch("[0-9]{1,6}", text) is None:
        raise InvalidArgument(
            f"{RESTARTS_VARIABLE} is '{text}'; it must be a number from 0 to 999999: how often an "
            "agent is started again for ranks that have outlived it"
        )
    return int(text)


class _Start:
    """One call of attach()."""

    def __init__(self, place: Place, environment: Mapping[str, str], timeout_s: float) -> None:
        self._place = place
        self._environment = environment
        self._timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s
        self._life = 0 if place.is_drawn else _lives
        self._directory = places.of_job(environment, place.job, place.node, self._life)
        self._digest = hashlib.sha256(f"{place.job} {self._life}".encode()).hexdigest()[:8]
        self._meeting: Meeting | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._told = ""
        self._asked_at = 0.0
        self._found: Any = None

    def _left_s(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise Timeout(
                f"the job that {self._place.launcher} has started is not complete within "
                f"{self._timeout_s:g} s: {self._told or 'this node has no agent yet'}"
            )
        return left

    def run(self) -> Attachment:
        try:
            self._open_meeting()
            if self._place.local_rank == 0:
                self._start_keeper()
            return self._attach()
        finally:
            if self._meeting is not None:
                self._meeting.close()
            if self._keeper is not None and self._keeper.stdin is not None:
                self._keeper.stdin.close()

    def _open_meeting(self) -> None:
        place = self._place
        if not self._meets():
            return
        assert place.meet is not None
        is_first_here = place.local_rank == 0
        if is_first_here or place.all_meet:
            self._meeting = place.meet(self._left_s(), f"{self._digest}.{self._life}")
        if self._meeting is not None and not is_first_here:
            self._meeting.close()
            self._meeting = None

    # ----- The keeper -----

    def _meets(self) -> bool:
        """Whether the nodes need to meet, because they do not know everything about the job."""
        place = self._place
        knows_all = place.node_rank is not None and place.nodes is not None
        if self._environment.get("TALWEG_SCHEDULER") and knows_all:
            return False
        return place.local_size < place.size

    def _plan(self) -> dict[str, Any]:
        place = self._place
        is_one_node = place.local_size == place.size
        return {
            "tool": os.path.abspath(_programs.tool()),
            "directory": str(self._directory),
            "rank_directory": _working_directory(),
            "job": f"{place.job} {self._life}",
            "name": self._name(),
            "rank": place.rank,
            "size": place.size,
            "local_size": place.local_size,
            "host": socket.gethostname(),
            "restarts": _restarts(self._environment),
            "scheduler": self._environment.get("TALWEG_SCHEDULER", ""),
            "node_rank": 0 if is_one_node else place.node_rank,
            "nodes": 1 if is_one_node else place.nodes or 1,
            **self._plan_of_meeting(),
        }

    def _name(self) -> str:
        """Returns the job's name, which no other job of its scheduler has.

        If the nodes meet, or there is only one, the name is random, because not every node may
        count the lives that a launcher begins. The first node's name counts. Otherwise all nodes
        make the same name from the job.
        """
        is_one_node = self._place.local_size == self._place.size
        is_drawn = is_one_node or self._meets()
        own = secrets.token_hex(4) if is_drawn else self._digest
        return self._environment.get("TALWEG_JOB") or f"job-{own}"

    def _plan_of_meeting(self) -> dict[str, Any]:
        meeting = self._meeting
        if meeting is None:
            return {}
        plan: dict[str, Any] = {"meets": True, "munge": meeting.munge}
        if self._place.rank == 0:
            return {**plan, "ports": list(meeting.ports), "secret": meeting.secret()}
        while self._found is None:
            self._told = "the first node's first rank has not called init() yet"
            self._found = meeting.find(min(self._left_s(), _AGAIN_S))
        return {**plan, "addresses": self._found[0], "secret": self._found[1]}

    def _start_keeper(self) -> None:
        plan = self._plan()
        if sys.executable is None:
            raise TalwegError(
                "there is no Python to run this node's keeper: sys.executable is None"
            )
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, str(Path(__file__).parents[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",  # The keeper keeps no file system busy. Its daemons run where the rank does.
            env=dict(self._environment),
        )
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._say_to_keeper(plan)
        answer = self._keeper.stdout.readline()
        self._keeper.stdout.close()
        self._keeper.wait()  # The keeper goes on in a forked process.
        told = json.loads(answer) if answer else {"failed": "it has ended; see above why"}
        if "failed" in told:
            raise NoAgent(
                f"this node's keeper, which has its daemons, cannot start: {told['failed']}"
            )
        if self._meeting is not None and self._place.rank == 0:
            self._meeting.announce(int(told["port"]), str(plan["secret"]))

    def _say_to_keeper(self, message: dict[str, Any]) -> None:
        assert self._keeper is not None and self._keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.write(json.dumps(message).encode() + b"\n")
            self._keeper.stdin.flush()

    def _ask_again(self) -> None:
        """Asks again where the first node is. Its earlier answer may be from an earlier life of the
        job.
        """
        if self._meeting is None or not self._meeting.changes or self._place.rank == 0:
            return
        if time.monotonic() - self._asked_at < _AGAIN_S:
            return
        self._asked_at = time.monotonic()
        found = self._meeting.find(0)
        if found is not None and found != self._found:
            self._found = found
            self._say_to_keeper({"addresses": found[0], "secret": found[1]})

    # ----- The agent -----

    def _attach(self) -> Attachment:
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(self._directory / SOCKET_NAME))
                connection.sendall(
                    json.dumps({"local_rank": self._place.local_rank}).encode() + b"\n"
                )
                agent = self._hear(connection)
                if agent is not None:
                    return Attachment(agent, self._place, connection)
            except OSError:
                pass  # The keeper is not there yet.
            except BaseException:
                connection.close()
                raise
            connection.close()
            self._left_s()
            time.sleep(_ASK_S)

    def _hear(self, connection: socket.socket) -> str | None:
        """Returns the path of the agent's socket; None if the keeper does not take this rank."""
        text = b""
        while True:
            connection.settimeout(min(self._left_s(), _AGAIN_S))
            try:
                part = connection.recv(65536)
            except socket.timeout:
                self._ask_again()
                continue
            if not part:
                return None
            text += part
            while b"\n" in text:
                line, _, text = text.partition(b"\n")
                message = json.loads(line)
                if "agent" in message:
                    return str(message["agent"])
                if "failed" in message:
                    raise AgentLost(message["failed"])
                self._told = message.get("waiting", self._told)


def attach(place: Place, environment: Mapping[str, str], timeout_s: float) -> Attachment:
    """Has the node's agent started, once on each node. Returns the connection to the keeper.

    Raises Timeout if the nodes do not meet in time, and NoAgent or AgentLost if the daemons do not
    start.
    """
    return _Start(place, environment, timeout_s).run()
