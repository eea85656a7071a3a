# SPDX-License-Identifier: Apache-2.0
"""Shows and keeps the output of ranks on several hosts, as Horovod's launcher does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from talweg._node.hosts import end_of
from talweg.horovod.runner.common.util.safe_shell_exec import line_prefix


class Output:
    """Shows lines after their rank and stream, and keeps them in the files of --output-filename."""

    def __init__(self, options: Any) -> None:
        self._has_time = options.prefix_output_with_timestamp
        self._directory: Path | None = None
        if options.output_filename:
            self._directory = Path(options.output_filename)
            self._digits = len(str(options.num_proc - 1))
            for rank in range(options.num_proc):
                self._file(rank, "").mkdir(parents=True, exist_ok=True)
                for stream in ("stdout", "stderr"):
                    self._file(rank, stream).write_text("")

    def _file(self, rank: int, stream: str) -> Path:
        assert self._directory is not None
        return self._directory / f"rank.{rank:0{self._digits}d}" / stream

    def say(self, rank: int, stream: str, text: str) -> None:
        shown = sys.stderr if stream == "stderr" else sys.stdout
        end = end_of(text)
        before = line_prefix(rank, stream, self._has_time)
        print(f"{before}{text}", file=shown, end=end, flush=True)
        if self._directory:
            # It is opened anew: there may be more ranks than a process may have open files.
            with self._file(rank, stream).open("a") as file:
                print(text, file=file, end=end)
