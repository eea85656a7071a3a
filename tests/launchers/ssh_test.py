# SPDX-License-Identifier: Apache-2.0
"""Tests launchers that reach hosts by a real ssh and sshd: horovodrun, dist_launcher and so on."""

from __future__ import annotations

import os
import signal
import sys
import time
import unittest

import job
from byteps_commands import LAUNCH, free_port
from launcher_site import RANK
from ssh_site import HOSTS, SshTest
from talweg import _programs

_HOROVODRUN = [sys.executable, "-P", "-m", "talweg.horovod.runner"]
_DIST = [sys.executable, "-P", LAUNCH[-1].replace("launch.py", "dist_launcher.py")]
_FUNCTION = """
import os, sys
import talweg.horovod as horovod
import function_of_a_module
try:
    print(horovod.run(function_of_a_module.add, (3,), {"c": 4}, **eval(sys.argv[1])))
except Exception as error:
    print(type(error).__name__, error)
"""
_MODULE = """
import talweg

def add(b, c):
    if c == 0:
        raise ArithmeticError("c is 0")
    talweg.init()
    names = talweg.all_gather_object(talweg.rank())
    talweg.shutdown()
    return names, b + c
"""


class HorovodrunTest(SshTest):
    def horovodrun(self, *arguments: str, status: int | None = 0, key: str = "") -> str:
        reached = ["-p", str(self.port), "-i", key or self.key]
        return self.run_line([*_HOROVODRUN, *reached, *arguments], status=status)

    def test_two_hosts(self) -> None:
        options = ["-H", f"{HOSTS[0]}:2,{HOSTS[1]}:2", "--verbose"]
        options += ["--output-filename", str(self.directory / "kept"), "-prefix-timestamp"]
        output = self.horovodrun("-np", "3", *options, *RANK, "sum")
        self.require_ranks(output, [2, 1])
        text = "rank 2 of 3, local 0 of 1: sum is right"
        self.assertRegex(output, rf"(?m)^[A-Z][\w :]+ \d{{4}}\[2\]<stdout>:{text}$")
        self.assertEqual((self.directory / "kept/rank.2/stdout").read_text(), f"{text}\n")
        for rank in range(3):
            self.assertEqual((self.directory / f"kept/rank.{rank}/stderr").read_text(), "")
        self.require_nothing_left()

    def test_a_hostfile(self) -> None:
        hostfile = self.directory / "hosts"
        hostfile.write_text(f"{HOSTS[0]} slots=1\n\n{HOSTS[1]} slots=1\n")
        output = self.horovodrun("-np", "2", "--hostfile", str(hostfile), *RANK, "sum")
        self.require_ranks(output, [1, 1])

    def test_a_rank_fails(self) -> None:
        hosts = f"{HOSTS[0]}:1,{HOSTS[1]}:1"
        program = (
            "import os, sys, time; sys.exit(5) if os.environ['RANK'] == '1' else time.sleep(9999)"
        )
        line = ["-np", "2", "-H", hosts, sys.executable, "-c", program]
        output = self.horovodrun(*line, status=5)
        self.assertIn("rank 1 failed first, with exit status 5", output)
        self.require_nothing_left()

    def test_ctrl_c(self) -> None:
        stop = str(self.directory / "stop")
        reached = ["-p", str(self.port), "-i", self.key, "-np", "2"]
        line = [*_HOROVODRUN, *reached, "-H", f"{HOSTS[0]}:1,{HOSTS[1]}:1", *RANK, "hold", stop]
        process = self.start(line)
        assert process.stdout is not None
        held, end = 0, time.monotonic() + job.TIMEOUT_S
        while held < 2 and time.monotonic() < end:
            held += "holds" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        self.finish(process, status=130)
        self.require_nothing_left()

    def test_what_is_wrong_is_said(self) -> None:
        hosts = f"{HOSTS[0]}:1,{HOSTS[1]}:1"
        wrong = str(self.directory / "other_key")
        output = self.horovodrun("-np", "2", "-H", hosts, *RANK, "sum", status=1, key=wrong)
        self.assertIn("Permission denied", output)
        self.assertIn("could not be started or watched: ssh to it failed", output)
        output = self.horovodrun("-np", "3", "-H", hosts, *RANK, "sum", status=1)
        self.assertIn("-np is 3, and the hosts have 2 slots", output)
        self.require_nothing_left()

    def test_a_function(self) -> None:
        (self.directory / "function_of_a_module.py").write_text(_MODULE)
        program = self.directory / "program.py"
        program.write_text(_FUNCTION)
        hosts = f"{HOSTS[0]}:1,{HOSTS[1]}:1"
        options = (
            f"dict(np=2, hosts='{hosts}', ssh_port={self.port}, ssh_identity_file='{self.key}')"
        )
        output = self.run_line([sys.executable, str(program), options])
        self.assertIn("[([0, 1], 7), ([0, 1], 7)]", output)
        self.assertIn("[([0, 1], 7)", self.run_line([sys.executable, str(program), "dict(np=2)"]))
        # The hosts might come and go.
        elastic = options.replace("np=2", "min_num_proc=2, network_interfaces='lo'")
        output = self.run_line([sys.executable, str(program), elastic])
        self.assertIn("[([0, 1], 7), ([0, 1], 7)]", output)
        text = program.read_text().replace('"c": 4', '"c": 0')
        program.write_text(text)
        output = self.run_line([sys.executable, str(program), "dict(np=2)"])
        self.assertIn("ArithmeticError: c is 0", output)
        self.assertRegex(output, "RuntimeError horovod.run: rank [01] failed first")
        self.require_nothing_left()


class HostsRunTest(SshTest):
    """Tests `talweg run` on listed hosts, with a real ssh."""

    def talweg_run(self, *arguments: str, status: int | None = 0) -> str:
        reached = [f"--ssh-port={self.port}", f"--ssh-identity-file={self.key}"]
        line = [_programs.tool(), "run", *reached, *arguments]
        return self.run_line(line, status=status, TALWEG_PYTHON=sys.executable)

    def test_two_hosts(self) -> None:
        hosts = f"--hosts={HOSTS[0]}:2,{HOSTS[1]}:1"
        bounds = ["--nodes=2", "--max-nodes=2", "--gather-ms=60000"]
        output = self.talweg_run(hosts, *bounds, "--", *RANK, "sum")
        self.require_ranks(output, [2, 1])
        self.assertRegex(output, r"(?m)^\[1.0\] rank 2 of 3, local 0 of 1: sum is right$")
        self.require_nothing_left()

    def test_a_host_that_is_not_reached(self) -> None:
        with open(self.key, "w") as key:
            key.write("no key\n")
        output = self.talweg_run(f"--hosts={HOSTS[0]}", "--", *RANK, "sum", status=1)
        self.assertIn("Permission denied", output)
        self.assertRegex(output, f"host {HOSTS[0]} .node 0.: .*ssh to it failed .*no node is left")
        self.require_nothing_left()


class DistLauncherTest(SshTest):
    def setUp(self) -> None:
        super().setUp()
        for name, hosts in (("workers", HOSTS), ("servers", HOSTS[:1])):
            lines = "".join(f"{host}:{self.port}\n" for host in hosts)
            (self.directory / name).write_text(lines + "\n")
        # A user's own ssh configuration would do the same.
        wrapper = self.directory / "tools" / "ssh"
        wrapper.write_text(wrapper.read_text().replace('"$@"', f'-i {self.key} "$@"'))

    def line(self, *command: str) -> list[str]:
        options = ["-WH", str(self.directory / "workers"), "-SH", str(self.directory / "servers")]
        options += ["--scheduler-ip", HOSTS[0], "--scheduler-port", free_port()]
        options += ["--scheduler-ssh-port", str(self.port), "--interface", "lo"]
        for name in ("PYTHONPATH", "TALWEG_TEST_SITE", "TMPDIR", "PATH"):
            options += ["--env", f"{name}:{self.environment[name]}"]
        options += ["--env", "WORDS:it's two", "--username", "root"]
        return [*_DIST, *options, *command]

    def run_there(self, *command: str, status: int | None = 0) -> str:
        directory = os.getcwd()
        os.chdir(self.directory)
        try:
            return self.run_line(self.line(*command), status=status)
        finally:
            os.chdir(directory)

    def logs(self, kind: str) -> str:
        paths = sorted((self.directory / "sshlog").glob(f"*.{kind}"))
        return "".join(path.read_text() for path in paths)

    def test_a_job(self) -> None:
        """Starts scheduler, server and two workers. All end by themselves."""
        self.run_there(*LAUNCH, *RANK, "sum")
        self.require_ranks(self.logs("stdout"), [1, 1])
        names = [path.name for path in (self.directory / "sshlog").glob("*.stdout")]
        wanted = ["scheduler", "server0", "worker0", "worker1"]
        self.assertEqual(sorted(names), [f"{name}.stdout" for name in wanted])
        self.require_nothing_left()

    def test_quoting_and_roles(self) -> None:
        script = 'echo "$DMLC_ROLE $DMLC_WORKER_ID $DMLC_NUM_WORKER" "$WORDS" "$1"'
        self.run_there("sh", "-c", script, "sh", "a 'b' $c")
        lines = sorted(self.logs("stdout").splitlines())
        end = "2 it's two a 'b' $c"
        roles = ["scheduler ", "server ", "worker 0", "worker 1"]
        self.assertEqual(lines, [f"{role} {end}" for role in roles])

    def test_one_fails(self) -> None:
        script = 'test "$DMLC_ROLE" != server || { echo no >&2; exit 4; }; exec sleep 9999'
        output = self.run_there("sh", "-c", script, status=4)
        self.assertIn("server0 failed: exit status 4; all others were ended\n    no\n", output)
        self.require_nothing_left()

    def test_what_is_wrong_is_said(self) -> None:
        for line in ("a b", "-Fssh.conf", "a:" + "9" * 5000):
            (self.directory / "servers").write_text(f"{line}\n")
            output = self.run_there("true", status=1)
            self.assertIn(f"'{line}' is not a host: write `host` or `host:sshport`", output)
        (self.directory / "servers").write_text(f"{HOSTS[0]}\n")
        done = self.run_line([*self.line("true")[:-1], "--env", "X", "true"], status=1)
        self.assertIn("--env X: write NAME:VALUE", done)


if __name__ == "__main__":
    unittest.main()
