# SPDX-License-Identifier: Apache-2.0
"""The common part of the other systems' modules for TensorFlow and Keras."""
