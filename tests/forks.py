"""Python processes that are forks of one which has imported everything: tests start many, and torch is slow.

They are real processes, children of whoever starts them: own memory, own environment, killed and waited for
as any other. What they do not show is that their command starts by itself; a few tests start it without.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import inspect
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
IMPORTED: Final = (
    "dp_accounting.pld",
    "dp_accounting.rdp",
    "numpy",
    "sklearn.datasets",
    "sklearn.model_selection",
    "secfed.cli.agent",
    "secfed.cli.aggregate",
    "secfed.deploy.agent.agent",
    "secfed.deploy.agent.training_child",
    "secfed.deploy.transport.grpc.server",
    "secfed.dp.training.ghost",  # Opacus, and with it SymPy, which takes two seconds
    "secfed.dp.training.local_privacy",
)
_PLAIN: Final = ("preexec_fn", "executable", "uid", "gid", "gids", "process_group")  # at their defaults
# What `Popen` is made of here is not public: other versions and systems start every process as ever.
_KNOWN: Final = sys.platform == "linux" and sys.version_info[:2] == (3, 11)
_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h
_MOST_BYTES: Final = 1 << 18
_MOST_DESCRIPTORS: Final = 16

_Popen: Final = subprocess.Popen  # whatever stands there in a test
_libc = ctypes.CDLL(None)
_lock = threading.Lock()
_forking: socket.socket | None = None  # the process that forks, of this process


class Fork(_Popen):
    """``Popen``, but ``python -m MODULE`` and ``python -c CODE`` are forked; other commands run as ever."""

    def _execute_child(self, *values: Any) -> None:
        asked = inspect.signature(super()._execute_child).bind(*values).arguments
        command = asked["args"]
        plain = _KNOWN and not asked["shell"] and all(asked[name] in (None, -1) for name in _PLAIN)
        if not plain or isinstance(command, str) or not _is_python(command):
            super()._execute_child(*values)
            return
        standard = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        descriptors = [number if fd == -1 else fd for number, fd in enumerate(standard)]
        request = {
            "argv": [os.fspath(part) for part in command[1:] if part != "-P"],
            "env": dict(os.environ if asked["env"] is None else asked["env"]),
            "cwd": os.fspath(asked["cwd"] or os.getcwd()),
            "descriptors": [0, 1, 2, *asked["pass_fds"]],
            "session": bool(asked["start_new_session"]),
        }
        passed = [*descriptors, *asked["pass_fds"]]
        with _lock:
            connection = _started()
            _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # the fork becomes a child of this process
            try:
                socket.send_fds(connection, [json.dumps(request).encode()], passed)
                self.pid = int(connection.recv(32))
            finally:
                _libc.prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in ends))  # type: ignore[attr-defined]


def _is_python(command: Any) -> bool:
    """Whether it is ``python [-P] -m MODULE`` or ``python [-P] -c CODE``."""
    options = [part for part in command[1:3] if part != "-P"]
    return command[0] == sys.executable and options[:1] in (["-m"], ["-c"])


def _started() -> socket.socket:
    global _forking
    if _forking is None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
            process = _Popen(
                [sys.executable, "-m", "tests.forks", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env={**os.environ, **threads, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        atexit.register(_end, process, ours)
        _forking = ours
    return _forking


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()  # it ends when nobody can ask any more
    process.wait()


def _fork_for(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for everyone who asks; returns in a new process what it is to do, and None when nobody asks."""
    while True:
        message, received, *_ = socket.recv_fds(connection, _MOST_BYTES, _MOST_DESCRIPTORS)
        if not message:
            return None
        request: dict[str, Any] = json.loads(message)
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                os.close(writer)
                connection.close()
                _take(received, request["descriptors"])
                return request
            os.write(writer, str(pid).encode())
            os._exit(0)
        os.waitpid(between, 0)  # from here on the new process is a child of the one who asks
        connection.send(os.read(reader, 32))
        for descriptor in (reader, writer, *received):
            os.close(descriptor)


def _take(received: list[int], wanted: list[int]) -> None:
    above = max([*received, *wanted]) + 1  # out of each other's way
    for offset, descriptor in enumerate(received):
        os.dup2(descriptor, above + offset)
        os.close(descriptor)
    for offset, descriptor in enumerate(wanted):
        os.dup2(above + offset, descriptor)
        os.close(above + offset)


def _become(request: dict[str, Any]) -> None:
    """Run what was asked for, as ``python`` does."""
    import numpy as np

    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    np.random.seed()
    option, what, *arguments = request["argv"]
    sys.argv = [option, *arguments]
    status: Any = 0
    try:
        if option == "-m":
            sys.modules.pop(what, None)
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            _plant()
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        status = end.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    _leave(status)


def _leave(status: int) -> None:
    """End as Python does, but give no memory back one object at a time: that copied all that was imported."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _plant() -> None:
    """Let this process start its own by forks, too."""
    global _forking
    from secfed.deploy.agent import training

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        request = _fork_for(theirs)
        if request is None:
            os._exit(0)
        _become(request)
    theirs.close()
    _forking = ours
    training.subprocess.Popen = Fork  # type: ignore[misc]


def main() -> None:
    """The process that forks."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # nobody looks for garbage there, or every process would copy it
    request = _fork_for(connection)
    if request is not None:
        _become(request)


if __name__ == "__main__":
    main()
