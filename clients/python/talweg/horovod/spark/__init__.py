# SPDX-License-Identifier: Apache-2.0
"""Horovod's jobs on Spark, and its estimators. Talweg does not offer them."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.spark",
    "let horovod.run(func, num_proc=N, hosts=...) or horovodrun start the ranks, and give them the "
    "data as files, as Spark's DataFrame.write.parquet() makes them",
)
