# SPDX-License-Identifier: Apache-2.0
"""The common part of the benchmarks: options, a batch of random images, and the output."""

from __future__ import annotations

import argparse
import math
import timeit
from collections.abc import Callable
from typing import Any

import models
import torch
from torch.nn import functional


def parse_options(description: str, fp16_option: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        fp16_option, dest="fp16", action="store_true", help="gradients travel as f16"
    )
    parser.add_argument("--model", default="resnet50", help="model to benchmark")
    parser.add_argument("--batch-size", type=int, default=32, help="images of a rank's batch")
    parser.add_argument("--num-warmup-batches", type=int, default=10, help="batches before timing")
    parser.add_argument(
        "--num-batches-per-iter", type=int, default=10, help="batches of one figure"
    )
    parser.add_argument("--num-iters", type=int, default=10, help="number of figures")
    parser.add_argument("--num-classes", type=int, default=1000, help="classes of the images")
    parser.add_argument("--image-size", type=int, default=224, help="width and height of an image")
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU")
    parser.add_argument(
        "--profiler", action="store_true", help="print torch's profile of one batch"
    )
    parser.add_argument(
        "--partition", type=int, help="no effect: set BYTEPS_PARTITION_BYTES for the launcher"
    )
    options = parser.parse_args()
    options.cuda = not options.no_cuda and torch.cuda.is_available()
    return options


class Benchmark:
    """A model, its random batch, and the step that is timed."""

    def __init__(self, options: argparse.Namespace, bps: Any) -> None:
        self._options = options
        self._bps = bps
        self.device = "GPU" if options.cuda else "CPU"
        if options.partition is not None:
            # BytePS's programs ignore it as well. A launcher's agent runs before the program begins.
            self.say(
                f"--partition {options.partition} has no effect: the node's agent cuts the tensors, as "
                "BYTEPS_PARTITION_BYTES says when it starts; set that variable for the launcher"
            )
        if options.cuda:
            torch.cuda.set_device(bps.local_rank())
        self.model = models.make(options.model, options.num_classes)
        shape = (options.batch_size, 3, options.image_size, options.image_size)
        self._images = torch.randn(*shape)
        self._classes = torch.randint(options.num_classes, (options.batch_size,))
        if options.cuda:
            self.model.cuda()
            self._images, self._classes = self._images.cuda(), self._classes.cuda()

    def say(self, text: str) -> None:
        """Prints the text once per node."""
        if self._bps.local_rank() == 0:
            print(text, flush=True)

    def step(self, model: torch.nn.Module, optimizer: Any) -> None:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(self._images), self._classes)
        loss.backward()
        optimizer.step()

    def run(self, step: Callable[[], None]) -> None:
        """Prints each measurement in images per second, then their mean and spread."""
        options, size = self._options, self._bps.size()
        self.say(f"Model: {options.model}")
        self.say(f"Batch size: {options.batch_size}")
        self.say(f"Number of {self.device}s: {size}")
        self.say("Running warmup...")
        timeit.timeit(step, number=options.num_warmup_batches)
        if options.profiler:
            with torch.profiler.profile() as profile:
                step()
            self.say(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=20))
        self.say("Running benchmark...")
        figures = []
        for i in range(options.num_iters):
            seconds = timeit.timeit(step, number=options.num_batches_per_iter)
            figure = options.batch_size * options.num_batches_per_iter / seconds
            self.say(f"Iter #{i}: {figure:.1f} img/sec per {self.device}")
            figures.append(figure)
        if not figures:
            return
        mean = sum(figures) / len(figures)
        spread = 1.96 * math.sqrt(sum((each - mean) ** 2 for each in figures) / len(figures))
        self.say(f"Img/sec per {self.device}: {mean:.1f} +-{spread:.1f}")
        self.say(
            f"Total img/sec on {size} {self.device}(s): {size * mean:.1f} +-{size * spread:.1f}"
        )
