# SPDX-License-Identifier: Apache-2.0
"""The times of elastic jobs, as horovodrun uses them. Horovod's driver itself is not there."""

from __future__ import annotations

from typing import Any

from talweg.horovod._absent import not_offered

__all__ = ["DISCOVER_HOSTS_FREQUENCY_SECS", "ELASTIC_TIMEOUT_SECS", "ElasticDriver"]

# How often the host discovery script is run: at most once a second.
DISCOVER_HOSTS_FREQUENCY_SECS: float = 1.0
# How long there may be too few ranks.
ELASTIC_TIMEOUT_SECS: float = 600


class ElasticDriver:
    """Horovod's driver. Talweg has none, and raises Unsupported."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise not_offered(
            "horovod.runner.elastic.driver.ElasticDriver",
            "start the job by horovodrun --min-np, or horovod.run(func, min_num_proc=N)",
        )
