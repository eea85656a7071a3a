# SPDX-License-Identifier: Apache-2.0
"""What a machine must have, or permit, for a test: where it does not, the test is skipped aloud."""

from __future__ import annotations

import contextlib
import os
import shutil
import unittest
from collections.abc import Iterator, Sequence
from typing import NoReturn

from netns import Network, NotPermitted


def skip(why: str) -> NoReturn:
    print(f"SKIPPED: {why}")
    raise unittest.SkipTest(why)


def needs(program: str) -> str:
    """Its path."""
    path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if path is None:
        skip(f"no {program}; bazel/prepare --for=test installs it")
    return path


@contextlib.contextmanager
def network_of(hosts: Sequence[str]) -> Iterator[Network]:
    """Hosts with networks of their own."""
    with contextlib.ExitStack() as stack:
        try:
            network = stack.enter_context(Network(hosts))
        except NotPermitted as refusal:
            skip(f"no network namespaces: {refusal}")
        yield network


def network_for(test: unittest.TestCase, hosts: Sequence[str]) -> Network:
    """The same, until the test ends."""
    entered = network_of(hosts)
    network = entered.__enter__()
    test.addCleanup(entered.__exit__, None, None, None)
    return network
