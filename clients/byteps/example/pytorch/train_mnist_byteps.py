# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on handwritten digits without a download: on torchvision's MNIST if its
files are there, else on the digits of mnist_digits.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import byteps.torch as bps
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

sys.path.append(str(Path(__file__).resolve().parents[1]))

import mnist_digits
from image_speed import ImageSpeed


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=64, help="digits of a rank's batch")
    parser.add_argument("--test-batch-size", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument(
        "--lr", type=float, default=0.01, help="of one rank; grows with their number"
    )
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--log-interval", type=int, default=10, help="batches between two lines")
    parser.add_argument("--fp16-pushpull", action="store_true", help="gradients travel as f16")
    parser.add_argument("--data-dir", default="data", help="where torchvision keeps MNIST")
    options = parser.parse_args()
    options.cuda = not options.no_cuda and torch.cuda.is_available()
    return options


def _mnist(directory: str) -> tuple[Dataset, Dataset] | None:
    try:
        from torchvision import datasets, transforms
    except ImportError:
        return None
    transform = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    )
    try:
        return (
            datasets.MNIST(directory, train=True, transform=transform),
            datasets.MNIST(directory, train=False, transform=transform),
        )
    except RuntimeError:  # The files are not there.
        return None


def _dataset(digits: mnist_digits.Digits) -> Dataset:
    images = (torch.from_numpy(digits[0]).unsqueeze(1) - 0.1307) / 0.3081
    return TensorDataset(images, torch.from_numpy(digits[1]))


def load_digits(directory: str) -> tuple[Dataset, Dataset]:
    """Returns the data to train on and to test on."""
    found = _mnist(directory)
    if found is not None:
        return found
    training, held_out = mnist_digits.load(bps.rank() == 0, f"in '{directory}'")
    return _dataset(training), _dataset(held_out)


class Net(nn.Module):
    """A network of two convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu(functional.max_pool2d(functional.dropout2d(self.conv2(x)), 2))
        x = functional.relu(self.fc1(x.flatten(1)))
        return self.fc2(functional.dropout(x, training=self.training))


def _averaged(value: float, name: str) -> float:
    """Returns the average over all ranks."""
    return float(bps.push_pull(torch.tensor(value), name=name))


def train(
    options: argparse.Namespace,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader,
    epoch: int,
) -> None:
    model.train()
    speed = ImageSpeed(bps.size(), "GPU" if options.cuda else "CPU")
    for batch, (images, classes) in enumerate(loader):
        if options.cuda:
            images, classes = images.cuda(), classes.cuda()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), classes)
        loss.backward()
        optimizer.step()
        speed.add(len(classes))
        if batch % options.log_interval == 0 and bps.rank() == 0:
            print(
                f"Train Epoch: {epoch} [{batch}/{len(loader)}]\tLoss: {loss.item():.6f}", flush=True
            )
    if options.cuda:
        torch.cuda.synchronize()
    if bps.rank() == 0:
        print(f"Train Epoch: {epoch}\t{speed.text()}", flush=True)


def test(options: argparse.Namespace, model: nn.Module, loader: DataLoader) -> None:
    """Tests this rank's part, and prints the averages over all ranks."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    with torch.no_grad():
        for images, classes in loader:
            if options.cuda:
                images, classes = images.cuda(), classes.cuda()
            output = model(images)
            loss += functional.cross_entropy(output, classes, reduction="sum").item()
            right += int((output.argmax(1) == classes).sum())
            count += len(classes)
    loss = _averaged(loss / count, "avg_loss")
    accuracy = _averaged(right / count, "avg_accuracy")
    if bps.rank() == 0:
        print(
            f"\nTest set: Average loss: {loss:.4f}, Accuracy: {100.0 * accuracy:.2f}%\n", flush=True
        )


def main() -> None:
    options = parse_options()
    bps.init()
    torch.manual_seed(options.seed)
    if options.cuda:
        torch.cuda.set_device(bps.local_rank())
    training, held_out = load_digits(options.data_dir)
    place = {"num_replicas": bps.size(), "rank": bps.rank()}
    sampler: DistributedSampler = DistributedSampler(training, **place)
    loader: DataLoader = DataLoader(training, options.batch_size, sampler=sampler)
    test_sampler: DistributedSampler = DistributedSampler(held_out, **place)
    test_loader: DataLoader = DataLoader(held_out, options.test_batch_size, sampler=test_sampler)

    model = Net()
    if options.cuda:
        model.cuda()
    sgd = torch.optim.SGD(model.parameters(), lr=options.lr * bps.size(), momentum=options.momentum)
    optimizer = bps.DistributedOptimizer(
        sgd,
        named_parameters=model.named_parameters(),
        compression=bps.Compression.fp16 if options.fp16_pushpull else bps.Compression.none,
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    for epoch in range(1, options.epochs + 1):
        sampler.set_epoch(epoch)
        train(options, model, optimizer, loader, epoch)
        test(options, model, test_loader)


if __name__ == "__main__":
    main()
