# SPDX-License-Identifier: Apache-2.0
"""What talweg.byteps and talweg.horovod share: another system's surface over Talweg's one client.

environment holds tables of environment variables, timeline writes files of traces, and alias gives
a package a second name. mxnet, tensorflow and torch hold each framework's share.
"""
