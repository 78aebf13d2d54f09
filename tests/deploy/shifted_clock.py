"""secfed with a clock that a test sets while it runs: ``python -m tests.deploy.shifted_clock COMMAND...``.

A file, named by the environment, holds how many seconds this process' clock is ahead of the machine's.
Whatever Python asks for the time gets it shifted: records, certificates, policies, logs. What C libraries ask
themselves (the handshake of TLS) keeps the machine's time; so do waits, which count monotonic seconds.
"""

from __future__ import annotations

import datetime as module
import os
import sys
import time
from types import ModuleType
from typing import Any, Final

VARIABLE: Final = "SECFED_TEST_CLOCK"

_machine_s = time.time
_Datetime: Final = module.datetime


def _now_s() -> float:
    with open(os.environ[VARIABLE], encoding="ascii") as file:
        return _machine_s() + float(file.read() or 0)


class _IsDatetime(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Datetime)


class _Shifted(_Datetime, metaclass=_IsDatetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return _Datetime.fromtimestamp(_now_s(), tz)


def main() -> None:
    """Shift the clock, then run the command line."""
    time.time = _now_s
    module.datetime = _Shifted  # type: ignore[misc]
    import grpc._channel
    import grpc.aio  # noqa: F401 - loaded, to be given its clock below

    from secfed.cli import main as run

    # gRPC's core reads the machine's clock, and is given deadlines in it.
    grpc_clock = ModuleType("time")
    vars(grpc_clock).update({**vars(time), "time": _machine_s})
    for name, loaded in list(sys.modules.items()):
        if name.startswith("grpc") and getattr(loaded, "time", None) is time:
            loaded.time = grpc_clock  # type: ignore[attr-defined]
    sys.argv[0] = "secfed"
    run()


if __name__ == "__main__":
    main()
