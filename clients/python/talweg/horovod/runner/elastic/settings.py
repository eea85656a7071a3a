# SPDX-License-Identifier: Apache-2.0
"""Horovod's settings of elastic jobs. Talweg does not offer it."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.runner.elastic.settings",
    "let horovodrun --min-np, or horovod.run(func, min_num_proc=N), follow the hosts",
)
