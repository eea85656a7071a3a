# SPDX-License-Identifier: Apache-2.0
"""The modules of horovod.runner that programs import beside the launcher."""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
from functools import partial
from multiprocessing import connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from talweg.errors import Unsupported
from talweg.horovod.runner import launch, mpi_run
from talweg.horovod.runner.common.util import (
    host_hash,
    hosts,
    safe_shell_exec,
    secret,
    settings,
    timeout,
)
from talweg.horovod.runner.elastic.worker import HostUpdateResult
from talweg.horovod.runner.util import lsf, network, threads
from talweg.horovod.runner.util.streams import Pipe

# It ends a hang.
_LATE_S = 60.0


class _Sets(io.StringIO):
    """An output that sets an event when something is written."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self._event = event

    def write(self, text: str) -> int:
        self._event.set()
        return super().write(text)


def _joined(thread: threading.Thread) -> bool:
    thread.join(_LATE_S)
    return not thread.is_alive()


class HostsTest(unittest.TestCase):
    def test_ranks_fill_hosts_in_order(self) -> None:
        def dealt(text: str, least: int, most: int | None = None) -> list[tuple[Any, ...]]:
            found = hosts.get_host_assignments(hosts.parse_hosts(text), least, most)
            return [tuple(vars(slot).values()) for slot in found]

        wanted = [("a", 0, 0, 0, 3, 1, 2), ("b", 1, 0, 1, 3, 2, 2), ("b", 2, 1, 0, 3, 2, 1)]
        self.assertEqual(dealt("a:1,b:2", 3), wanted)
        self.assertEqual(dealt("10:2,b:2", 1, 2), [("10", r, r, 0, 2, 2, 1) for r in range(2)])
        self.assertEqual(len(dealt("a:1,b:2", 2)), 3)
        with self.assertRaisesRegex(
            ValueError, r"more processes \(4\) than there are available slots \(3\)"
        ):
            dealt("a:1,b:2", 4)
        place = hosts.SlotInfo("b", 2, 1, 0, 3, 2, 1)
        self.assertEqual(place.to_response_string(), "2,3,1,2,0,1")
        self.assertEqual(hosts.INVALID_SLOT_INFO.rank, -1)

    def test_texts_of_hosts(self) -> None:
        self.assertEqual(hosts.parse_hosts_and_slots("a:1, b:2"), (["a", "b"], {"a": 1, "b": 2}))
        host = hosts.HostInfo.from_string("a:3")
        self.assertEqual((host.hostname, host.slots), ("a", 3))
        for wrong in ("a b:1", "a:x"):
            with self.assertRaisesRegex(ValueError, "is not a host"):
                hosts.parse_hosts_and_slots(wrong)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "hosts"
            path.write_text("172.31.32.7 slots=8\n172.31.33.9 slots=4\n")
            self.assertEqual(hosts.parse_host_files(str(path)), "172.31.32.7:8,172.31.33.9:4")

    def test_names_of_this_host(self) -> None:
        self.assertEqual(network.filter_local_addresses(["localhost", "b", "127.0.0.1"]), ["b"])
        self.assertIn("127.0.0.1", network.get_local_host_addresses())
        own, salted = host_hash.host_hash(), host_hash.host_hash("salt")
        self.assertEqual(own, host_hash.host_hash(""))
        self.assertNotEqual(own, salted)
        self.assertTrue(own.startswith(socket.gethostname().partition(".")[0] + "-"))

    def test_addresses(self) -> None:
        if importlib.util.find_spec("psutil") is None:
            self.skipTest("psutil is not installed")
        address = importlib.import_module("talweg.horovod.runner.common.util.address")
        found = {
            "lo": [SimpleNamespace(family=socket.AF_INET, address="127.0.0.1")],
            "eth0": [SimpleNamespace(family=socket.AF_INET6, address="::1")],
        }
        with mock.patch.object(address.psutil, "net_if_addrs", return_value=found):
            self.assertEqual(address.local_addresses(), {"lo": ["127.0.0.1"]})
            self.assertEqual(address.local_addresses(port=7), {"lo": [("127.0.0.1", 7)]})
            with self.assertRaisesRegex(
                address.NoValidAddressesFound, r"\['x'\], existing nics: \['lo', 'eth0'\]"
            ):
                address.local_addresses(["x"])


class SmallPartsTest(unittest.TestCase):
    def test_a_time_limit(self) -> None:
        limit = timeout.Timeout(1000, "Waited for {activity}.")
        limit.check_time_out_for("nothing")
        self.assertTrue(0 < limit.remaining() <= 1000)
        late = timeout.Timeout(-1, "Waited for {activity}")
        self.assertEqual(late.remaining(), 0)
        with self.assertRaises(timeout.TimeoutException) as raised:
            late.check_time_out_for("hosts")
        self.assertEqual(raised.exception.message, "Waited for hosts. Timeout after -1 seconds.")

    def test_digests(self) -> None:
        key = secret.make_secret_key()
        digest = secret.compute_digest(key, b"message")
        self.assertEqual((len(key), len(digest)), (secret.SECRET_LENGTH, secret.DIGEST_LENGTH))
        self.assertTrue(secret.check_digest(key, b"message", digest))
        self.assertFalse(secret.check_digest(key, b"massage", digest))

    def test_settings(self) -> None:
        told = settings.Settings("a:2", num_proc=2, nics=["lo"])
        self.assertEqual((told.hosts, told.num_proc, told.nics), ("a:2", 2, ["lo"]))
        self.assertEqual((told.verbose, told.elastic, told.ssh_port), (0, False, None))
        with self.assertRaises(TypeError):
            settings.Settings(number=2)
        both = HostUpdateResult.added | HostUpdateResult.removed
        self.assertEqual(both, HostUpdateResult.mixed)

    def test_a_pipe(self) -> None:
        pipe = Pipe()
        for text in ("\u2200\u2201\u2202", b"abc"):
            pipe.write(text)
            self.assertEqual(pipe.read(2), text[:2])
            self.assertEqual(pipe.read(), text[2:])
        pipe.write("first")
        pipe.flush()
        writer = threads.in_thread(pipe.write, ("second",))
        self.assertEqual((pipe.read(), pipe.read()), ("first", "second"))
        self.assertTrue(_joined(writer))
        pipe.write("third")
        writer = threads.in_thread(pipe.write, ("fourth",), silent=True)
        pipe.close()
        self.assertTrue(_joined(writer))
        self.assertEqual((pipe.read(), pipe.read()), ("third", None))
        with self.assertRaisesRegex(RuntimeError, "closed"):
            pipe.write("fifth")


class ThreadsTest(unittest.TestCase):
    def test_a_call_when_an_event_is_set(self) -> None:
        done: list[int] = []
        event, stop = threading.Event(), threading.Event()
        waiting = threads.on_event(event, done.append, (1,))
        stopped = threads.on_event(
            event, done.append, (2,), stop=stop, check_stop_interval_s=0.01, daemon=False
        )
        stop.set()
        self.assertTrue(_joined(stopped))
        self.assertEqual(done, [])
        event.set()
        self.assertTrue(_joined(waiting))
        self.assertEqual(done, [1])
        for wrong, text in (
            ({"event": None}, "Event must not be None"),
            ({"args": 1}, "args must be a tuple, not <class 'int'>"),
            ({"daemon": False}, "Stop event must be given"),
        ):
            arguments: dict[str, Any] = {"event": event, **wrong}
            with self.assertRaisesRegex(ValueError, text):
                threads.on_event(func=done.append, **arguments)

    def test_calls_on_threads(self) -> None:
        call = threads.execute_function_multithreaded
        wanted = {place: place**2 for place in range(20)}
        self.assertEqual(call(pow, [[place, 2] for place in range(20)]), wanted)
        self.assertEqual(call(pow, [[2, 3]], max_concurrent_executions=1), {0: 8})
        self.assertIsNone(call(pow, [[2, 3]], block_until_all_done=False))
        with mock.patch("threading.excepthook"), self.assertRaisesRegex(RuntimeError, "int"):
            call(int, [["3"], ["x"]])


class ShellTest(unittest.TestCase):
    def execute(self, command: str, **keywords: Any) -> tuple[int, str, str]:
        out, error = io.StringIO(), io.StringIO()
        status = safe_shell_exec.execute(command, stdout=out, stderr=error, **keywords)
        return status, out.getvalue(), error.getvalue()

    def test_output_and_status(self) -> None:
        self.assertEqual(self.execute("printf 'a\\nb'; printf c >&2"), (0, "a\nb", "c"))
        self.assertEqual(self.execute("exit 3"), (3, "", ""))
        self.assertEqual(self.execute("kill -9 $$"), (137, "", ""))
        self.assertEqual(self.execute("echo $A", env={"A": "1"}), (0, "1\n", ""))
        found = self.execute("printf 'a\\rb\\r\\nc'", index=7)
        self.assertEqual(found[1], "[7]<stdout>:a\r[7]<stdout>:b\r\n[7]<stdout>:c")
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            safe_shell_exec.execute("echo a")
        self.assertEqual(shown.getvalue(), "a\n")

    def test_lines_with_the_time(self) -> None:
        found = self.execute("echo a", index=0, prefix_output_with_timestamp=True)
        self.assertRegex(found[1], r"^\w{3} \w{3} [ \d]\d [\d:]{8} \d{4}\[0\]<stdout>:a\n$")

    def test_characters_of_several_bytes(self) -> None:
        """A part that is read may end within one."""
        text = "\u2588\u2593" * 60000 + "\n"
        reads, writes = multiprocessing.Pipe(duplex=False)
        with tempfile.TemporaryFile() as file:
            file.write(text.encode())
            file.seek(0)
            with subprocess.Popen(["cat"], stdin=file, stdout=writes.fileno()) as process:
                writes.close()
                shown = io.StringIO()
                safe_shell_exec.prefix_connection(reads, shown, "p", 1, False)
                process.wait()
        self.assertEqual(shown.getvalue(), f"[1]<p>:{text}")

    def test_an_event_ends_the_command(self) -> None:
        """SIGTERM ends it, and SIGKILL what does not heed that."""
        for command, status in (("", 143), ("trap '' TERM;", 137)):
            event = threading.Event()

            with mock.patch.object(safe_shell_exec, "GRACEFUL_TERMINATION_TIME_S", 1):
                found = safe_shell_exec.execute(
                    f"{command} echo a; sleep 1000 & wait", stdout=_Sets(event), events=[event]
                )
            self.assertEqual(found, status)

    def test_the_command_ends_with_its_caller(self) -> None:
        program = (
            "from talweg.horovod.runner.common.util import safe_shell_exec; "
            "safe_shell_exec.execute('echo $$; exec sleep 1000')"
        )
        line = [sys.executable, "-P", "-c", program]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as caller:
            assert caller.stdout is not None
            pid = int(caller.stdout.readline())
            descriptor = os.pidfd_open(pid)
            try:
                caller.send_signal(signal.SIGKILL)
                ended = connection.wait([descriptor], _LATE_S)
                self.assertEqual(ended, [descriptor])
            finally:
                os.close(descriptor)


class LauncherTest(unittest.TestCase):
    def test_options_have_horovods_names(self) -> None:
        line = ["horovodrun", "-np", "4", "--min-num-proc", "2", "--max-np", "8"]
        line += ["--slots-per-host", "2", "--blacklist-cooldown-range", "3", "9", "--tcp", "--gloo"]
        line += ["--network-interfaces", "a,b", "--network-interface", "c", "--thread-affin", "1"]
        with mock.patch("sys.argv", [*line, "python", "x.py", "--min-np", "7"]):
            found = vars(launch.parse_args())
        wanted: dict[str, Any] = {"num_proc": 4, "min_num_proc": 2, "max_num_proc": 8, "slots": 2}
        wanted |= {"cooldown_range": [3, 9], "nics": {"a", "b", "c"}, "tcp_flag": True}
        wanted |= {"use_gloo": True, "use_mpi": False, "use_jsrun": False, "thread_affinity": 1}
        wanted |= {"run_func": None, "executable": None, "verbose": False, "mpi_args": None}
        wanted |= {"elastic_timeout": None, "reset_limit": None, "config_file": None}
        wanted |= {"command": ["python", "x.py", "--min-np", "7"], "check_build": False}
        wanted |= {"hosts": None, "hostfile": None, "host_discovery_script": None}
        self.assertEqual({name: found[name] for name in wanted}, wanted)
        said = io.StringIO()
        with (
            mock.patch("sys.argv", ["horovodrun", "--check-build"]),
            contextlib.redirect_stdout(said),
            self.assertRaises(SystemExit) as ended,
        ):
            launch.parse_args()
        self.assertFalse(ended.exception.code)
        self.assertIn("[X] Gloo", said.getvalue())

    def test_which_launcher_is_called(self) -> None:
        flags = itertools.product((None, False, True), repeat=3)
        for use_gloo, use_mpi, use_jsrun in flags:
            for has_mpi, in_lsf, has_jsrun in itertools.product((False, True), repeat=3):
                called: list[str] = []
                wanted = "mpi" if has_mpi else "gloo"
                if has_mpi and in_lsf and has_jsrun:
                    wanted = "js"
                if use_jsrun:
                    wanted = ("js" if in_lsf else "no LSF") if has_mpi else "no MPI"
                if use_mpi:
                    wanted = "mpi" if has_mpi else "no MPI"
                if use_gloo:
                    wanted = "gloo"
                with (
                    mock.patch.object(launch, "mpi_built", return_value=has_mpi),
                    mock.patch.object(lsf.LSFUtils, "using_lsf", return_value=in_lsf),
                    mock.patch.object(launch, "is_jsrun_installed", return_value=has_jsrun),
                ):
                    try:
                        launch.run_controller(
                            use_gloo,
                            partial(called.append, "gloo"),
                            use_mpi,
                            partial(called.append, "mpi"),
                            use_jsrun,
                            partial(called.append, "js"),
                            2,
                        )
                    except ValueError as error:
                        called.append("no LSF" if "LSF" in str(error) else "no MPI")
                self.assertEqual(called, [wanted], (use_gloo, use_mpi, use_jsrun))

    def test_parts_that_are_not_there_say_what_to_use(self) -> None:
        for name in (
            *("driver", "task", "http", "common.service", "common.util.network", "run_task"),
            *("task_fn", "util.cache", "util.remote", "common.util.tiny_shell_exec"),
            *("elastic.discovery", "elastic.registration", "elastic.rendezvous"),
            "elastic.settings",
        ):
            with self.assertRaisesRegex(
                ModuleNotFoundError, f"^horovod.runner.{name} is not offered by Talweg: "
            ):
                importlib.import_module(f"talweg.horovod.runner.{name}")
        for name in (
            *("mpi_run.mpi_run", "js_run.js_run", "js_run.generate_jsrun_rankfile"),
            *("gloo_run.gloo_run_elastic", "elastic.driver.ElasticDriver"),
        ):
            module, _, function = name.rpartition(".")
            found = importlib.import_module(f"talweg.horovod.runner.{module}")
            with self.assertRaisesRegex(Unsupported, f"{re.escape(name)}.* is not offered"):
                getattr(found, function)(None)
        with self.assertRaisesRegex(Unsupported, "LSB_DJOB_HOSTFILE"):
            lsf.LSFUtils.get_compute_hosts()
        self.assertFalse(mpi_run.mpi_available())
        self.assertIsNone(mpi_run._get_mpi_implementation_flags(False)[0])


if __name__ == "__main__":
    unittest.main()
