# SPDX-License-Identifier: Apache-2.0
"""The part that BytePS's two packages for Keras share, private to BytePS. Talweg has another."""

raise ModuleNotFoundError(
    "byteps._keras is not offered by Talweg: use DistributedOptimizer and callbacks of "
    "byteps.keras or byteps.tensorflow.keras",
    name="byteps._keras",
)
