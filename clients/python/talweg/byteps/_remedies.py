# SPDX-License-Identifier: Apache-2.0
"""Names BytePS's variables in the errors of daemons that know only their own options."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from talweg import errors

# What workers of one job must agree on, by the daemons' names.
_AGREED = {
    "min_members": "DMLC_NUM_WORKER (num_workers of resume())",
    "max_members": "DMLC_NUM_WORKER (num_workers of resume())",
    "slice_bytes_max": "BYTEPS_PARTITION_BYTES",
    "dealing": "BYTEPS_KEY_HASH_FN, BYTEPS_BUILT_IN_HASH_COEF and BYTEPS_ENABLE_MIXED_MODE",
}
_DISAGREE = re.compile(r"(\w+) is .* in the job and .* in the request")


@contextlib.contextmanager
def named() -> Iterator[None]:
    """A context in which errors of joining name the variable that is the remedy."""
    try:
        yield
    except errors.RankTaken as error:
        fact = str(error).rpartition(";")[0] or str(error)
        raise errors.RankTaken(
            f"{fact}; if that is a rank of another job on this machine, give each job a BYTEPS_JOB_ID "
            "of its own; otherwise each rank of the node needs another BYTEPS_LOCAL_RANK"
        ) from None
    except errors.JobFailed as error:
        found = _DISAGREE.search(str(error))
        name = _AGREED.get(found[1]) if found is not None else None
        if name is None:
            raise
        raise errors.JobFailed(
            f"{error}: set {name} to the same at all workers, or give the other job another "
            "BYTEPS_JOB_ID"
        ) from None
