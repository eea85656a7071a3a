# SPDX-License-Identifier: Apache-2.0
"""Tests horovodrun's options on one host."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import io
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import job
import torch
from talweg.horovod import _rank, runner
from talweg.horovod._environment import TABLE
from talweg.horovod.runner import _variables, gloo_run, launch
from talweg.horovod.runner.common.util import config_parser, env, settings
from talweg.horovod.runner.elastic import driver
from talweg.horovod.runner.util import threads

_PLACES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
# Arguments of run() for jobs whose hosts stay, and for those whose hosts come and go.
_KINDS: list[dict[str, Any]] = [{}, {"min_num_proc": 1}]
_PRINT = (
    "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'],"
    " os.environ['HOROVOD_FUSION_THRESHOLD'],"
    f" *(os.environ['HOROVOD_' + name] for name in {_PLACES}))"
)


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "talweg.horovod.runner", *arguments],
        capture_output=True,
        text=True,
        timeout=job.TIMEOUT_S,
        check=False,
    )


class HorovodrunTest(unittest.TestCase):
    def test_ranks_of_this_host(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            hosts = Path(directory) / "hosts"
            hosts.write_text("localhost slots=2\n\n")
            output = Path(directory) / "output"
            program = [sys.executable, "-P", "-c", _PRINT]
            options = ["-np", "2", "--hostfile", str(hosts), "--fusion-threshold-mb", "32"]
            done = _run(*options, "--output-filename", str(output), "--gloo", *program)
            self.assertEqual(done.returncode, 0, done.stderr)
            shown = []
            for rank in range(2):
                text = (output / f"rank.{rank}" / "stdout").read_text()
                places = f"{rank} 2 {rank} 2 0 1 localhost"
                self.assertEqual(text, f"{rank} 2 {32 << 20} {places}\n")
                shown.append(f"[{rank}]<stdout>:{text}")
                self.assertEqual((output / f"rank.{rank}" / "stderr").read_text(), "")
            self.assertEqual(sorted(done.stdout.splitlines(keepends=True)), shown)
        done = _run("-np", "2", sys.executable, "-c", "import sys; sys.exit(5)")
        self.assertEqual(done.returncode, 5)

    def test_several_names_of_this_host(self) -> None:
        """Each name is a node. A name that occurs twice has the slots of both."""
        program = (
            "import os, horovod.torch as hvd; hvd.init(); "
            "print(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), "
            "hvd.cross_size(), os.environ['HOROVOD_HOSTNAME'])"
        )
        for names, ranks, wanted in (
            (
                "localhost:2,127.0.0.1:2",
                3,
                ["0 3 0 2 0 2 localhost", "1 3 1 2 0 1 localhost", "2 3 0 1 1 2 127.0.0.1"],
            ),
            ("localhost,localhost", 2, ["0 2 0 2 0 1 localhost", "1 2 1 2 0 1 localhost"]),
        ):
            done = _run("-np", f"{ranks}", "-H", names, sys.executable, "-P", "-c", program)
            self.assertEqual(done.returncode, 0, done.stderr)
            shown = [f"[{rank}]<stdout>:{text}" for rank, text in enumerate(wanted)]
            self.assertEqual(sorted(done.stdout.splitlines()), shown)

    def test_output_as_horovod_has_it(self) -> None:
        program = ["sh", "-c", "echo a b; echo c >&2"]
        self.assertEqual(_run("-np", "1", *program).stdout, "[0]<stdout>:a b\n")
        with tempfile.TemporaryDirectory() as directory:
            kept = Path(directory) / "there" / "output"
            begin = int(time.time())
            done = _run("-np", "11", "-prefix-timestamp", "--output-filename", str(kept), *program)
            end = time.time()
            self.assertEqual(done.returncode, 0, done.stderr)
            for text, wanted in ((done.stdout, "<stdout>:a b"), (done.stderr, "<stderr>:c")):
                lines = [line.partition("[") for line in text.splitlines()]
                self.assertEqual(
                    sorted(rest for *_, rest in lines),
                    sorted(f"{rank}]{wanted}" for rank in range(11)),
                )
                for moment, *_ in lines:
                    seconds = time.mktime(time.strptime(moment))
                    self.assertTrue(begin <= seconds <= end, moment)
            names = [f"rank.{rank:02}" for rank in range(11)]
            self.assertEqual(sorted(each.name for each in kept.iterdir()), names)
            self.assertEqual((kept / "rank.10" / "stderr").read_text(), "c\n")
            # If a rank's directory cannot be made, that is an error, and no output is lost.
            done = _run("-np", "1", "--output-filename", str(kept / "rank.10" / "stderr"), *program)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr, "make .*rank.10/stderr/rank.0/stdout: Not a directory")

    def test_a_program_that_is_not_there(self) -> None:
        done = _run("-np", "1", "no-such-program")
        self.assertEqual(done.returncode, 1)
        self.assertIn("horovodrun: no-such-program: No such file", done.stderr)

    def test_places_on_hosts_with_other_slots(self) -> None:
        """The CROSS_ variables count the hosts that have a rank with this local rank."""
        found: list[dict[str, str]] = []
        for node, slots in enumerate((1, 2, 2)):
            for local in range(slots):
                told = {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(slots)}
                told |= {"RANK": str(len(found)), "WORLD_SIZE": "5", "GROUP_RANK": str(node)}
                found.append(_rank.places("a:1,b:2,c:2", told))
        self.assertEqual([each["RANK"] for each in found], list("01234"))
        self.assertEqual([each["CROSS_RANK"] for each in found], list("01021"))
        self.assertEqual([each["CROSS_SIZE"] for each in found], list("33232"))
        self.assertEqual([each["HOSTNAME"] for each in found], list("abbcc"))
        # If hosts come and go, the launcher tells with which numbers the ranks begin.
        told |= {"TALWEG_HOST": "c", "TALWEG_FIRST_RANK": "3", "TALWEG_FIRST_SIZE": "5"}
        wanted = {"LOCAL_RANK": "1", "LOCAL_SIZE": "2", "RANK": "4", "SIZE": "5", "HOSTNAME": "c"}
        self.assertEqual(_rank.places("", told), wanted)

    def test_places_where_hosts_come_and_go(self) -> None:
        """If hosts come and go, each host is a node of its own."""
        program = (
            "import os; from talweg.horovod.common import basics; basics.init(); "
            f"print(*(os.environ.get('HOROVOD_' + name) for name in {_PLACES}))"
        )
        hosts = ["--min-np", "2", "-H", "localhost:1,127.0.0.1:1"]
        with tempfile.TemporaryDirectory() as directory:
            options = [*hosts, "--output-filename", directory]
            done = _run("-np", "2", *options, sys.executable, "-P", "-c", program)
            self.assertEqual(done.returncode, 0, done.stderr)
            kept = sorted(Path(directory).glob("rank.?.0/stdout"))
            self.assertEqual(len(kept), 2)
            self.assertIn(f"[0.0]<stdout>:{kept[0].read_text()}", done.stdout)
        said = sorted(line.partition("]<stdout>:")[2] for line in done.stdout.splitlines())
        wanted = ["0 2 0 1 None None localhost", "1 2 0 1 None None 127.0.0.1"]
        self.assertEqual(said, wanted)

    def test_first_numbers_where_hosts_come_and_go(self) -> None:
        """Functions that do not call init() read from the variables which rank they are."""
        elastic: dict[str, Any] = {"num_proc": 2, "min_num_proc": 2, "max_num_proc": 2}
        for hosts in ("localhost:2,127.0.0.1:2", "localhost:1,127.0.0.1:1", "localhost,localhost"):
            found = runner.run(env.get_env_rank_and_size, hosts=hosts, **elastic)
            self.assertEqual(found, [(0, 2), (1, 2)], hosts)

    def test_variables_of_horovods_launcher(self) -> None:
        names = ("CONTROLLER", "CPU_OPERATIONS", "GLOO_IFACE", "ELASTIC")
        told = (tuple(f"HOROVOD_{name}" for name in names),)
        with mock.patch.dict(os.environ, HOROVOD_CPU_OPERATIONS="x", HOROVOD_ELASTIC="1"):
            for more, wanted in (
                ({}, ["gloo", "x", None, None]),
                ({"network_interfaces": "lo"}, ["gloo", "x", "lo", None]),
                ({"network_interfaces": ["lo"]}, ["gloo", "x", "lo", None]),
                ({"min_num_proc": 1}, ["gloo", "x", None, "1"]),
            ):
                arguments: dict[str, Any] = more
                found = runner.run(lambda names: [*map(os.getenv, names)], told, **arguments)
                self.assertEqual(found, [wanted])

    def test_as_functions(self) -> None:
        """Tests the functions of horovod.runner that programs import to start jobs."""
        arguments = runner._HorovodArgs()
        arguments.num_proc, arguments.command = 2, ["true"]
        self.assertIsNone(launch._run(arguments))
        arguments.command = ["false"]
        with self.assertRaisesRegex(
            RuntimeError, "one or more processes exited with non-zero status"
        ):
            launch._run(arguments)
        arguments.run_func = os.getpid
        self.assertEqual(len(set(launch._run(arguments))), 2)
        vars(arguments).update(np=3, nics=["lo"])  # `np` is the name before Horovod 0.27.
        self.assertEqual(len(set(launch._run(arguments))), 3)
        vars(arguments).update(num_proc=1, np=None, min_num_proc=2, elastic_timeout=9)
        self.assertEqual(len(set(launch._run(arguments))), 2)  # Hosts might come and go.
        self.assertEqual(runner.run(torch.is_tensor, (1,), np=2), [False] * 2)
        self.assertEqual(runner.run(os.getenv, ("RANK",), np=4), ["0", "1", "2", "3"])
        for _ in range(3):  # Ranks write their results at the same time.
            self.assertEqual(runner.run(bytes, (2 << 20,), np=4), [bytes(2 << 20)] * 4)
        large = random.Random(1).randbytes  # Makes far more bytes than the launcher takes at once.
        self.assertEqual(
            runner.run(large, (16 << 20,), np=2), [random.Random(1).randbytes(16 << 20)] * 2
        )
        told = settings.Settings("localhost:2", num_proc=2)
        for program in (["true"], "sh -c 'test $A = 1'"):
            gloo_run.gloo_run(told, ["lo"], {"A": "1"}, "127.0.0.1", program)
        with self.assertRaisesRegex(RuntimeError, "exit status 1 .*with non-zero status"):
            gloo_run.gloo_run(told, ["lo"], {"A": "2"}, "127.0.0.1", "sh -c 'test $A = 1'")
        with mock.patch("sys.argv", ["horovodrun", "-np", "3", "true"]):
            self.assertEqual(launch.parse_args().num_proc, 3)
        done: list[int] = []
        threads.in_thread(done.append, (1,)).join()
        self.assertEqual(done, [1])

    def test_a_timeline_from_the_start(self) -> None:
        """Rank 0's file is a Chrome trace of the job's calls. The program does nothing for it."""
        # As hvd.allreduce() of name="traced" does, without the time that importing torch takes.
        program = (
            "import numpy, talweg; from talweg.horovod.common import basics; basics.init(); "
            "[talweg.push_pull(numpy.ones(3, 'f'), name='allreduce.traced') for _ in range(2)]"
        )
        for ranks, marks in (("2", True), ("1", False)):
            with self.subTest(marks=marks), tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / "timeline.json"
                options = ["-np", ranks, "--timeline-filename", str(path)]
                options += ["--timeline-mark-cycles"] * marks
                done = _run(*options, sys.executable, "-P", "-c", program)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual([each.name for each in Path(directory).iterdir()], [path.name])
                events = json.loads(path.read_text())
                [number] = [
                    each["pid"]
                    for each in events
                    if each["ph"] == "M" and each["args"].get("name") == "allreduce.traced"
                ]
                calls = [each for each in events if each["name"] == "ALLREDUCE"]
                self.assertEqual([(each["ph"], each["pid"]) for each in calls], [("X", number)] * 2)
                for begin, end in itertools.pairwise(calls):
                    self.assertLessEqual(begin["ts"] + begin["dur"], end["ts"])
                cycles = [each["ph"] for each in events if each["name"] == "CYCLE_START"]
                self.assertEqual(cycles, ["i"] * 2 * marks)

    def test_modules_by_horovods_names(self) -> None:
        for module in ("horovod.runner", "horovod.runner.launch"):
            line = [sys.executable, "-P", "-m", module, "-np", "1", "echo", "a"]
            self.assertEqual(subprocess.check_output(line, text=True), "[0]<stdout>:a\n")

    def test_the_function_of_horovod(self) -> None:
        wanted = "func, args=(), kwargs=None, num_proc=1"
        for name in (
            *("min_num_proc", "max_num_proc", "slots", "reset_limit", "cooldown_range", "hosts"),
            *("hostfile", "host_discovery_script", "start_timeout", "ssh_port"),
            *("ssh_identity_file", "disable_cache", "output_filename", "verbose", "use_gloo"),
            *("use_mpi", "mpi_args", "network_interface", "network_interfaces", "executable"),
            *("np", "min_np", "max_np"),
        ):
            wanted += f", {name}=None"
        own = inspect.signature(runner.run).parameters.values()
        found = (f"{p.name}={p.default}" if p.default is not p.empty else p.name for p in own)
        self.assertEqual(", ".join(found), wanted)
        self.assertIs(importlib.import_module("horovod").run, runner.run)
        with self.assertWarnsRegex(DeprecationWarning, "np has been") as warned:
            self.assertEqual(runner.run(len, ([],), np=1), [0])
        self.assertEqual(warned.filename, __file__)
        with self.assertWarnsRegex(DeprecationWarning, "network_interface has been") as warned:
            self.assertEqual(runner.run(len, ([],), network_interface="lo"), [0])
        self.assertEqual(warned.filename, __file__)
        with self.assertWarnsRegex(DeprecationWarning, "min_np has been replaced by min_num_proc"):
            self.assertEqual(runner.run(len, ([],), min_np=2), [0, 0])
        with self.assertWarnsRegex(DeprecationWarning, "max_np has been replaced by max_num_proc"):
            self.assertEqual(runner.run(len, ([],), min_num_proc=1, max_np=1), [0])
        with self.assertWarnsRegex(UserWarning, "slots has no effect without min_num_proc or"):
            self.assertEqual(runner.run(len, ([],), slots=2), [0])
        with self.assertWarnsRegex(
            UserWarning, "mpi_args has no effect as Talweg runs without MPI"
        ):
            self.assertEqual(runner.run(len, ([],), mpi_args="--bind-to none", use_mpi=False), [0])
        wrong: dict[str, Any]
        for wrong, text in (
            ({"hosts": "a:1", "hostfile": "b"}, "hosts and hostfile"),
            ({"num_proc": "four"}, "argument -np.*invalid int value: 'four'"),
            ({"min_num_proc": 3, "num_proc": 2}, "--min-np is 3, and -np 2"),
            ({"min_num_proc": 1, "cooldown_range": 5}, "cooldown_range=5: give the first pause"),
            ({"min_num_proc": 1, "cooldown_range": (2, 1)}, "--blacklist-cooldown-range is 2 1"),
            ({"network_interfaces": ["none99"]}, "names none99, and this host has"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                runner.run(len, ([],), **wrong)
        with self.assertRaisesRegex(ValueError, "use_gloo and use_mpi"):
            runner.run(len, ([],), use_gloo=True, use_mpi=True)

    def test_functions_that_do_not_return(self) -> None:
        """A function that exits well has the result "", as with Horovod."""
        for elastic in _KINDS:
            self.assertEqual(runner.run(sys.exit, num_proc=2, **elastic), ["", ""])
            with self.assertRaisesRegex(RuntimeError, "0 of at least . ranks? has a result: "):
                runner.run(os._exit, (0,), num_proc=2, **elastic)
            with self.assertRaisesRegex(RuntimeError, "rank .* failed.* exit status 3"):
                runner.run(sys.exit, (3,), num_proc=2, **elastic)

    def test_a_function_of_a_thread(self) -> None:
        found: list[list[int]] = []

        def call(elastic: dict[str, Any]) -> None:
            found.append(runner.run(len, ([1],), **elastic))

        for elastic in _KINDS:
            thread = threading.Thread(target=call, args=(elastic,))
            thread.start()
            thread.join()
        self.assertEqual(found, [[1], [1]])

    def test_a_function_with_a_large_argument(self) -> None:
        """It is far larger than the pipe through which it goes to a host."""
        for elastic in _KINDS:
            large = random.Random(2).randbytes(16 << 20)
            (found,) = runner.run(bytes, (large,), **elastic)
            self.assertTrue(found == large)

    def test_results_that_only_cloudpickle_takes(self) -> None:
        for elastic in _KINDS:
            (added,) = runner.run(lambda: lambda number: number + 1, **elastic)
            self.assertEqual(added(2), 3)

    def test_output_of_functions_where_hosts_come_and_go(self) -> None:
        """It goes where this program's output goes, and is kept, with each host's part of it."""
        with tempfile.TemporaryDirectory() as kept:
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                runner.run(print, ("\u00e4\rb",), min_num_proc=1, output_filename=kept)
            self.assertEqual(shown.getvalue(), "[0.0]<stdout>:\u00e4\r[0.0]<stdout>:b\n")
            text = (Path(kept) / "rank.0.0" / "stdout").read_bytes()
            self.assertEqual(text.decode(), "\u00e4\rb\n")

    def test_progress_bars(self) -> None:
        """Text before a carriage return appears at once, also from ranks that ssh has started."""
        program = (
            "from talweg.horovod import runner; "
            r"runner.run(print, ('a\rb\r\nc\rd\r',), {'end': ''}, output_filename='kept')"
        )
        always = {**os.environ, "PYTHONWARNINGS": "always"}
        with tempfile.TemporaryDirectory() as directory:
            line = [sys.executable, "-P", "-c", program]
            done = subprocess.run(line, cwd=directory, env=always, capture_output=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn(b"ResourceWarning", done.stderr)
            pieces = [b"a\r", b"b\n", b"c\r", b"d\n"]
            self.assertEqual(done.stdout, b"".join(b"[0]<stdout>:" + each for each in pieces))
            kept = Path(directory) / "kept/rank.0/stdout"
            self.assertEqual(kept.read_bytes(), b"".join(pieces))

    def test_what_there_is(self) -> None:
        """--check-build prints the lines that programs look for."""
        done = _run("--check-build")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line.strip() for line in done.stdout.splitlines()]
        self.assertRegex(lines[0], r"^Horovod v[\d.]+:$")
        titles = ["Frameworks", "Controllers", "Tensor Operations"]
        self.assertEqual([line[10:-1] for line in lines if line.startswith("Avail")], titles)
        for line in ("[X] PyTorch", "[X] Gloo", "[ ] MPI", "[ ] NCCL"):
            self.assertIn(line, lines)
        here = "X" if importlib.util.find_spec("mxnet") else " "
        self.assertIn(f"[{here}] MXNet", lines)

    def test_parts_that_are_not_offered(self) -> None:
        for name in ("spark", "spark.keras", "ray", "data"):
            with self.assertRaisesRegex(ModuleNotFoundError, "is not offered by Talweg: let "):
                importlib.import_module(f"horovod.{name}")

    def test_interfaces_one_each_time(self) -> None:
        options = runner.parse(["-np", "2", "--network-interface", "a", "--network-interface", "b"])
        self.assertEqual(options.nics, {"a", "b"})
        options = runner.parse(
            ["-np", "2", "--network-interfaces", "c,a", "--network-interface", "b"]
        )
        self.assertEqual(runner._interfaces(options), ["c", "a", "b"])

    def test_what_is_not_offered_says_what_to_use(self) -> None:
        for arguments, text in (
            (
                ["-np", "2", "-H", "elsewhere.invalid:2", "x"],
                "elsewhere.invalid .* ssh to it failed",
            ),
            (["-np", "2", "-H", "a b:2", "x"], "'a b:2' is not a host: write host:slots"),
            (["-np", "4", "-H", "localhost:2", "x"], "-np is 4, and the hosts have 2 slots"),
            (["-np", "2", "--min-np", "3", "x"], "--min-np is 3, and -np 2"),
            (["-np", "2", "--min-np", "0", "x"], "--min-np is 0; it must be at least 1"),
            (["-np", "2", "--min-np", "1", "--max-np", "1", "x"], "--max-np is 1, and -np 2"),
            (
                ["-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "9", "3", "x"],
                "--blacklist-cooldown-range is 9 3; it must be two numbers",
            ),
            (["-np", "0", "x"], "-np is 0"),
            (["x"], "-np is missing: say how many ranks to start"),
            (["-np", "2"], "no program"),
            (
                ["-np", "2", "--hostfile", "/nowhere/hosts", "x"],
                "--hostfile=/nowhere/hosts: .*No such file.*; give a file of lines `host slots=n`",
            ),
            (
                ["-np", "2", "--network-interfaces", "lo,none99", "x"],
                "--network-interfaces names none99, and this host has lo",
            ),
        ):
            done = _run(*arguments)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertRegex(done.stderr, text)

    def test_options_that_exclude_each_other(self) -> None:
        for line in (
            ["-H", "a:1", "--hostfile", "f"],
            ["--host-discovery-script", "s", "-H", "a:2"],
            ["--gloo", "--mpi"],
            ["--mpi", "--jsrun"],
            ["--autotune", "--no-autotune"],
        ):
            done = _run("-np", "1", *line, "true")
            self.assertEqual(done.returncode, 2, line)
            self.assertIn("not allowed with argument", done.stderr)
        options = runner.parse(["-np", "2"])
        options.hosts, options.hostfile = "a:1", "f"
        with self.assertRaisesRegex(ValueError, "both given"):
            runner.is_here(options)

    def test_what_has_no_effect_is_said(self) -> None:
        options = ["--max-np", "4", "--elastic-timeout", "9", "--reset-limit", "0"]
        options += ["--slots-per-host", "2", "--blacklist-cooldown-range", "1", "2"]
        mpi = ["--mpi", "--mpi-args", "x", "--tcp"]
        done = _run("-np", "1", *options, *mpi, "--disable-cache", "true")
        self.assertEqual(done.returncode, 0, done.stderr)
        for option in options:
            if option.startswith("--"):
                self.assertIn(f"{option} has no effect without --min-np or", done.stderr)
        for option in ("--mpi", "--mpi-args", "--tcp"):
            self.assertIn(f"{option} has no effect as Talweg runs without MPI", done.stderr)
        self.assertNotIn("--disable-cache", done.stderr)

    def test_slots_by_the_name_of_horovods_page(self) -> None:
        options = runner.parse(["-np", "2", "--host-discovery-script", "s", "--slots", "4", "x"])
        self.assertEqual(options.slots, 4)

    def test_options_of_elastic_jobs(self) -> None:
        """Each option reaches `talweg run`, which carries it out."""
        options = ["--min-np", "2", "--max-np", "8", "--slots-per-host", "2", "--reset-limit", "5"]
        options += ["--elastic-timeout", "60", "--blacklist-cooldown-range", "3", "9", "-p", "22"]
        options += ["--host-discovery-script", "./hosts", "--network-interfaces", "a,b"]
        with mock.patch.dict(os.environ, HOROVOD_ELASTIC_TIMEOUT="5"):
            line = runner._elastic_line(runner.parse(["-np", "4", *options, "x"]))
            short = runner._elastic_line(runner.parse(["-np", "4", "--min-np", "1", "x"]))
        self.assertIn("--hosts-wait-s=5", short)
        wanted = ["--ranks=4", "--min-ranks=2", "--max-ranks=8", "--hosts-wait-s=60"]
        wanted += ["--ranks-per-node=2", "--host-changes-max=5", "--host-cooldown-s=3,9"]
        wanted += ["--host-discovery-script=./hosts", "--network-interfaces=a,b", "--ssh-port=22"]
        self.assertEqual(sorted(line), sorted(wanted))
        line = runner._elastic_line(runner.parse(["-np", "4", "--min-np", "1", "x"]))
        self.assertEqual(sorted(line), ["--hosts=localhost:4", "--min-ranks=1", "--ranks=4"])
        named = ["-np", "4", "-H", "a,b:1,a", "--slots-per-host", "2"]
        line = runner._elastic_line(runner.parse([*named, "--min-np", "1", "x"]))
        self.assertIn("--hosts=a:4,b:1", line)
        found = runner._hosts(runner.parse([*named, "x"]))
        self.assertEqual([(host.name, host.slots) for host in found], [("a", 2), ("b", 1)])
        with (
            mock.patch.object(driver, "ELASTIC_TIMEOUT_SECS", 7),
            mock.patch.object(driver, "DISCOVER_HOSTS_FREQUENCY_SECS", 3),
        ):
            line = runner._elastic_line(runner.parse(["-np", "4", "--min-np", "1", "x"]))
        self.assertLessEqual({"--hosts-wait-s=7", "--hosts-interval-s=3"}, set(line))

    def test_options_set_variables_that_the_table_has(self) -> None:
        # One for each attribute, as the others exclude it.
        switches = list({name: each for each, (name, _) in _variables.SWITCHES.items()}.values())
        numbers = [word for option in _variables.NUMBERS for word in (option, "1")]
        texts = [word for option in _variables.TEXTS for word in (option, "info")]
        options = runner.parse(["-np", "2", *switches, *numbers, *texts])
        variables = _variables.variables_of(options)
        self.assertGreater(len(variables), 20)
        TABLE.check(variables)
        self.assertEqual(TABLE.misspelt(variables), [])
        self.assertEqual(config_parser.HOROVOD_CYCLE_TIME, "HOROVOD_CYCLE_TIME")
        with self.assertRaises(AttributeError):
            config_parser.HOROVOD_CYCLE_TIMES  # noqa: B018
        given = ["--fusion-threshold-mb", "10", "--cycle-time-ms", "20", "--no-torus-allreduce"]
        options = runner.parse(["-np", "2", *given, "--log-hide-timestamp", "x"])
        wanted = {"FUSION_THRESHOLD": "10485760", "CYCLE_TIME": "20.0", "TORUS_ALLREDUCE": "0"}
        wanted |= {"LOG_HIDE_TIME": "1"}
        self.assertEqual(
            config_parser.set_env_from_args({"OTHER": "1"}, options),
            {"OTHER": "1", **{f"HOROVOD_{name}": value for name, value in wanted.items()}},
        )
        with self.assertRaisesRegex(ValueError, "FUSION_THRESHOLD is '-1048576'"):
            runner.parse(["-np", "2", "--fusion-threshold-mb", "-1"])

    def test_options_of_a_file(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "options.yaml"

            def told(text: str, *options: str) -> dict[str, str]:
                file.write_text(text)
                line = ["-np", "2", "--config-file", str(file), *options]
                return _variables.variables_of(runner.parse(line))

            text = """
                controller: gloo
                params: {fusion_threshold_mb: 32, cycle_time_ms: 10, hierarchical_allreduce: true}
                autotune: {enabled: true, log_file: log, gaussian_process_noise: 0.9}
                timeline: {filename: trace, mark_cycles: true}
                stall_check: {enabled: false, warning_time_seconds: 120}
                library_options: {thread_affinity: 0, gloo_timeout_seconds: 60}
                logging: {level: INFO, with_timestamp: false}
            """
            wanted = {"FUSION_THRESHOLD": str(32 << 20), "CYCLE_TIME": "10"}
            wanted |= {"HIERARCHICAL_ALLREDUCE": "1", "AUTOTUNE": "1", "AUTOTUNE_LOG": "log"}
            wanted |= {"AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.9", "TIMELINE": "trace"}
            wanted |= {"TIMELINE_MARK_CYCLES": "1", "STALL_CHECK_DISABLE": "1"}
            wanted |= {"STALL_CHECK_TIME_SECONDS": "120", "THREAD_AFFINITY": "0"}
            wanted |= {"GLOO_TIMEOUT_SECONDS": "60", "LOG_LEVEL": "INFO", "LOG_HIDE_TIME": "1"}
            named = {f"HOROVOD_{name}": value for name, value in wanted.items()}
            self.assertEqual(told(text), named)
            given = told(text, "--cycle-time-ms", "3", "--no-autotune")
            self.assertEqual(given, {**named, "HOROVOD_CYCLE_TIME": "3.0", "HOROVOD_AUTOTUNE": "0"})
            self.assertEqual(told(""), {})
            for text, refusal in (
                ("controller: ucx", "controller is 'ucx'"),
                ("params: 3", "params is 3; it must be a section"),
                ("- 3", "must have sections"),
                ("a: [", "is not YAML"),
                ("params: {cache_capacity: -1}", "CACHE_CAPACITY is '-1'"),
            ):
                with self.assertRaisesRegex(ValueError, refusal):
                    told(text)
            with (
                mock.patch.dict(sys.modules, {"yaml": None}),
                self.assertRaisesRegex(ValueError, "pip install pyyaml"),
            ):
                told("")
            file.write_text("params: {cycle: 1}\nothers: {}\n")
            done = _run("-np", "1", "--config-file", str(file), "true")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("others, params.cycle of the file of options has no effect", done.stderr)
            done = _run("-np", "1", "--config-file", f"{file}.not", "true")
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"--config-file={file}.not: [Errno 2] No such file", done.stderr)
            file.write_bytes(b"params: \xff")
            done = _run("-np", "1", "--config-file", str(file), "true")
            self.assertIn(f"--config-file={file}: 'utf-8' codec", done.stderr)


if __name__ == "__main__":
    unittest.main()
