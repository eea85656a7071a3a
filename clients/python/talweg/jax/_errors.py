# SPDX-License-Identifier: Apache-2.0
"""Talweg's errors out of XLA's: a program that XLA runs can only raise JaxRuntimeError."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import jax
from jax._src import dispatch  # Where JAX keeps the tokens of ordered effects.

from talweg import errors
from talweg._library import native
from talweg.jax._effects import RoundEffect

# As handlers.cc words it.
_TEXT = re.compile(r"Talweg \(status (\d+), [a-z ]+\): (.*)", re.DOTALL)


def error_in(error: BaseException) -> errors.TalwegError | None:
    """The error of Talweg's that a JaxRuntimeError tells of, or None."""
    found = _TEXT.search(str(error))
    if found is None:
        return None
    kind = native.EXCEPTIONS.get(int(found[1]), errors.TalwegError)
    return kind(found[2].strip())


def forget_failures() -> None:
    """Lets later calls of this thread go on after one that has failed.

    JAX hands the token of a failed program to the next program with a call of the same name, which
    then fails with the same error.
    """
    tokens = dispatch.runtime_tokens.current_tokens
    for effect in [each for each in tokens if isinstance(each, RoundEffect)]:
        try:
            tokens[effect].block_until_ready()
        except Exception:
            del tokens[effect]


def finish_programs() -> None:
    """Returns when the programs with calls have ended that this thread has started."""
    with talweg_errors():
        pass


@contextlib.contextmanager
def talweg_errors() -> Iterator[None]:
    """Within it a program's failed call raises Talweg's own error: Mismatch, JobFailed, Aborted.

    It ends when the programs that this thread has started within it have ended, so errors come out
    here, and later calls work as docs/collectives.md says of the error.
    """
    try:
        yield
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as error:
        forget_failures()
        own = error_in(error)
        if own is None:
            raise
        raise own from None
