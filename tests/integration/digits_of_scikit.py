# SPDX-License-Identifier: Apache-2.0
"""Real data for programs of tests that train with torch: scikit-learn's handwritten digits."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns f32[1797, 1, 8, 8] from 0 to 1 and i64[1797], in an order that is always the same."""
    found = load_digits()
    order = np.random.RandomState(7).permutation(len(found.target))
    images = torch.tensor(found.images[order] / 16.0, dtype=torch.float32).unsqueeze(1)
    return images, torch.tensor(found.target[order], dtype=torch.int64)
