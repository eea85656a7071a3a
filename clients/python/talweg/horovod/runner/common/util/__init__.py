# SPDX-License-Identifier: Apache-2.0
"""What little there is of the insides of Horovod's launcher."""
