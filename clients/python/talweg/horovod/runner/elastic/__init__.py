# SPDX-License-Identifier: Apache-2.0
"""What programs use of horovod.runner.elastic. `talweg run` carries elastic jobs out."""
