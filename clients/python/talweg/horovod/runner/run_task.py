# SPDX-License-Identifier: Apache-2.0
"""Horovod's program of ranks that call a function. Talweg does not offer it."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.runner.run_task",
    "let horovodrun or horovod.run(func, num_proc=N, hosts=...) start the ranks",
)
