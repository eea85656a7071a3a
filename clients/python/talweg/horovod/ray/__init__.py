# SPDX-License-Identifier: Apache-2.0
"""Horovod's jobs on Ray. Talweg does not offer them."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.ray",
    "let horovod.run(func, num_proc=N, hosts=...) start the ranks; for hosts that come and go give "
    "it min_num_proc and host_discovery_script",
)
