# SPDX-License-Identifier: Apache-2.0
"""What the modules of other systems for TensorFlow and Keras share."""
