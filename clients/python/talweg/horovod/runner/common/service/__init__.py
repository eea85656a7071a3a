# SPDX-License-Identifier: Apache-2.0
"""Horovod's services on other hosts. Talweg does not offer it."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.runner.common.service",
    "let horovodrun or horovod.run(func, num_proc=N, hosts=...) start the ranks",
)
