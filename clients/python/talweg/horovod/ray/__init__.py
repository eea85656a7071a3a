# SPDX-License-Identifier: Apache-2.0
"""Horovod's jobs on Ray. Talweg does not offer them."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.ray",
    "let horovod.run(func, num_proc=N, hosts=...) start the ranks; for hosts that come and go "
    "horovodrun --min-np with --host-discovery-script",
)
