# SPDX-License-Identifier: Apache-2.0
"""One module a scenario; each has `TITLE` and `run(context)`."""
