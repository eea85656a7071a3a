# SPDX-License-Identifier: Apache-2.0
"""Asks the scheduler a question through the tool `talweg`, without waiting for the answer."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

_EVERY_S = 0.5


class Question:
    """One question, which is asked again and again."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._output: IO[str] | None = None
        self._next_s = 0.0

    def ask(self, line: Sequence[str], environment: Mapping[str, str], now_s: float) -> bool:
        """Runs `line`, unless an answer is outstanding or the last question is less than 0.5 s old.
        Returns whether it has run it.
        """
        if self._process is not None or now_s < self._next_s:
            return False
        self._next_s = now_s + _EVERY_S
        # A pipe would become full, because nobody reads while the tool writes.
        self._output = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            line, env=environment, stdout=self._output, stderr=subprocess.DEVNULL, text=True
        )
        return True

    def answer(self) -> str | None:
        """Returns the tool's output, once. None: it has not ended yet, or it has failed."""
        if self._process is None or self._process.poll() is None:
            return None
        assert self._output is not None
        self._output.seek(0)
        said = self._output.read() if self._process.returncode == 0 else None
        self.close()
        return said

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._output is not None:
            self._output.close()
        self._process = self._output = None
