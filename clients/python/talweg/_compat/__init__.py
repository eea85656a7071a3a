# SPDX-License-Identifier: Apache-2.0
"""What talweg.byteps and talweg.horovod share: another system's surface over Talweg's one client.

environment: tables of variables. session: handles and names of one life of a client. timeline:
Chrome traces. alias: a package under another name. torch: rounds, compression and optimizers.
"""
