# SPDX-License-Identifier: Apache-2.0
"""Tests `talweg run` on hosts that come and go, with real daemons."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import IO

from cluster import PROGRAMS, TOOL
from virtual_hosts import HostsJob, descendants

# Hosts that hear nothing of the launcher for so long end.
_SILENCE_S = 3
_SHORT_SILENCE = {"TALWEG_HOST_SILENCE_S": str(_SILENCE_S)}


class _Job(HostsJob):
    def __init__(self, test: unittest.TestCase, hosts: str, *options: str) -> None:
        super().__init__(test, hosts, [*options, "--"], ["train_on.py", "--pause=0.01"])


# Host b is told to begin when SLOW exists.
_SLOW_TO_BEGIN = """  b)
    {{
      IFS= read -r task
      printf '%s\\n' "$task"
      until [ -e {directory}/SLOW ]; do sleep 0.05; done
      cat
    }} | sh -c "$*"
    exit ;;
"""


class _ShortJob(HostsJob):
    """A job whose ranks end at once, and never enter it."""

    def __init__(self, test: unittest.TestCase) -> None:
        program = ["sh", "-c", "touch {ranks}/$TALWEG_HOST"]
        options = ["--hosts=a,b", "--nodes=2", "--min-nodes=2", "--"]
        super().__init__(test, "a b", options, program)

    def ssh(self) -> str:
        case = _SLOW_TO_BEGIN.format(directory=self.directory)
        return super().ssh().replace("  slow*)", f"{case}  slow*)")


class _LargeJob(_Job):
    """A job whose environment is larger than a pipe."""

    variables = {**_SHORT_SILENCE, "LARGE": "x" * 100_000}


class _SlowJob(_Job):
    """A job whose launcher another program runs."""

    def __init__(self, test: unittest.TestCase, python: str) -> None:
        self.variables = {"TALWEG_PYTHON": python}
        super().__init__(test, "a", "--hostfile={hosts}")


class _TalkativeJob(_Job):
    """A job on hosts whose shells print something before they run a command."""

    def ssh(self) -> str:
        return super().ssh().replace("exec sh", "printf 'hello\\n\\377 '; exec sh")


# A Python whose name server takes longer to answer for host b than hosts wait for the launcher.
_SLOW_NAMES = """#!{python}
import os, sys
slow = '''
import socket, time
found = socket.getaddrinfo
def getaddrinfo(host, *others):
    time.sleep({wait_s} if host == "b" else 0)
    return found("localhost", *others)
socket.getaddrinfo = getaddrinfo
'''
words = [slow + word if "hosts_run.main()" in word else word for word in sys.argv[1:]]
os.execv("{python}", ["{python}", *words])
"""


class _SlowNamesJob(_Job):
    variables = _SHORT_SILENCE

    def __init__(self, test: unittest.TestCase) -> None:
        directory = tempfile.TemporaryDirectory(dir="/tmp")
        test.addCleanup(directory.cleanup)
        python = Path(directory.name, "python")
        python.write_text(_SLOW_NAMES.format(python=sys.executable, wait_s=3 * _SILENCE_S))
        python.chmod(0o755)
        self.variables = {**_SHORT_SILENCE, "TALWEG_PYTHON": str(python)}
        super().__init__(test, "a", "--hostfile={hosts}")


class _HeldJob(_Job):
    """A job with a host "a" that is stopped before the beginning, and one that is reached later."""

    def __init__(self, test: unittest.TestCase, *options: str) -> None:
        super().__init__(test, "a slow", "--hostfile={hosts}", *options)
        here = self.directory / "said.a"
        self.wait_for("host a is here", lambda: here.exists() and '"here"' in here.read_text())
        self._held = self.processes("a")
        for pid in self._held:
            os.kill(pid, signal.SIGSTOP)
        (self.directory / "SLOW").touch()
        self.wait_for("host slow has a rank", lambda: any(map(_is_rank, self.processes("slow"))))

    def ssh(self) -> str:
        return (
            super()
            .ssh()
            .replace('exec sh -c "$*"', f'sh -c "$*" | tee {self.directory}/said.$host')
        )

    def let_go(self) -> None:
        for pid in self._held:
            os.kill(pid, signal.SIGCONT)


def _line_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # The process has ended.
        return b""


def _is_rank(pid: int) -> bool:
    return _line_of(pid).startswith(f"{sys.executable}\0-P\0".encode())


def _is_launcher(pid: int) -> bool:
    return b"hosts_run.main()" in _line_of(pid)


def _is_of_launcher(pid: int) -> bool:
    """Whether the process is the one by which the launcher has reached a host."""
    return b"ranks.main()" in _line_of(pid)


# A program that begins, and ends when a file tells it to. It ends no step, so nobody enters.
_BEGINS_AND_ENDS = (
    "import os, sys, time, talweg; talweg.init(); directory = sys.argv[1]; "
    "open(f'{directory}/{os.getpid()}', 'w').write('step\\n')\n"
    "stop = f'{directory}/stop' + os.environ['GROUP_RANK']\n"
    "while not os.path.exists(stop): time.sleep(0.01)\n"
    "talweg.shutdown()"
)


class _EndlessJob(HostsJob):
    """A job whose program ends no step."""

    def __init__(self, test: unittest.TestCase, hosts: str) -> None:
        program = [sys.executable, "-P", "-c", _BEGINS_AND_ENDS, "{ranks}"]
        super().__init__(test, hosts, ["--hostfile={hosts}", "--"], program)
        self.wait_for("all have begun", lambda: len(self.said()) == len(hosts.split()))

    def members(self) -> int:
        """Returns how many nodes the scheduler knows in the job. Nodes that wait to enter count."""
        port = re.search(r"listening on .*:(\d+) without TLS", self.text())
        assert port is not None, self.text()
        (store,) = self.temporary.glob("talweg-run-*/scheduler.db")
        line = [str(TOOL), "status", f"--scheduler=localhost:{port[1]}", "--brief", "--json"]
        environment = {**os.environ, "TALWEG_SECRET_FILE": str(store.parent / "secret")}
        done = subprocess.run(line, env=environment, capture_output=True, check=True)
        return sum(len(each["job"]["members"]) for each in json.loads(done.stdout)["jobs"])


class _UnreadJob(HostsJob):
    """A job whose ranks write much before they train, and nobody reads it."""

    variables = _SHORT_SILENCE

    def __init__(self, test: unittest.TestCase, hosts: str) -> None:
        train = f"{sys.executable} -P {PROGRAMS / 'train_on.py'}"
        program = ["sh", "-c", f"yes | head -c 200000; exec {train} $0", "{ranks}"]
        super().__init__(test, hosts, ["--hostfile={hosts}", "--"], program)

    def open_output(self) -> IO[bytes]:
        self.output.touch()
        reader, writer = os.pipe()
        self.reader = os.fdopen(reader, "rb")
        return os.fdopen(writer, "wb")


class HostsRunTest(unittest.TestCase):
    def test_hosts_come_and_go(self) -> None:
        job = _Job(self, "a", "--hostfile={hosts}", "--max-nodes=2")
        job.go_on(1)
        job.name_hosts("a b:2")
        job.go_on(3)
        job.name_hosts("b:2")  # The first host goes.
        job.says("host a (node 0) is not listed any more")
        job.wait_for("2 ranks", lambda: not job.processes("a"))
        job.go_on(2)
        job.name_hosts("b:2 c d")  # There is room for one.
        job.go_on(3)
        job.stop()
        output = job.end()
        self.assertIn("host c is node 2, with 1 rank", output)
        self.assertNotIn("host d", output)
        self.assertEqual(len(job.weights()), 3, output)
        self.assertEqual(len(set(job.weights())), 1, output)
        begun = [line for lines in job.said().values() for line in lines if "begins" in line]
        # The first rank has begun, and the others have got its state.
        self.assertEqual(sum("False" in line for line in begun), 1, begun)

    def test_hosts_whose_shells_print_something(self) -> None:
        job = _TalkativeJob(self, "a b", "--hostfile={hosts}", "--min-nodes=2")
        job.go_on(2)
        job.stop()
        output = job.end()
        for host in ("a", "b"):
            for printed in ("hello", "\ufffd"):
                line = f"talweg: run: host {host} printed: {printed}\n"
                self.assertEqual(output.count(line), 1, output)

    def test_a_host_is_taken_off_the_list_before_the_next_has_begun(self) -> None:
        job = _Job(self, "a", "--hostfile={hosts}")
        job.go_on(1)
        job.name_hosts("a slow")
        job.says("host slow is node 1")
        job.name_hosts("slow")
        job.says("host a is not listed any more, and goes when a listed host has its state")
        (job.directory / "SLOW").touch()
        job.wait_for("nothing is left on a", lambda: not job.processes("a"))
        job.go_on(1)
        job.stop()
        output = job.end()
        self.assertEqual(len(job.weights()), 1, output)
        begun = [line for lines in job.said().values() for line in lines if "begins" in line]
        self.assertEqual(sum("False" in line for line in begun), 1, begun)

    def test_nobody_takes_over_from_a_host_that_is_taken_off_the_list(self) -> None:
        job = _Job(self, "a", "--hostfile={hosts}", "--hosts-wait-s=2")
        job.go_on(1)
        job.name_hosts("stuck")
        self.assertIn("has its state: none has got it within 2 s", job.end(1))

    def test_it_begins_with_all_hosts(self) -> None:
        """The job waits for a host that comes late. All begin with the same number of ranks."""
        job = _Job(self, "a slow", "--hostfile={hosts}", "--gather-ms=5000")
        # The launcher's process on host a runs, and would have begun by now.
        job.wait_for("host a is reached", lambda: len(job.processes("a")) > 0)
        time.sleep(6)
        self.assertEqual(job.said(), {})
        (job.directory / "SLOW").touch()
        job.go_on(2)
        job.stop()
        job.end()
        for lines in job.said().values():
            self.assertRegex(lines[0], "^begins 0 False [01] 2$")

    def test_it_begins_at_once_with_all_hosts(self) -> None:
        """The job begins at once, although it would wait long for a host that does not come."""
        job = _HeldJob(self, "--gather-ms=3600000")
        job.let_go()
        job.go_on(2)
        job.name_hosts("a slow c")  # These are as many hosts as the job begins with.
        job.go_on(3)
        job.stop()
        job.end()
        begun = sorted(lines[0] for lines in job.said().values())
        self.assertEqual(begun[:2], ["begins 0 False 0 2", "begins 0 False 1 2"])
        self.assertRegex(begun[2], "^begins [1-9][0-9]* True 2 3$")

    def test_it_begins_without_a_host_that_does_not_come(self) -> None:
        job = _HeldJob(self, "--gather-ms=1")
        job.go_on(1)
        job.let_go()
        job.go_on(2)
        job.stop()
        job.end()
        begun = sorted(lines[0] for lines in job.said().values())
        self.assertEqual(begun[0], "begins 0 False 0 1")
        self.assertRegex(begun[1], "^begins [1-9][0-9]* True 0 2$")

    def test_a_host_dies_before_it_has_joined(self) -> None:
        """The others go on at once, although they would wait long for the host."""
        job = _HeldJob(self, "--gather-ms=3600000")
        job.kill_host("a")
        job.says("host a (node 0) is lost")
        job.go_on(1)
        job.name_hosts("slow c")
        job.go_on(2)
        job.stop()
        job.end()
        begun = sorted(lines[0] for lines in job.said().values())
        self.assertEqual(begun[0], "begins 0 False 0 1")
        self.assertRegex(begun[1], "^begins [1-9][0-9]* True 1 2$")

    def test_a_host_dies_and_too_few_are_left(self) -> None:
        job = _Job(self, "a b", "--host-discovery-script={script}", "--min-nodes=2")
        job.go_on(2)
        job.kill_host("b")
        job.says("the job needs 2 nodes to go on, and has 1 (a); b has failed, for at most 600 s")
        steps = sum(map(len, job.said().values()))
        time.sleep(1)  # The job would make many steps in that time.
        self.assertLessEqual(sum(map(len, job.said().values())), steps + 10)
        job.name_hosts("a b c")
        job.says("host c is node 2")
        job.says("the job has 2 nodes and goes on")
        job.go_on(2)
        job.name_hosts("a c")
        job.name_hosts("a c b")
        job.stop()
        output = job.end()
        self.assertIn("ended well without host b (node 1)", output)
        self.assertEqual(len(set(job.weights())), 1, output)

    def test_a_host_comes_too_late(self) -> None:
        job = _EndlessJob(self, "a b")
        job.name_hosts("a b c")
        # The agent serves when the host has a rank.
        job.wait_for("host c has a rank", lambda: any(map(_is_rank, job.processes("c"))))
        (job.ranks / "stop0").touch()
        job.says("host c comes too late: the job is about to end")
        job.wait_for("host c ends", lambda: not job.processes("c"))
        (job.ranks / "stop1").touch()
        self.assertNotIn("without host", job.end())
        self.assertEqual(len(job.said()), 2)

    def test_ranks_of_one_host_end_before_those_of_another_begin(self) -> None:
        job = _ShortJob(self)
        job.wait_for("host a has ended", lambda: (job.ranks / "a").exists())
        job.wait_for("nothing is left on a", lambda: not job.processes("a"))
        (job.directory / "SLOW").touch()
        output = job.end()
        self.assertTrue((job.ranks / "b").exists(), output)

    def test_a_host_comes_when_the_job_has_ended(self) -> None:
        """The host must not begin the job anew, and do all of its work again."""
        job = _EndlessJob(self, "a")
        held = list(filter(_is_of_launcher, job.processes("a")))
        for pid in held:  # So the launcher does not hear that the job has ended.
            os.kill(pid, signal.SIGSTOP)
        (job.ranks / "stop0").touch()
        # A process that has ended has no command line any more.
        job.wait_for("no rank", lambda: [*filter(_line_of, job.processes("a"))] == held)
        job.name_hosts("a b")
        job.says("host b (node 1) comes too late: the job has finished")
        for pid in held:
            os.kill(pid, signal.SIGCONT)
        output = job.end()
        self.assertEqual(len(job.said()), 1, output)
        self.assertRegex(
            output, "comes too late: .*job 'run' has finished before node 1 could enter"
        )

    def test_a_host_fails_as_the_job_has_ended(self) -> None:
        """The host's ranks hear of the job's end before the launcher does."""
        job = _EndlessJob(self, "a")
        job.name_hosts("a b")
        job.wait_for("host b has come to the job", lambda: job.members() == 2)
        held = list(filter(_is_of_launcher, job.processes("a")))
        for pid in held:
            os.kill(pid, signal.SIGSTOP)
        (job.ranks / "stop0").touch()
        job.says("host b (node 1) comes too late: the job has finished")
        for pid in held:
            os.kill(pid, signal.SIGCONT)
        output = job.end()
        self.assertNotIn("lost", output)
        self.assertNotIn("without host", output)

    def test_too_few_for_too_long(self) -> None:
        job = _Job(self, "a b", "--hostfile={hosts}", "--min-nodes=2", "--hosts-wait-s=1")
        job.go_on(2)
        job.name_hosts("a")
        output = job.end(1)
        self.assertIn("the job needs 2 nodes to go on, and has 1 (a): not within 1 s", output)

    def test_it_waits_for_hosts_and_does_not_begin(self) -> None:
        job = _Job(self, "a", "--hostfile={hosts}", "--nodes=2", "--hosts-wait-s=1")
        output = job.end(1)
        self.assertIn("waiting for hosts: the job needs 2 nodes to begin, and has 1 (a)", output)
        self.assertIn("not within 1 s", output)
        self.assertEqual(job.said(), {})

    def test_a_host_cools_down(self) -> None:
        job = _Job(self, "a b", "--hostfile={hosts}", "--host-cooldown-s=1,4")
        job.go_on(2)
        job.kill_host("b")
        job.says("it is used again after 1 s")
        job.says("host b is node 2")
        job.go_on(2)
        job.stop()
        job.end()
        self.assertEqual(len(set(job.weights())), 1)
        # The new processes there have removed files that the killed ones have left.
        self.assertEqual(list(job.temporary.iterdir()), [])

    def test_the_script_fails_later(self) -> None:
        job = _Job(self, "a", "--host-discovery-script={script}")
        job.go_on(1)
        job.name_hosts("a b:x")
        job.says("'b:x' is not a host")
        job.go_on(1)
        job.hosts.unlink()
        job.says("exit status 1")
        self.assertIn("the hosts stay what they were", job.text())
        job.name_hosts("a b")
        job.go_on(2)
        job.stop()
        job.end()

    def test_the_script_fails_at_first(self) -> None:
        job = HostsJob(self, "a", ["--host-discovery-script=/dev/null", "--"], ["true"])
        self.assertIn("cannot be started: Permission denied", job.end(1))

    def test_the_scheduler_is_killed(self) -> None:
        job = _Job(self, "a b", "--hostfile={hosts}")
        job.go_on(2)
        own = {*descendants(job.process.pid)} - {*job.processes()}
        [scheduler] = [
            pid
            for pid in own
            if b"talweg-scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        ]
        os.kill(scheduler, signal.SIGKILL)
        job.says("talweg-scheduler was killed by signal 9; it is started again, steps go on")
        job.name_hosts("a b c")
        job.go_on(3)
        job.stop()
        job.end()

    def test_nobody_reads_what_it_writes(self) -> None:
        """If nobody reads the launcher's output, its hosts still hear from it, and go on."""
        job = _UnreadJob(self, "a b")
        self.addCleanup(job.reader.close)
        job.go_on(2)
        time.sleep(2 * _SILENCE_S)
        job.go_on(2)
        job.stop()
        self.assertGreater(len(job.reader.read()), 2 * 200_000)
        job.end()

    def test_a_host_that_is_not_reached_and_a_large_environment(self) -> None:
        """ssh does not take a task that is larger than a pipe. Other hosts still hear from the
        launcher.
        """
        job = _LargeJob(self, "a", "--hostfile={hosts}")
        job.go_on(1)
        job.name_hosts("a stuck")
        job.says("host stuck is node 1")
        time.sleep(2 * _SILENCE_S)
        job.name_hosts("a stuck b")
        job.go_on(2)
        job.kill_host("stuck")
        job.stop()
        job.end()

    def test_a_name_server_that_does_not_answer(self) -> None:
        """The launcher waits for it. Its hosts still hear from the launcher."""
        job = _SlowNamesJob(self)
        job.go_on(1)
        job.name_hosts("a b")
        job.go_on(2)
        job.stop()
        self.assertNotIn("lost", job.end())
        begun = sorted(lines[0] for lines in job.said().values())
        self.assertEqual(len(begun), 2, begun)  # No rank has begun anew.

    def test_all_ranks_fail(self) -> None:
        job = HostsJob(self, "a b", ["--hostfile={hosts}", "--"], ["sh", "-c", "exit 7"])
        self.assertIn("exit status 7 (above); no node is left", job.end(7))

    def test_it_is_ended(self) -> None:
        job = _Job(self, "a b", "--hostfile={hosts}")
        job.go_on(2)
        job.process.terminate()
        self.assertIn("ended by signal 15", job.end(128 + 15))

    def test_what_nohup_has_started_outlives_the_terminal(self) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGHUP, before)
        job = _Job(self, "a b", "--hostfile={hosts}")
        job.go_on(2)
        [launcher] = filter(_is_launcher, descendants(job.process.pid))
        for pid in (launcher, job.process.pid):
            os.kill(pid, signal.SIGHUP)
        job.go_on(2)
        job.process.terminate()
        self.assertIn("ended by signal 15", job.end(128 + 15))

    def test_it_is_killed_before_it_has_begun(self) -> None:
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            python, here, go = (Path(directory) / name for name in ("python", "here", "go"))
            # It uses no shell, because some shells handle signals that they were started without.
            waits = (
                f"open({str(here)!r}, 'w')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
            )
            goes_on = "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
            python.write_text(f"#!{sys.executable}\nimport os, sys, time\n{waits}\n{goes_on}\n")
            python.chmod(0o755)
            job = _SlowJob(self, str(python))
            job.wait_for("its Python starts", here.exists)
            job.process.kill()
            job.process.wait()
            go.touch()
            job.end(-9)

    def test_it_is_killed(self) -> None:
        job = _Job(self, "a b", "--hostfile={hosts}")
        job.go_on(2)
        job.process.kill()
        job.end(-9)


if __name__ == "__main__":
    unittest.main()
