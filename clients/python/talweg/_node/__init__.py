# SPDX-License-Identifier: Apache-2.0
"""Starts what a node's ranks need if torchrun, mpirun or srun has started them without an agent.

launchers.py reads which launcher it was, meeting.py lets the nodes find each other, and join.py
starts a keeper, one process a node, which runs the daemons and ends with the ranks. The keeper
imports this package alone, without NumPy and the rest of Talweg: the modules that it uses (keeper,
daemons, handshake, places) import only each other, relatively. docs/launching.md says how it works.

hosts.py starts ranks on other hosts by ssh, for launchers of Talweg's own; ranks.py does so there.
hosts_run.py is `talweg run` on hosts that come and go, with the states of host_set.py and the lists
of listed_hosts.py.
"""
