# SPDX-License-Identifier: Apache-2.0
"""Tests that the models' files, formulas and published counts agree."""

from __future__ import annotations

import math
import unittest

from harness import models

# The counts of torchvision's resnet50 and vgg16 and of transformers' bert-large-uncased.
_PARAMETERS = {"resnet50": 25_557_032, "vgg16": 138_357_544, "bert_large": 335_141_888}
_TENSORS = {"resnet50": 161, "vgg16": 32, "bert_large": 391}


class ModelsTest(unittest.TestCase):
    def test_counts_are_the_published_ones(self) -> None:
        for name, count in _PARAMETERS.items():
            tensors = models.read(name)
            self.assertEqual(sum(math.prod(shape) for _, shape in tensors), count, name)
            self.assertEqual(len(tensors), _TENSORS[name])
            self.assertEqual(len({tensor for tensor, _ in tensors}), len(tensors))

    def test_files_are_what_the_formulas_say(self) -> None:
        for name in models.FORMULAS:
            self.assertEqual((models.DIRECTORY / f"{name}.tsv").read_text(), models.text(name))

    def test_every_tensor_has_a_layer_in_the_profile(self) -> None:
        path = models.DIRECTORY / "vgg16_profile.tsv"
        layers = models.read_profile(path)
        names = {name.rpartition(".")[0] for name, _ in models.read("vgg16")}
        self.assertEqual({name for name, _, _ in layers}, names)
        for _, forward_s, backward_s in layers:
            self.assertGreater(min(forward_s, backward_s), 0)
        head = path.read_text().splitlines()[0]
        for wanted in ("VGG-16", "batch", "thread of"):
            self.assertIn(wanted, head)

    def test_gradients_come_last_layer_first(self) -> None:
        gradients = models.backward_bytes(models.read("vgg16"))
        self.assertEqual(gradients[:2], (4 * 1000, 4 * 1000 * 4096))
        self.assertEqual(gradients[-1], 4 * 64 * 3 * 9)
        self.assertEqual(sum(gradients), 4 * _PARAMETERS["vgg16"])


if __name__ == "__main__":
    unittest.main()
