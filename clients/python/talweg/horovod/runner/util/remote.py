# SPDX-License-Identifier: Apache-2.0
"""Horovod's command lines of ssh. Talweg does not offer it."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.runner.util.remote",
    "let horovodrun or horovod.run(func, num_proc=N, hosts=...) start the ranks",
)
