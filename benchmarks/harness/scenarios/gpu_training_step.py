# SPDX-License-Identifier: Apache-2.0
"""Measures what communication adds to training steps of two processes on this machine's GPUs."""

from __future__ import annotations

from harness.gpus import count_gpus, device_variables
from harness.scenario import Context, Section
from harness.scenarios import training_step

TITLE = "A training step on GPUs"

_CASES: dict[str, tuple[tuple[str, int], ...]] = {
    "smoke": (("tiny", 2),),
    "quick": (("resnet18", 64),),
    "default": (("mlp", 256), ("resnet18", 16), ("resnet18", 128)),
    "full": (("mlp", 32), ("mlp", 256), ("resnet18", 16), ("resnet18", 64), ("resnet18", 256)),
}


def run(context: Context) -> Section:
    # NCCL refuses two ranks on one GPU.
    contenders = training_step.makers(
        context.programs,
        device_variables(context.mode),
        with_nccl=count_gpus() > 1,
        with_backend=True,
    )
    # There is no bar for the added time. The page shows it beside the peers'.
    return training_step.measure(context, TITLE, contenders, _CASES[context.mode], None)
