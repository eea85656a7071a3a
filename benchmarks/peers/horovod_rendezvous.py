# SPDX-License-Identifier: Apache-2.0
"""The part of horovodrun by which Horovod's ranks find each other over Gloo.

    horovod_rendezvous.py FILE HOST...

There is one rank on each host. This program writes its port to FILE, and serves until it is ended.
"""

from __future__ import annotations

import os
import signal
import sys

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer


def main() -> int:
    path, hosts = sys.argv[1], sys.argv[2:]
    server = RendezvousServer()
    port = server.start()
    server.init(
        get_host_assignments(parse_hosts(",".join(f"{host}:1" for host in hosts)), len(hosts))
    )
    with open(f"{path}.partial", "w") as file:
        file.write(str(port))
    os.replace(f"{path}.partial", path)
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    return 0


if __name__ == "__main__":
    sys.exit(main())
