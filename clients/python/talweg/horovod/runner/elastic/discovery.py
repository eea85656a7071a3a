# SPDX-License-Identifier: Apache-2.0
"""Horovod's search for hosts. Talweg does not offer it."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.runner.elastic.discovery",
    "give horovodrun --host-discovery-script",
)
