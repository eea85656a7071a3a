# SPDX-License-Identifier: Apache-2.0
"""Runs shell blocks of BytePS's documents, as they stand, on machines that are network namespaces.

    with Machines(["scheduler", "server"]) as machines:
        block = Document("step_by_step_tutorial").block("tcp scheduler", replaced)
        machines.start("scheduler", block)

A block is given to bash as its input, as a reader types it. `docker run ... bash` starts a container:
mount and process namespaces in which BytePS's tree is where an image has it. What is read after that
command is the container's. Killing the container ends all that runs in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent import futures
from pathlib import Path

import byteps_commands
from permitted import network_of

_HERE = Path(os.environ["RUNFILES_DIR"]) / "talweg"
_DOCUMENTS = _HERE / "tests" / "tutorial" / "documents"
_TREE = _HERE / "clients" / "byteps"
# Where the documents have BytePS's tree: an image's, and a user's clone.
_PLACES = ("/usr/local/byteps", "/home/ubuntu/src/bps/byteps")
# Ends a hang.
TIMEOUT_S = 900.0

# Puts the tree into its places without a trace on this machine: a directory of links and mounts hides
# each parent. `$1` is the tree, the rest are places.
_ENTER = r"""
set -e
mount --make-rprivate /
tree=$1; shift
while [ "$1" != -- ]; do
  parent=$(dirname "$1"); while [ ! -d "$parent" ]; do parent=$(dirname "$parent"); done
  beside=$(mktemp -d)
  mount --rbind "$parent" "$beside"
  mount -t tmpfs none "$parent"
  for each in "$beside"/*; do
    [ -e "$each" ] || continue
    if [ -d "$each" ]; then
      mkdir "$parent/${each##*/}"; mount --rbind "$each" "$parent/${each##*/}"
    else
      touch "$parent/${each##*/}"; mount --bind "$each" "$parent/${each##*/}"
    fi
  done
  umount --lazy "$beside"; rmdir "$beside"
  mkdir -p "$1"; mount --bind "$tree" "$1"
  shift
done
shift
exec "$@"
"""

# `docker pull IMAGE` and `docker run OPTIONS IMAGE bash`, of the images that deploy/images makes.
_DOCKER = r"""#!/bin/bash
known() {
  case ${1#bytepsimage/} in
    byteps_server | worker_pytorch | worker_tensorflow | worker_mxnet) ;;
    byteps_server_rdma | worker_pytorch_rdma | worker_tensorflow_rdma | worker_mxnet_rdma) ;;
    *) echo "docker: there is no image $1" >&2; exit 125 ;;
  esac
}
case $1 in
  pull) known "$2" ;;
  run)
    shift
    while [[ $1 == -* ]]; do
      case $1 in
        -it | --net=host | --shm-size=*) ;;
        --device | --cap-add) shift ;;
        *) echo "docker: unknown option $1" >&2; exit 125 ;;
      esac
      shift
    done
    known "$1"; shift
    echo "container of this image"
    exec "$ENTER_CONTAINER" "$@"
    ;;
  *) exit 125 ;;
esac
"""

# `sudo -E VARIABLE=VALUE... COMMAND`; the test is root.
_SUDO = '#!/bin/sh\n[ "$1" = -E ] && shift\nexec env "$@"\n'


class Document:
    """The shell blocks of a document, each with a name."""

    def __init__(self, name: str) -> None:
        text = (_DOCUMENTS / f"{name}.txt").read_text()
        parts = re.split(r"^== (.*)\n", text, flags=re.MULTILINE)[1:]
        self._blocks = dict(zip(parts[::2], parts[1::2]))

    @property
    def names(self) -> list[str]:
        return list(self._blocks)

    def block(self, name: str, replaced: Mapping[str, str]) -> str:
        """The block with these texts replaced; each must be in it."""
        text = self._blocks[name]
        for old, new in replaced.items():
            if old not in text:
                raise AssertionError(f"there is no {old!r} in the block {name!r}:\n{text}")
            text = text.replace(old, new)
        return text


class Machines:
    """Machines on one network, which share this machine's files. A context manager."""

    def __init__(self, names: Sequence[str], **variables: str) -> None:
        """`variables` are set wherever a block runs. Entering it raises SkipTest where this user may
        not make networks."""
        self._names = names
        self._variables = variables

    def __enter__(self) -> Machines:
        with contextlib.ExitStack() as stack:
            self._network = stack.enter_context(network_of(self._names))
            made = tempfile.TemporaryDirectory(prefix="talweg.", dir="/tmp")
            self.directory = Path(stack.enter_context(made))
            for name, text in (("docker", _DOCKER), ("nvidia-docker", _DOCKER), ("sudo", _SUDO)):
                self._program(name, text)
            container = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
            enter = [*container, "sh", "-c", _ENTER, "sh", str(_TREE), *_PLACES, "--"]
            self._container = self._program(
                "enter_container", f'#!/bin/sh\nexec {shlex.join(enter)} "$@"\n'
            )
            (self.directory / "byteps").symlink_to(_TREE)
            self._running = stack.enter_context(contextlib.ExitStack())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _program(self, name: str, text: str) -> Path:
        directory = self.directory / "bin"
        directory.mkdir(exist_ok=True)
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
        return directory / name

    def address(self, machine: str) -> str:
        return self._network.address(machine)

    def start(self, machine: str, block: str) -> subprocess.Popen[str]:
        """Runs a block there; one that starts no container is run in one."""
        environment = byteps_commands.environment(**self._variables)
        environment["ENTER_CONTAINER"] = str(self._container)
        environment["PATH"] = f"{self.directory / 'bin'}:{environment['PATH']}:/usr/sbin:/sbin"
        shell = ["bash"] if "docker run" in block else [str(self._container), "bash"]
        process = subprocess.Popen(
            [*self._network.enter(machine), *shell],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._running.callback(_end, process)
        assert process.stdin is not None
        process.stdin.write(block)
        process.stdin.close()
        process.stdin = None
        return process

    def run(self, blocks: Mapping[str, str]) -> dict[str, str]:
        """Runs a block on each machine; what each says. AssertionError unless all end with 0."""
        return self.finish(
            {machine: self.start(machine, block) for machine, block in blocks.items()}
        )

    def finish(self, started: Mapping[str, subprocess.Popen[str]]) -> dict[str, str]:
        """What each says until its end. AssertionError unless all end with 0."""
        outputs = {}
        with futures.ThreadPoolExecutor(len(started)) as pool:
            reading = {
                pool.submit(process.communicate, timeout=TIMEOUT_S): name
                for name, process in started.items()
            }
            for done in futures.as_completed(reading):
                outputs[reading[done]] = done.result()[0]
                if started[reading[done]].returncode != 0:  # The others would wait for it.
                    for process in started.values():
                        _kill(process)
        codes = {name: process.returncode for name, process in started.items()}
        if any(codes.values()):
            said = "\n".join(f"--- {name}\n{text[-6000:]}" for name, text in outputs.items())
            raise AssertionError(f"exit statuses {codes}\n{said}")
        return outputs


def _kill(process: subprocess.Popen[str]) -> None:
    """The shell is the leader of its session; with it its containers are killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        _kill(process)
    process.communicate()


# What every block that has it needs on two cores.
DEVICES = {"0,1,2,3": "0"}
ITERATIONS = "--num-iters 2 --num-warmup-batches 1 --num-batches-per-iter 1 --batch-size 1"
FEWER_ITERATIONS = {"--num-iters 1000000": ITERATIONS}
FEWER_MXNET = {"--batch-size=32": "--batch-size=1 --num-epochs 1 --num-examples 8 --disp-batches 2"}
_TUTORIAL = Document("step_by_step_tutorial")


def tcp_job(machines: Machines, framework: str) -> dict[str, str]:
    """The blocks of "Distributed Training (TCP)" for a framework, by machine.

    For a framework other than MXNet a reader changes the image's name and the last command.
    """
    scheduler = {"10.0.0.1": machines.address("scheduler")}
    blocks = {role: _TUTORIAL.block(f"tcp {role}", scheduler) for role in ("scheduler", "server")}
    for worker in ("worker 0", "worker 1"):
        block = _TUTORIAL.block(f"tcp {worker}", {**scheduler, **DEVICES, **FEWER_MXNET})
        if framework != "mxnet":
            script = _TUTORIAL.block(f"tcp {framework}", FEWER_ITERATIONS)
            block = with_script(block, framework, script)
        blocks[worker] = block
    return blocks


TCP_MACHINES = ("scheduler", "server", "worker 0", "worker 1")


def with_script(block: str, framework: str, script: str) -> str:
    """A block of an MXNet worker as one of another framework's."""
    begin = block.index("python /usr/local/byteps/launcher/launch.py")
    return block[:begin].replace("worker_mxnet", f"worker_{framework}") + script
