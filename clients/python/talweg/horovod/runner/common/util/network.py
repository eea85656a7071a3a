# SPDX-License-Identifier: Apache-2.0
"""Horovod's messages between services. Talweg does not offer it."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.runner.common.util.network",
    "let horovodrun or horovod.run(func, num_proc=N, hosts=...) start the ranks",
)
