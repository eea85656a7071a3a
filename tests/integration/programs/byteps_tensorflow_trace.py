# SPDX-License-Identifier: Apache-2.0
"""One rank of tensorflow_compat_test.py. It checks that a trace has the pushes of a graph."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import byteps.tensorflow as bps
import tensorflow as tf


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {"BYTEPS_TRACE_ON": "1", "BYTEPS_TRACE_DIR": directory}
        os.environ |= {"BYTEPS_TRACE_START_STEP": "1", "BYTEPS_TRACE_END_STEP": "2"}
        bps.init()

        @tf.function
        def push(tensor: tf.Tensor) -> tf.Tensor:
            return bps.push_pull(tensor, name="traced")

        for _ in range(2):
            push(tf.ones(3))
        file = Path(directory) / str(bps.local_rank()) / "comm.json"
        names = [event["name"] for event in json.loads(file.read_text())["traceEvents"]]
        for stage in ("", ".PUSH", ".PULL"):
            found = [name for name in names if name.endswith(f"traced{stage}")]
            assert len(found) == 2, names
        bps.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
