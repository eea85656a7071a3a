# SPDX-License-Identifier: Apache-2.0
"""Says for whom init() and resume() wait."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from talweg import errors
from talweg.byteps import _job

# After how many seconds it first says so, how often it looks until then, and how often it says so.
_SAY_AFTER_S = 5.0
_LOOK_S = 1.0
_SAY_S = 10.0
_NAMED_MAX = 8


def _missing(job: _job.Job, members: list[Mapping[str, Any]]) -> str:
    """Returns a text that names the workers that are not among the members."""
    gone = ("MEMBER_STATE_LEFT", "MEMBER_STATE_LOST")
    living = (each["member"]["id"] for each in members if each["state"] not in gone)
    here = {int(each["node_rank"]) for each in living}
    missing = [str(worker) for worker in range(job.workers) if worker not in here]
    named = ", ".join(missing[:_NAMED_MAX])
    more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
    return f"; DMLC_WORKER_ID {named}{more} {'is' if len(missing) == 1 else 'are'} missing"


def _text(job: _job.Job, told: Mapping[str, Any] | None) -> str:
    """Returns a text about the job of that name that waits for workers; empty if none does."""
    for each in told["jobs"] if told is not None else ():
        summary = each["job"]["summary"]
        if summary["name"] == job.name and summary["state"] == "JOB_STATE_FORMING":
            here = int(summary["member_count"])
            return (
                f"workers: {here} of {job.workers} (DMLC_NUM_WORKER, or num_workers of resume()) "
                f"{'is' if here == 1 else 'are'} there{_missing(job, each['job']['members'])}"
            )
    return ""


def text_of_workers(job: _job.Job) -> str:
    """Returns for which workers the job waits, by its scheduler's answer; empty if for none."""
    return _text(job, _job.status(job.scheduler))


@contextlib.contextmanager
def waiting(text: Callable[[], str], log: logging.Logger) -> Iterator[None]:
    """A context in which this rank waits. Warns every ten seconds, when that takes long.

    `text` returns for whom the rank waits; empty if for nobody, or if it is not known. An error at
    the end of the wait says it, too.
    """
    is_over = threading.Event()

    def say() -> None:
        after_s = _SAY_AFTER_S
        while not is_over.wait(after_s):
            told, after_s = text(), _LOOK_S
            if told and not is_over.is_set():
                log.warning("waiting for %s", told)
                after_s = _SAY_S

    thread = threading.Thread(target=say, name="talweg-waiting", daemon=True)
    thread.start()
    try:
        yield
    except errors.Timeout as error:
        told = text()
        if not told:
            raise
        raise errors.Timeout(f"{error}; it has waited for {told}") from None
    finally:
        is_over.set()
        thread.join()
