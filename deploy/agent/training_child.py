"""The process that trains: it has the data and the model; it has no key, no ledger and no connection.

Started by the agent as ``python -m secfed.deploy.agent.training_child``. A crash here, or the kernel's
out-of-memory killer, costs this site's share of the exchange and nothing else. Private work is paid for by
the agent: this process asks, and waits for the answer before it touches a record.
"""

from __future__ import annotations

import os
import sys
import traceback
from multiprocessing.connection import Connection

import torch

from secfed.deploy.enrolment.training_user import no_new_privileges
from secfed.engine.trainer import serve
from secfed.engine.wire import SOCKET_VARIABLE


def main() -> int:
    """Entry point of the process."""
    no_new_privileges()
    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "0") or torch.get_num_threads())))
    descriptor = int(os.environ.pop(SOCKET_VARIABLE))
    with Connection(descriptor) as connection:
        try:
            serve(connection)
        except Exception:  # noqa: BLE001 - the last resort of a process: what it leaves is its log
            traceback.print_exc()  # no local variables; the log stays at the site
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
