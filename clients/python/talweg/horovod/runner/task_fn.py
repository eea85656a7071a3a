# SPDX-License-Identifier: Apache-2.0
"""Horovod's program that looks for network interfaces. Talweg does not offer it."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.runner.task_fn",
    "let horovodrun or horovod.run(func, num_proc=N, hosts=...) start the ranks",
)
