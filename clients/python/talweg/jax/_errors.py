# SPDX-License-Identifier: Apache-2.0
"""Finds Talweg's errors in XLA's: a program that XLA runs can raise only JaxRuntimeError."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import jax
from jax._src import dispatch  # Where JAX keeps the tokens of ordered effects.

from talweg import errors
from talweg._library.native_errors import EXCEPTIONS
from talweg.jax._effects import RoundEffect

# The format of handlers.cc.
_TEXT = re.compile(r"Talweg \(status (\d+), [a-z ]+\): (.*)", re.DOTALL)


def error_in(error: BaseException) -> errors.TalwegError | None:
    """Returns the Talweg error that the text of a JaxRuntimeError contains, or None."""
    found = _TEXT.search(str(error))
    if found is None:
        return None
    kind = EXCEPTIONS.get(int(found[1]), errors.TalwegError)
    return kind(found[2].strip())


def forget_failures() -> None:
    """Lets later calls of this thread go on after a call has failed.

    JAX hands the token of a failed program to the next program with a call of the same name. That
    program then fails with the same error.
    """
    tokens = dispatch.runtime_tokens.current_tokens
    for effect in [each for each in tokens if isinstance(each, RoundEffect)]:
        try:
            tokens[effect].block_until_ready()
        except Exception:
            del tokens[effect]


def finish_programs() -> None:
    """Returns when all programs with calls that this thread has started have ended."""
    with talweg_errors():
        pass


@contextlib.contextmanager
def talweg_errors() -> Iterator[None]:
    """A context in which a failed call raises Talweg's own error: Mismatch, JobFailed, Aborted.

    The context ends when the programs that this thread has started in it have ended. So errors are
    raised here, and later calls work as docs/collectives.md says of the error.
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
