# SPDX-License-Identifier: Apache-2.0
"""A rank beside one that scribbles. It pushes the same tensors until an error ends the job."""

from __future__ import annotations

import sys

import numpy as np
import talweg


def main() -> int:
    talweg.init()
    large: np.ndarray = np.ones(50_000, np.float32)
    try:
        while True:
            talweg.push_pull_inplace(large, op=talweg.Op.SUM, name="large")
            talweg.push_pull(np.ones(3, np.int32), op=talweg.Op.SUM, name="small")
    except (talweg.JobFailed, talweg.AgentLost, talweg.Mismatch) as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
        return 3


if __name__ == "__main__":
    sys.exit(main())
