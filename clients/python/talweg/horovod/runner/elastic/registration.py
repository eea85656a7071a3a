# SPDX-License-Identifier: Apache-2.0
"""Horovod's list of the states of ranks. Talweg does not offer it."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.runner.elastic.registration",
    "let horovodrun --min-np, or horovod.run(func, min_num_proc=N), follow the hosts",
)
