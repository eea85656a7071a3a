# SPDX-License-Identifier: Apache-2.0
"""One rank of compression_test.py. It trains with gradients that are compressed.

With an argument it makes that one of DISAGREEMENTS, and ends with an error.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import talweg
import talweg.torch as tw
import torch
from cases import run_cases
from digits_of_scikit import digits
from talweg.compression import Compression, Dithering, OneBit, RandomK, TopK
from torch import nn
from torch_models import same_everywhere

_STEPS = 150
_BATCH = 16
_HELD_OUT = 360
# One of the test digits is 0.0028.
_ACCURACY_TOLERANCE = 0.03
_LOSS_TOLERANCE = 0.15

_COMPRESSORS: tuple[Compression, ...] = (
    TopK(0.05, bytes_min=0),
    RandomK(0.1, seed=1, bytes_min=0),
    OneBit(bytes_min=0),
    Dithering(8, bytes_min=0),
    Dithering(4, levels="natural", error_feedback=True, bytes_min=0),
)


def _learned(name: str, overlaps: bool = False, **keywords: Any) -> tuple[float, float]:
    """Returns the accuracy and the loss of digits that no rank has seen."""
    torch.manual_seed(3)
    images, classes = digits()
    images = images.flatten(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    if overlaps:
        keywords["overlap_forward"] = model
    optimizer = tw.DistributedOptimizer(inner, model.named_parameters(), name=name, **keywords)
    own = torch.arange(_HELD_OUT + tw.rank(), len(classes), tw.size())
    generator = torch.Generator().manual_seed(tw.rank())
    for _ in range(_STEPS):
        chosen = own[torch.randint(len(own), (_BATCH,), generator=generator)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[chosen]), classes[chosen]).backward()
        optimizer.step()
    if overlaps:
        optimizer.synchronize_parameters()
    same_everywhere(model, name)
    with torch.no_grad():
        guessed = model(images[:_HELD_OUT])
        loss = nn.functional.cross_entropy(guessed, classes[:_HELD_OUT])
        right = (guessed.argmax(1) == classes[:_HELD_OUT]).double().mean()
    return float(right), float(loss)


def learning() -> None:
    accuracy, loss = _learned("plain")
    assert accuracy > 0.9, accuracy
    for number, compression in enumerate(_COMPRESSORS):
        found, found_loss = _learned(f"compressed.{number}", compression=compression)
        text = (
            f"{compression}: accuracy {found:.3f}, not {accuracy:.3f}; {found_loss:.3f}, {loss:.3f}"
        )
        assert found > accuracy - _ACCURACY_TOLERANCE, text
        assert found_loss < loss + _LOSS_TOLERANCE, text


def _model() -> nn.Linear:
    model = nn.Linear(40, 5, bias=False)
    nn.init.zeros_(model.weight)
    return model


def _gradient(rank: int, step: int) -> np.ndarray:
    return np.random.default_rng(100 * step + rank).standard_normal((5, 40)).astype(np.float32)


def _top(p: np.ndarray, k: int) -> np.ndarray:
    sent = np.zeros_like(p)
    places = np.argsort(-np.abs(p), axis=None, kind="stable")[:k]
    sent.flat[places] = p.flat[places]
    return sent


def _averaged(model: nn.Linear, optimizer: Any, gradient: np.ndarray) -> np.ndarray:
    optimizer.zero_grad()
    (model.weight * torch.from_numpy(gradient)).sum().backward()
    assert model.weight.grad is not None
    return model.weight.grad.numpy().copy()


def sums_of_what_ranks_send() -> None:
    """The average is that of plain tensors, to the last bit."""
    model = _model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    compression = TopK(7, bytes_min=0)
    optimizer = tw.DistributedOptimizer(
        inner, model.named_parameters(), name="sums", compression=compression
    )
    error: np.ndarray = np.zeros((5, 40), np.float32)
    for step in range(5):
        gradient = _gradient(tw.rank(), step)
        p = gradient + error
        sent = _top(p, 7)
        error = p - sent
        average = _averaged(model, optimizer, gradient)
        wanted = talweg.push_pull(sent, name="sums.wanted")
        assert average.tobytes() == wanted.tobytes(), step
        assert np.count_nonzero(average) >= 7
        optimizer.step()


def places_that_all_ranks_keep() -> None:
    model = _model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = tw.DistributedOptimizer(
        inner, model.named_parameters(), name="places", compression=RandomK(9, bytes_min=0)
    )
    seen = set()
    for step in range(4):
        average = _averaged(model, optimizer, _gradient(tw.rank(), step))
        assert np.count_nonzero(average) == 9, np.count_nonzero(average)
        seen.add(tuple(np.flatnonzero(average)))
        optimizer.step()
    assert len(seen) == 4, seen


def ranks_without_a_gradient() -> None:
    """They send zeros, and keep what they remember."""
    model = _model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = tw.DistributedOptimizer(
        inner, model.named_parameters(), name="without", compression=TopK(1, bytes_min=0)
    )
    gradient: np.ndarray = np.zeros((5, 40), np.float32)
    gradient[0, 0], gradient[1, 1] = 1, 2
    assert _averaged(model, optimizer, gradient)[1, 1] == 2
    optimizer.step()
    optimizer.zero_grad()
    if tw.rank() == 0:
        (model.weight * torch.zeros(5, 40)).sum().backward()
    else:
        optimizer.synchronize()
    assert model.weight.grad is not None
    assert model.weight.grad[0, 0].item() == 1 / tw.size(), model.weight.grad[0, 0]
    optimizer.step()
    average = _averaged(model, optimizer, np.zeros((5, 40), np.float32))
    assert average[0, 0].item() == np.float32(tw.size() - 1) / np.float32(tw.size()), average[0, 0]


def other_ways_of_an_optimizer() -> None:
    compression = OneBit(bytes_min=0)
    accuracy, _ = _learned("patient", compression=compression, patience=20.0)
    assert accuracy > 0.85, accuracy
    accuracy, _ = _learned("overlapping", overlaps=True, compression=compression)
    assert accuracy > 0.85, accuracy


def passes_of_a_step() -> None:
    """What a step's passes have added up is compressed once."""
    model = _model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = tw.DistributedOptimizer(
        inner,
        model.named_parameters(),
        name="passes",
        backward_passes_per_step=2,
        compression=TopK(1, bytes_min=0),
    )
    first: np.ndarray = np.zeros((5, 40), np.float32)
    second: np.ndarray = np.zeros((5, 40), np.float32)
    first[0, 0], first[1, 1], second[1, 1] = 3, 2, 2
    optimizer.zero_grad()
    for gradient in (first, second):
        (model.weight * torch.from_numpy(gradient)).sum().backward()
    optimizer.step()
    weight = model.weight.detach().numpy()
    assert np.flatnonzero(weight).tolist() == [41], weight  # 4 is sent, and 3 remembered.


def ranks_that_end_early() -> None:
    """Within join(), ranks that are done give zeros, and the others' averages go on."""
    model = _model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = tw.DistributedOptimizer(
        inner, model.named_parameters(), name="early", compression=RandomK(9, bytes_min=0)
    )
    with optimizer.join():
        for step in range(1 + tw.rank()):
            average = _averaged(model, optimizer, _gradient(tw.rank(), step))
            assert np.count_nonzero(average) == 9, np.count_nonzero(average)
            optimizer.step()
    same_everywhere(model, "early")


def another_compressor_later() -> None:
    model = _model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    turns = ((None, 200), (TopK(7, bytes_min=0), 7), (OneBit(bytes_min=0), 200), (None, 200))
    for compression, expected in turns:
        optimizer = tw.DistributedOptimizer(
            inner, model.named_parameters(), name="later", compression=compression
        )
        average = _averaged(model, optimizer, _gradient(0, 0))
        assert np.count_nonzero(average) == expected, compression
        optimizer.step()


# What the last rank has, and what the others have.
DISAGREEMENTS: tuple[tuple[Compression | None, Compression | None], ...] = (
    (TopK(7, bytes_min=0), None),
    (TopK(7, bytes_min=0), RandomK(7, bytes_min=0)),
    (OneBit(bytes_min=0), OneBit(False, bytes_min=0)),
)


def disagree(number: int) -> None:
    last, others = DISAGREEMENTS[number]
    model = _model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = tw.DistributedOptimizer(
        inner,
        model.named_parameters(),
        compression=last if tw.rank() == tw.size() - 1 else others,
    )
    _averaged(model, optimizer, _gradient(0, 0))


def main() -> int:
    tw.init()
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        disagree(int(sys.argv[1]))
        return 0
    run_cases(
        sums_of_what_ranks_send,
        places_that_all_ranks_keep,
        ranks_without_a_gradient,
        learning,
        other_ways_of_an_optimizer,
        passes_of_a_step,
        ranks_that_end_early,
        another_compressor_later,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
