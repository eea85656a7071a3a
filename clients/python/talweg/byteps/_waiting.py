# SPDX-License-Identifier: Apache-2.0
"""Says for how many workers init() and resume() wait."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from talweg import errors
from talweg.byteps import _job

# After how many seconds it says so, and how often it looks until then.
_SAY_AFTER_S = 5.0
_LOOK_S = 1.0


def _text(job: _job.Job, told: Mapping[str, Any] | None) -> str:
    """Returns a text about the job of that name that waits for workers; empty if none does."""
    for each in told["jobs"] if told is not None else ():
        summary = each["job"]["summary"]
        if summary["name"] == job.name and summary["state"] == "JOB_STATE_FORMING":
            here = int(summary["member_count"])
            return (
                f"workers: {here} of {job.workers} (DMLC_NUM_WORKER, or num_workers of resume()) "
                f"{'is' if here == 1 else 'are'} there"
            )
    return ""


@contextlib.contextmanager
def waiting(job: _job.Job, log: logging.Logger) -> Iterator[None]:
    """A context in which this rank waits for the whole job. Warns once, when that takes long.

    An error at the end of the wait says whom the job has waited for.
    """
    is_over = threading.Event()

    def say() -> None:
        after_s = _SAY_AFTER_S
        while not is_over.wait(after_s):
            text, after_s = _text(job, _job.status(job.scheduler)), _LOOK_S
            if text and not is_over.is_set():
                return log.warning("waiting for %s", text)

    thread = threading.Thread(target=say, name="talweg-waiting", daemon=True)
    thread.start()
    try:
        yield
    except errors.Timeout as error:
        text = _text(job, _job.status(job.scheduler))
        if not text:
            raise
        raise errors.Timeout(f"{error}; it has waited for {text}") from None
    finally:
        is_over.set()
        thread.join()
