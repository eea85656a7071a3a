# SPDX-License-Identifier: Apache-2.0
"""A rank of the scenario `recovery` that trains with torch: joiners catch up beside its steps.

    catch_up_rank.py DIRECTORY GRADIENT_BYTES STATE_BYTES COMPUTE_MS

It keeps the log of recovery_rank.py, checks weights and ends as that does. A step computes for
COMPUTE_MS without using this machine's cores, as a GPU would. Only the weights, which are as large
as the gradient, are trained. The rest of the state stays the same.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import talweg
import talweg.torch
import torch
from recovery_rank import Log, LostStep
from recovery_record import BEGINS, COMES, STEP, WHOLE


def main() -> int:
    directory = Path(sys.argv[1])
    gradient_bytes, state_bytes, compute_ms = map(int, sys.argv[2:5])
    torch.set_num_threads(1)
    model = torch.nn.Module()
    model.weights = torch.nn.Parameter(torch.zeros(gradient_bytes // 4))
    model.ballast = torch.nn.Parameter(torch.zeros(state_bytes // 4), requires_grad=False)
    talweg.init()
    log = Log(directory)
    optimizer: Any = torch.optim.SGD([model.weights], lr=1.0)
    optimizer = talweg.torch.DistributedOptimizer(optimizer, [("weights", model.weights)])
    state = talweg.torch.Elastic(model, optimizer, step=0, stopped=False)

    def check() -> None:
        for weight in (model.weights.min().item(), model.weights.max().item()):
            if weight != state.step:
                raise LostStep(f"after step {state.step} a weight is {weight}")

    log.write(COMES, 0, time.monotonic_ns())
    try:
        if state.begin() and state.took_whole is not None:
            log.write(WHOLE, state.step, time.monotonic_ns())
            print(f"the joiner has taken the whole state: {state.took_whole}", file=sys.stderr)
        log.write(BEGINS, state.step, time.monotonic_ns())
        while not state.stopped:
            begin_ns = time.monotonic_ns()
            optimizer.zero_grad()
            time.sleep(compute_ms * 1e-3)
            (-model.weights.sum()).backward()
            optimizer.step()
            own = np.array([(directory / "stop").exists()], np.int32)
            state.stopped = bool(talweg.push_pull(own, op=talweg.Op.MAX, name="stop")[0])
            state.step += 1
            state.end_step()
            log.write(STEP, state.step, begin_ns)
            check()
    except LostStep as lost:
        print(lost, file=sys.stderr)
        return 4
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
