# SPDX-License-Identifier: Apache-2.0
"""The program that `talweg run` becomes if hosts come and go: docs/launching.md.

host_set.py decides what to do, and this module does it. On each host it has `talweg run` run one
node of the job, here or by ssh (hosts.py). The scheduler runs on this host.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from talweg import _programs
from talweg._node import hosts, ranks, too_late
from talweg._node.beats import Beats
from talweg._node.caller import Caller
from talweg._node.host_set import (
    Action,
    Begin,
    Bounds,
    Expect,
    FindEntered,
    HostSet,
    HostState,
    JobState,
    Policy,
    Say,
    Start,
    Stop,
)
from talweg._node.listed_hosts import FixedHosts, HostFile, HostList, HostScript, parse_hosts
from talweg._node.meeting import own_addresses
from talweg._node.outputs import Output
from talweg._node.own_scheduler import OwnScheduler
from talweg._node.question import Question
from talweg._node.signals import Signals
from talweg._node.stderr import say
from talweg.errors import InvalidArgument, TalwegError

_TURN_S = 0.2
_SAY_S = 10.0
# How lines of a node's own launcher begin, and those that say how a rank has failed.
_OF_RUN = "talweg: run: "
_OF_RANK = f"{_OF_RUN}rank "
_ANSWER_S = 10.0
# A host that says nothing for so long counts as lost. It then ends by itself what runs there.
_SILENCE_S = 30.0
_SILENCE_VARIABLE = "TALWEG_HOST_SILENCE_S"
_NODES_MAX = 65536
# Options that a node's own `talweg run` gets unchanged.
_NODE_OPTIONS = (
    *("aggregators", "data-security", "gather-ms", "grace-ms", "job", "master-addr"),
    *("master-port", "provider", "ready-timeout-ms", "restart-pause-ms", "restart-window-s"),
    *("line-prefix", "output-dir", "restarts", "trace"),
)


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of this program's options, which `talweg run` has checked."""
    parser = argparse.ArgumentParser(prog="talweg run", allow_abbrev=False)
    parser.add_argument("--directory", required=True)
    for name in ("hosts", "hostfile", "host-discovery-script", "ssh-identity-file"):
        parser.add_argument(f"--{name}")
    for name in ("nodes", "min-nodes", "max-nodes", "ranks", "min-ranks", "max-ranks"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--ranks-per-node", type=int, default=1)
    parser.add_argument("--hosts-interval-s", type=float, default=1.0)
    parser.add_argument("--hosts-wait-s", type=float, default=600.0)
    parser.add_argument("--host-cooldown-s", default="")
    parser.add_argument("--host-changes-max", type=int)
    parser.add_argument("--network-interfaces", default="")
    parser.add_argument("--ssh-port", type=int)
    parser.add_argument("--no-prefix", action="store_true")
    for name in _NODE_OPTIONS:
        parser.add_argument(f"--{name}")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    return parser


def _list_of(options: Any) -> HostList:
    every_s, slots = options.hosts_interval_s, options.ranks_per_node
    if options.hostfile:
        return HostFile(options.hostfile, every_s, slots)
    if options.host_discovery_script:
        return HostScript(options.host_discovery_script, every_s, slots)
    return FixedHosts(parse_hosts(options.hosts, slots))


def _bounds_of(options: Any) -> Bounds:
    in_ranks = bool(options.ranks or options.min_ranks or options.max_ranks)
    first = options.ranks if in_ranks else options.nodes
    least = (options.min_ranks if in_ranks else options.min_nodes) or 1
    most = options.max_ranks if in_ranks else options.max_nodes
    return Bounds(max(first, least), least, most, in_ranks)


def _policy_of(options: Any) -> Policy:
    cooldown = [float(each) for each in options.host_cooldown_s.split(",") if each]
    return Policy(
        options.hosts_wait_s,
        (cooldown[0], cooldown[1]) if cooldown else None,
        options.host_changes_max,
    )


def _silence_s() -> float:
    text = os.environ.get(_SILENCE_VARIABLE, "") or f"{_SILENCE_S}"
    try:
        silence_s = float(text)
    except ValueError:
        silence_s = 0.0
    if not 3 <= silence_s <= 3600:
        raise InvalidArgument(
            f"{_SILENCE_VARIABLE} is '{text}'; it is a number of seconds from 3 to 3600"
        )
    return silence_s


def _address_towards(host: str) -> str:
    """Returns this host's address on the way to `host`, by which other hosts probably reach it.

    Sends nothing.
    """
    own = own_addresses() or ["127.0.0.1"]
    if not hosts.is_here(host) and "TALWEG_INTERFACE" not in os.environ:
        with contextlib.suppress(OSError):
            family, kind, protocol, _, address = socket.getaddrinfo(host, 9, 0, socket.SOCK_DGRAM)[
                0
            ]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return own[0]


# The states of jobs that are not over.
_OPEN = ("JOB_STATE_FORMING", "JOB_STATE_RUNNING")
# The states of members that have entered, even if they hold no view yet. A member that was lost
# before it entered has failed, too: it has not come too late.
_ENTERED = ("MEMBER_STATE_JOINED", "MEMBER_STATE_LEFT", "MEMBER_STATE_LOST")


def _nodes_of(members: Iterable[Any]) -> set[int]:
    return {int(each["member"]["id"]["node_rank"]) for each in members}


def _entered_of(members: Sequence[Any]) -> set[int]:
    """Returns the nodes that have entered a job, from the members that the scheduler shows."""
    return _nodes_of(
        each
        for each in members
        if (each["state"] in _ENTERED and too_late.WORDS not in each["state_text"])
        or int(each["epoch_held"]) > 0
    )


def _job_of(jobs: Sequence[Any], node: int) -> tuple[set[int], bool]:
    """Returns the nodes that are or have been in the job of `node`, and whether it has had a view.

    `jobs` are the jobs that the scheduler shows. A node that came when all others had left is in a
    job of its own. One whose ranks have ended very soon is in none.
    """
    of_node = [job for job in jobs if node in _entered_of(job["members"])]
    entered = {each for job in of_node for each in _entered_of(job["members"])}
    return entered, any(int(job["summary"]["epoch"]) > 0 for job in of_node)


def _state_of(jobs: Sequence[Any], name: str) -> tuple[set[int], bool]:
    """Returns the nodes that have the training's state, and whether the job of that name has begun.

    `jobs` are the jobs that the scheduler shows.
    """
    of_name = [each["job"] for each in jobs if each["job"]["summary"]["name"] == name]
    members = [each for job in of_name for each in job["members"]]
    nodes = _nodes_of(each for each in members if each["has_state"])
    return nodes, any(job["summary"]["state"] == "JOB_STATE_RUNNING" for job in of_name)


class _Node:
    """The node on one host, until all that runs there has ended."""

    def __init__(self, start: Start, on_host: hosts.OnHost) -> None:
        self.host = start.host
        self.number = start.node
        self.ranks = start.ranks
        self.on_host = on_host
        self.has_begun = False  # It was told to start its ranks.
        self.status: int | None = None
        self.failure = ""  # What the node's own launcher says of the first rank that fails.
        self.results: dict[str, str] = {}  # What its ranks have left, by "node.local rank".
        self.kill_s: float | None = None


class HostsRun:
    """One job on hosts that come and go."""

    def __init__(self, options: Any) -> None:
        self._options = options
        self._directory = Path(options.directory)
        self._tool = _programs.tool()
        self._caller = Caller(os.environ)
        self._secret = secrets.token_hex(32)
        self._environment = {**os.environ, "TALWEG_SECRET_FILE": f"{self._directory}/secret"}
        self._name = options.job or "run"
        self._silence_s = _silence_s()
        self._ssh = hosts.Ssh(
            options.ssh_port, options.ssh_identity_file, silence_s=self._silence_s
        )
        self._bounds = _bounds_of(options)
        self._list = _list_of(options)
        self._selector = selectors.DefaultSelector()
        # It is used while much is unwritten. It does not watch the hosts' pipes, so hosts wait.
        self._selector_when_full = selectors.DefaultSelector()
        self._outputs = {"stdout": Output(1), "stderr": Output(2)}
        self._nodes: dict[str, _Node] = {}  # By host.
        self._slots: dict[str, int] = {}  # As the list names them, by host.
        self._beats = Beats(self._silence_s / 6)
        self._signals = Signals()
        self._untaken: list[int] = []  # The numbers of signals.
        self._has_list = False
        self._said = ""
        self._said_s = 0.0
        self._job = HostSet(self._bounds, _policy_of(options), time.monotonic())
        # With how many nodes the job begins; 0 if the scheduler knows, or the members decide.
        self._expected = 0
        self._told = 0
        self._telling = Question()
        self._state = Question()
        told = "TALWEG_LOG_LEVEL" in os.environ
        # The user hears of a run's daemons only if something is wrong.
        self._log_level = [] if told else ["--log_level=warning"]
        self._scheduler: OwnScheduler | None = None

    def run(self) -> int:
        """Runs the job. Returns the exit status when everything has ended."""
        ranks.use_interface(self._options.network_interfaces.split(","), os.environ)
        secret_file = self._directory / "secret"
        secret_file.touch(0o600)
        secret_file.write_text(f"{self._secret}\n")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # A program under nohup outlives its terminal.
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # `talweg run` has blocked them.
        try:
            self._scheduler = OwnScheduler(self._directory, self._log_level)
            self._scheduler.serve()
            while self._job.state is not JobState.OVER:
                self._turn()
        finally:
            for node in self._nodes.values():
                node.on_host.kill()
            self._beats.end()
            self._list.close()
            self._telling.close()
            self._state.close()
            if self._scheduler is not None:
                self._scheduler.end()
            if self._job.report:
                self._say(self._job.report)
            self._caller.answer(self._job.report)
            deadline_s = time.monotonic() + _ANSWER_S
            for output in self._outputs.values():
                output.drain(deadline_s)
        return self._job.status

    # ----- Events -----

    def _turn(self) -> None:
        # While the job ends, hosts are always read, even if nobody reads this program's output.
        is_full = self._job.state is not JobState.ENDING and any(
            output.is_full for output in self._outputs.values()
        )
        for key, _ in (self._selector_when_full if is_full else self._selector).select(_TURN_S):
            if key.data is not None:
                self._read(key.data)
        now_s = time.monotonic()
        self._take_signals()
        if self._caller.is_gone():
            self._do(self._job.end(1, "the program that has started the run has ended"))
        self._poll_list(now_s)
        assert self._scheduler is not None
        try:
            text = self._scheduler.check(now_s)
        except TalwegError as error:
            text = ""
            self._do(self._job.end(1, str(error)))
        if text:
            self._say(text)
        due_s = self._job.next_s()
        if due_s is not None and now_s >= due_s:
            self._do(self._job.on_time(now_s))
        for node in self._nodes.values():
            if node.kill_s is not None and now_s >= node.kill_s:
                node.on_host.kill()
            node.on_host.send()
            for selector in (self._selector, self._selector_when_full):
                node.on_host.wake(selector)
        self._tell_expected(now_s)
        self._ask_for_state(now_s)
        self._say_waiting(now_s)
        self._write()

    def _write(self) -> None:
        for name, output in self._outputs.items():
            failure = output.write()
            if failure:
                self._say(f"what is written to {name} is lost, the job goes on: {failure}")
            if output.is_gone:  # Its reader has gone.
                self._do(self._job.end(128 + signal.SIGPIPE, ""))
        for output in self._outputs.values():
            output.wake(self._selector)
            output.wake(self._selector_when_full)

    def _tell_expected(self, now_s: float) -> None:
        """Tells the scheduler that fewer nodes come, again until the scheduler knows the job."""
        said = self._telling.answer()
        if said is not None:
            if self._expected == self._told:
                self._expected = 0
            if said.strip() == "begun":
                self._job.on_begun()
        if self._expected:
            line = self._line("begin-with", f"--job={self._name}", f"--members={self._expected}")
            if self._telling.ask(line, self._environment, now_s):
                self._told = self._expected

    def _ask_for_state(self, now_s: float) -> None:
        """Finds out which hosts have the training's state, while a host waits for that to go."""
        said = self._state.answer()
        if said is not None:
            with_state, has_begun = _state_of(json.loads(said)["jobs"], self._name)
            names = [name for name, node in self._nodes.items() if node.number in with_state]
            self._do(self._job.on_state(names, has_begun, now_s))
        if self._job.asks_for_state:
            self._state.ask(self._line("status", "--brief", "--json"), self._environment, now_s)

    def _line(self, command: str, *options: str) -> list[str]:
        """Returns a command line of the tool `talweg` that asks the scheduler."""
        assert self._scheduler is not None
        return [self._tool, command, f"--scheduler={self._scheduler.address}", *options]

    def _on_signal(self, number: int, _: object) -> None:
        if self._signals.add(number, time.monotonic()):
            self._untaken.append(number)

    def _take_signals(self) -> None:
        while self._untaken:
            number = self._untaken.pop(0)
            if self._job.state is JobState.ENDING:
                # After a second signal the user does not want to wait.
                for node in self._nodes.values():
                    node.on_host.kill()
            text = f"ended by signal {number} ({signal.strsignal(number)})"
            self._do(self._job.end(128 + number, text))

    def _poll_list(self, now_s: float) -> None:
        if self._job.state in (JobState.ENDING, JobState.FINISHING, JobState.OVER):
            return
        try:
            listed = self._list.poll(now_s)
        except (TalwegError, OSError, ValueError) as error:
            if not self._has_list:
                self._do(self._job.end(1, str(error)))
            elif str(error) != self._said:
                self._said = str(error)
                self._say(f"{error}; the hosts stay what they were")
            return
        if listed is not None:
            self._has_list, self._said = True, ""
            self._tell_of_hosts(listed)
            self._do(self._job.on_listed(listed, now_s))

    def _tell_of_hosts(self, listed: Sequence[hosts.Host]) -> None:
        """Tells all nodes whether hosts, or slots, have come or gone in the list."""
        before, self._slots = self._slots, {host.name: host.slots for host in listed}
        changes = [
            self._slots.get(name, 0) - before.get(name, 0) for name in {*before, *self._slots}
        ]
        has_come, has_gone = any(each > 0 for each in changes), any(each < 0 for each in changes)
        if has_come or has_gone:
            for node in self._nodes.values():
                node.on_host.tell_of_hosts(has_come, has_gone)

    def _read(self, node: _Node) -> None:
        messages = node.on_host.read()
        for message in messages or []:
            if "text" in message:
                if node.kill_s is not None and message["text"].startswith(_OF_RUN):
                    continue  # The launcher is ending the node itself, so its text is no news.
                if message["text"].startswith(_OF_RANK):
                    node.failure = node.failure or message["text"][len(_OF_RUN) :].split(";")[0]
                self._pass(message["stream"], message["text"])
            elif "result" in message:
                node.results[message["place"]] = message["result"]
            elif "status" in message:
                node.status = int(message["status"])
            elif "printed" in message:
                self._say(message["printed"])
            elif "here" in message:
                self._do(self._job.on_here(node.host, time.monotonic()))
        if messages is not None:
            return
        self._selector.unregister(node.on_host)
        self._beats.remove(node.on_host)
        del self._nodes[node.host]
        failure = node.on_host.failure()
        status = node.status
        if status is None:
            status, failure = 1, failure or "it has not said how its ranks have ended"
        elif status != 0:
            failure = f"{node.failure or f'exit status {status}'} (above)"
        elif self._job.state_of(node.host) is HostState.RUNNING:
            self._caller.keep(node.results)
        now_s = time.monotonic()
        if status != 0 and self._job.may_be_late(node.host):
            entered = self._entered_before(node.number)
            if entered is not None:
                self._do(self._job.on_too_late(node.host, self._outside(entered), now_s))
                return
        self._do(self._job.on_ended(node.host, status, failure, now_s))

    def _pass(self, stream: str, text: str) -> None:
        self._outputs[stream].add(f"{text}{hosts.end_of(text)}")

    def _say_waiting(self, now_s: float) -> None:
        text = self._job.waiting()
        if text and now_s - self._said_s > _SAY_S:
            self._said_s = now_s
            self._say(text)

    def _say(self, text: str) -> None:
        self._outputs["stderr"].add(f"talweg: run: {text}\n")

    # ----- Actions -----

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Begin):
                self._nodes[action.host].has_begun = True
        for action in actions:
            if isinstance(action, Say):
                self._say(action.text)
            elif isinstance(action, Start):
                self._start(action)
            elif isinstance(action, Begin):
                later = " --not-after-finish" if action.is_later else ""
                node = self._nodes[action.host]
                node.on_host.begin(f"{action.nodes}{later}{self._first_numbers(node)}")
            elif isinstance(action, Expect):
                self._expected = action.nodes
            elif isinstance(action, Stop):
                self._stop(self._nodes[action.host])
            elif isinstance(action, FindEntered):
                self._find_entered(action.node)

    def _first_numbers(self, node: _Node) -> str:
        """Returns, as words of BEGIN, which numbers the node's ranks will have, if no other node
        comes or goes before they are in the job.
        """
        there = [each for each in self._nodes.values() if each.has_begun]
        before = sum(each.ranks for each in there if each.number < node.number)
        size = sum(each.ranks for each in there)
        return f" +TALWEG_FIRST_RANK={before} +TALWEG_FIRST_SIZE={size}"

    def _start(self, start: Start) -> None:
        here = hosts.is_here(start.host)
        least = "TALWEG_RANKS_MIN" if self._bounds.in_ranks else "TALWEG_NODES_MIN"
        own = {least: str(self._bounds.least), "TALWEG_HOST": start.host}
        line = [*self._node_line(start), "--nodes="]  # Begin gives the number.
        task = {
            "command": [*line, "--", *self._options.program],
            "completed": len(line) - 1,
            "directory": os.getcwd(),
            "environment": hosts.sent(os.environ, here),
            "variables": {str(start.node): own},
            "secret": self._secret,
            "files": self._caller.files,
            "interfaces": self._options.network_interfaces.split(","),
            "waits": True,
            "silence_s": self._silence_s,
        }
        # Raises TalwegError if there is no ssh. Then no host can be reached.
        on_host = hosts.OnHost(start.host, task, self._ssh, sys.executable)
        node = _Node(start, on_host)
        self._nodes[start.host] = node
        self._beats.add(on_host)
        self._selector.register(on_host, selectors.EVENT_READ, node)

    def _node_line(self, start: Start) -> list[str]:
        assert self._scheduler is not None
        address = _address_towards(start.host)
        address = f"[{address}]" if ":" in address else address
        line = [
            self._tool,
            "run",
            f"--scheduler={address}:{self._scheduler.port}",
            f"--node-rank={start.node}",
            f"--max-nodes={_NODES_MAX}",  # This program limits the number of nodes itself.
            f"--ranks-per-node={start.ranks}",
        ]
        told = {"aggregators": "1"}
        for name in _NODE_OPTIONS:
            value = getattr(self._options, name.replace("-", "_"))
            if value is not None:
                told[name] = value
        line += [f"--{name}={value}" for name, value in told.items()]
        return line + (["--no-prefix"] if self._options.no_prefix else [])

    def _stop(self, node: _Node) -> None:
        node.on_host.ask_to_end()
        node.kill_s = time.monotonic() + hosts.GRACE_S

    def _find_entered(self, node: int) -> None:
        jobs = self._jobs()
        if jobs is None:
            return
        entered, has_begun = _job_of(jobs, node)
        self._do(self._job.on_outside(self._outside(entered), time.monotonic(), has_begun))

    def _outside(self, entered: set[int]) -> list[str]:
        """Returns the running hosts whose nodes are not in `entered`."""
        running = self._job.hosts(HostState.RUNNING)
        return [
            name
            for name in running
            if name in self._nodes and self._nodes[name].number not in entered
        ]

    def _entered_before(self, node: int) -> set[int] | None:
        """Returns the nodes that have been in the job, if it has finished before `node` could enter
        it, and no other one is open; else None.
        """
        entered: set[int] = set()
        has_finished = False
        for job in self._jobs() or []:
            if job["summary"]["state"] in _OPEN:
                return None
            has_finished |= job["summary"]["state"] == "JOB_STATE_FINISHED"
            entered |= _entered_of(job["members"])
        return entered if has_finished and node not in entered else None

    def _jobs(self) -> list[Any] | None:
        """Returns the jobs that the scheduler knows, and those that have ended lately; None if the
        scheduler does not answer.
        """
        line = self._line("status", "--brief", "--all", "--json")
        try:
            done = subprocess.run(
                line, env=self._environment, capture_output=True, timeout=_ANSWER_S, check=True
            )
            return [each["job"] for each in json.loads(done.stdout)["jobs"]]
        except (subprocess.SubprocessError, OSError, ValueError, KeyError):
            return None


def main() -> None:
    options = _parser().parse_args()
    options.program = options.program[1:]  # The parser leaves the "--" before it.
    status = 1
    try:
        status = HostsRun(options).run()
    except (TalwegError, OSError) as error:
        say(f"run: {error}")
        status = 2 if isinstance(error, InvalidArgument) else 1
    finally:
        shutil.rmtree(options.directory, ignore_errors=True)
    sys.exit(status)
