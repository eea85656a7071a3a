# SPDX-License-Identifier: Apache-2.0
"""Trains ResNet-50 on images in a directory for each class, and goes on from its checkpoints."""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path
from typing import Any

import byteps.torch as bps
import models
import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

try:
    from PIL import Image
except ModuleNotFoundError:
    raise SystemExit(
        f"{Path(sys.argv[0]).name}: pillow is not installed, which reads images. Install it: "
        f"{sys.executable} -m pip install pillow"
    ) from None

sys.path.append(str(Path(__file__).resolve().parents[1]))

from image_speed import ImageSpeed

_ENDINGS = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}
_MEAN, _SPREAD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    home = os.path.expanduser("~/imagenet")
    parser.add_argument("--train-dir", default=f"{home}/train", help="directories of images")
    parser.add_argument("--val-dir", default=f"{home}/validation", help="the same, to validate")
    parser.add_argument(
        "--log-dir", default="./logs", help="for TensorBoard, where it is installed"
    )
    parser.add_argument("--checkpoint-format", default="./checkpoint-{epoch}.pth.tar")
    parser.add_argument("--fp16-pushpull", action="store_true", help="gradients travel as f16")
    parser.add_argument("--batches-per-pushpull", type=int, default=1, help="batches of one step")
    parser.add_argument("--batch-size", type=int, default=32, help="images of a rank's batch")
    parser.add_argument("--val-batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--base-lr", type=float, default=0.0125, help="of one rank and batch")
    parser.add_argument("--warmup-epochs", type=float, default=5)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", type=float, default=5e-5, help="weight decay")
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--image-size", type=int, default=224)
    options = parser.parse_args()
    options.cuda = not options.no_cuda and torch.cuda.is_available()
    return options


class Images(Dataset):
    """Images from a folder for each class, cut to a random part of each, or to its middle."""

    def __init__(self, directory: str, size: int, is_random: bool) -> None:
        classes = sorted(each for each in Path(directory).iterdir() if each.is_dir())
        self.classes = len(classes)
        self._files = [
            (file, number)
            for number, each in enumerate(classes)
            for file in sorted(each.rglob("*"))
            if file.suffix.lower() in _ENDINGS
        ]
        if not self._files:
            raise SystemExit(f"{directory} has no directories of images")
        self._size = size
        self._is_random = is_random

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        file, number = self._files[index]
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        scale = self._size * (random.uniform(1.0, 1.5) if self._is_random else 1.15)
        width, height = (
            max(self._size, round(each * scale / min(image.size))) for each in image.size
        )
        spare = width - self._size, height - self._size
        left, top = (random.randint(0, each) if self._is_random else each // 2 for each in spare)
        image = image.resize((width, height)).crop((left, top, left + self._size, top + self._size))
        if self._is_random and random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.asarray(image).copy()).float() / 255
        return ((pixels - _MEAN) / _SPREAD).permute(2, 0, 1), number


class _Mean:
    """The mean of a value over batches and ranks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._total = torch.zeros(2)

    def add(self, value: float, weight: int) -> None:
        self._total += torch.tensor([value * weight, weight])

    def over_ranks(self) -> float:
        total = bps.push_pull(self._total, average=False, name=self._name)
        return float(total[0] / total[1])


class Training:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._device = torch.device("cuda", bps.local_rank()) if options.cuda else "cpu"
        training = Images(options.train_dir, options.image_size, True)
        self._sampler: DistributedSampler = self._sampler_of(training, True)
        size = options.batch_size
        self._loader: DataLoader = DataLoader(training, size, sampler=self._sampler)
        held_out = Images(options.val_dir, options.image_size, False)
        self._held_out: DataLoader = DataLoader(
            held_out, options.val_batch_size, sampler=self._sampler_of(held_out, False)
        )
        self.model = models.make("resnet50", training.classes).to(self._device)
        sgd = torch.optim.SGD(
            self.model.parameters(), lr=0.1, momentum=options.momentum, weight_decay=options.wd
        )
        self.optimizer = bps.DistributedOptimizer(
            sgd,
            named_parameters=self.model.named_parameters(),
            compression=bps.Compression.fp16 if options.fp16_pushpull else bps.Compression.none,
            backward_passes_per_step=options.batches_per_pushpull,
        )

    @staticmethod
    def _sampler_of(images: Images, shuffles: bool) -> DistributedSampler:
        return DistributedSampler(images, bps.size(), bps.rank(), shuffle=shuffles)

    def resume(self) -> int:
        """Gives all ranks the state of rank 0's newest checkpoint; returns the epochs done."""
        done = 0
        if bps.rank() == 0:
            for epoch in range(self._options.epochs, 0, -1):
                path = self._options.checkpoint_format.format(epoch=epoch)
                if os.path.exists(path):
                    kept = torch.load(path, map_location=self._device)
                    self.model.load_state_dict(kept["model"])
                    self.optimizer.load_state_dict(kept["optimizer"])
                    done = epoch
                    break
        done = int(bps.broadcast_object(done, 0, name="resume_from_epoch"))
        bps.broadcast_parameters(self.model.state_dict(), root_rank=0)
        bps.broadcast_optimizer_state(self.optimizer, root_rank=0)
        return done

    def _set_rate(self, epoch: int, batch: int) -> None:
        """Raises the rate from one rank's to all ranks' in the warmup; lowers it at 30, 60, 80."""
        options = self._options
        passed = epoch + batch / len(self._loader)
        if passed < options.warmup_epochs:
            factor = (passed * (bps.size() - 1) / options.warmup_epochs + 1) / bps.size()
        else:
            factor = 0.1 ** sum(epoch >= each for each in (30, 60, 80))
        for group in self.optimizer.param_groups:
            group["lr"] = options.base_lr * bps.size() * options.batches_per_pushpull * factor

    def train(self, epoch: int) -> tuple[float, float, str]:
        """Trains for an epoch; returns loss and accuracy over all ranks, and the speed."""
        self.model.train()
        self._sampler.set_epoch(epoch)
        loss_mean, accuracy = _Mean("train_loss"), _Mean("train_accuracy")
        passes = self._options.batches_per_pushpull
        speed = ImageSpeed(bps.size(), "GPU" if self._options.cuda else "CPU")
        for batch, (images, classes) in enumerate(self._loader):
            self._set_rate(epoch, batch)
            if batch % passes == 0:
                self.optimizer.zero_grad()
            output = self.model(images.to(self._device))
            loss = functional.cross_entropy(output, classes.to(self._device))
            (loss / passes).backward()
            if (batch + 1) % passes == 0:
                self.optimizer.step()
            loss_mean.add(loss.item(), len(classes))
            accuracy.add((output.argmax(1).cpu() == classes).float().mean().item(), len(classes))
            speed.add(len(classes))
        reached = speed.text()
        return loss_mean.over_ranks(), accuracy.over_ranks(), reached

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        self.model.eval()
        loss_mean, accuracy = _Mean("val_loss"), _Mean("val_accuracy")
        for images, classes in self._held_out:
            output = self.model(images.to(self._device)).cpu()
            loss_mean.add(functional.cross_entropy(output, classes).item(), len(classes))
            accuracy.add((output.argmax(1) == classes).float().mean().item(), len(classes))
        return loss_mean.over_ranks(), accuracy.over_ranks()

    def save(self, epoch: int) -> None:
        kept = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(kept, self._options.checkpoint_format.format(epoch=epoch + 1))


def _writer(directory: str) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(directory)


def main() -> None:
    options = parse_options()
    bps.init()
    torch.manual_seed(options.seed)
    random.seed(options.seed + bps.rank())
    if options.cuda:
        torch.cuda.set_device(bps.local_rank())
    training = Training(options)
    is_first = bps.rank() == 0
    writer = _writer(options.log_dir) if is_first else None
    for epoch in range(training.resume(), options.epochs):
        *trained, speed = training.train(epoch)
        figures = dict(zip(("train/loss", "train/accuracy"), trained))
        figures |= zip(("val/loss", "val/accuracy"), training.validate())
        if is_first:
            print(
                f"Epoch {epoch + 1}: "
                + ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
                + f"; {speed}",
                flush=True,
            )
            training.save(epoch)
        if writer is not None:
            for name, value in figures.items():
                writer.add_scalar(name, value, epoch)


if __name__ == "__main__":
    main()
