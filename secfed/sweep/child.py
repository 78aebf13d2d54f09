"""One run of a sweep, in a process of its own: ``python -m secfed.sweep.child``.

The folder ``NAME.part`` holds the run's ``study.toml``; when the run is over it is renamed to ``NAME``. When
the sweep that started this process dies, however it dies, this process and its workers end at once: a run
that nobody waits for must not write into a folder that a second sweep has taken over.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import sys
import threading
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from secfed import __version__
from secfed.errors import SecfedError
from secfed.sweep.store import LOG_FILE, STUDY_FILE

if TYPE_CHECKING:
    from secfed.study.study import Study

EXIT_INTERNAL: Final = 70


def carry_out(study: Study, part: Path, *, log: TextIO, inside: str = "") -> None:
    """Run a study into its folder ``NAME.part``, as ``secfed simulate --out`` does, and rename the folder.

    With ``inside`` it works in a folder of this name in there, and that is what is renamed.
    """
    from rich.console import Console

    from secfed.runs.figures import write_figures
    from secfed.runs.run_folder import FIGURES_FOLDER
    from secfed.simulation.simulate import simulate
    from secfed.storage.atomic import PART, write_atomic
    from secfed.sweep.store import FINISHED_FILE
    from secfed.terminal.live_rounds import LineObserver

    observer = LineObserver(Console(file=log, highlight=False, force_terminal=False))
    clock = time.perf_counter()
    folder = part / inside
    report = simulate(study, out=folder, drops=[], observer=observer)
    seconds = time.perf_counter() - clock
    write_figures(report, folder / FIGURES_FOLDER)
    digest = study.digest(operational=True).hex()
    about = {"study_digest": digest, "seconds": round(seconds, 3), "secfed": __version__}
    write_atomic(folder / FINISHED_FILE, f"{json.dumps(about, indent=2)}\n".encode())
    for name in (STUDY_FILE, LOG_FILE) if inside else ():
        (part / name).rename(folder / name)
    folder.rename(part.with_name(part.name.removesuffix(PART)))
    if inside:
        shutil.rmtree(part, ignore_errors=True)


def note_failure(part: Path, error: Exception, *, debug: bool) -> None:
    """Write down why a run failed: an expected error in full, of any other only its class.

    With ``debug`` also where in the code it arose.

    Security: the text of an unexpected error could quote a value of a record; it is written nowhere.
    """
    from secfed.storage.atomic import write_atomic
    from secfed.sweep.store import FAILURE_FILE
    from secfed.terminal.consoles import system_error, where

    if isinstance(error, SecfedError):
        message = str(error)
    elif isinstance(error, OSError):
        message = ". Remedy: ".join(system_error(error))
    else:
        message = (
            "unexpected; run it again as: secfed --debug sweep ..., and report what the run's "
            f"{FAILURE_FILE} then says; it holds no values"
        )
    failure = {"error": type(error).__name__, "message": message}
    if debug:
        failure["traceback"] = where(error)
    write_atomic(part / FAILURE_FILE, f"{json.dumps(failure, indent=2, ensure_ascii=False)}\n".encode())


def main() -> int:
    """Read the arguments, run, and turn the outcome into an exit code."""
    parser = argparse.ArgumentParser(prog="secfed.sweep.child")
    parser.add_argument("part", type=Path, help="folder of the run, ending in .part")
    parser.add_argument("--paths-from", type=Path, required=True, help="where relative paths start")
    parser.add_argument("--debug", action="store_true")
    arguments = parser.parse_args()
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    return _run(arguments.part, arguments.paths_from, arguments.debug, sys.stdout, "")


def run_alone(part: Path, paths_from: Path, debug: bool) -> int:
    """One run, on whatever machine this is; returns an exit code. What it prints goes to the run's log."""
    inside = f"work-{secrets.token_hex(8)}"
    (part / inside).mkdir()
    with (part / LOG_FILE).open("w", encoding="utf-8", buffering=1) as log, redirect_stdout(log):
        return _run(part, paths_from, debug, log, inside)


def _run(part: Path, paths_from: Path, debug: bool, log: TextIO, inside: str) -> int:
    try:
        import torch

        from secfed.config.plugins import allow_imports, own_errors_in_full
        from secfed.sweep.plan import read_study

        torch.set_num_threads(1)  # runs share the machine with other runs
        allow_imports(Path.cwd(), paths_from)
        with own_errors_in_full():
            study = read_study((part / STUDY_FILE).read_text(encoding="utf-8"), paths_from)
        carry_out(study, part, log=log, inside=inside)
    except Exception as error:  # noqa: BLE001 - the outermost boundary of this process
        try:
            if (part / inside).is_dir():  # else another run has taken the folder over
                note_failure(part, error, debug=debug)
        except Exception as other:  # noqa: BLE001 - Python would print both, with the text of the first
            name, why = type(error).__name__, type(other).__name__
            print(f"{name}; it could not be written down ({why}): check the space left", flush=True)
        return error.exit_code if isinstance(error, SecfedError) else EXIT_INTERNAL
    return 0


def _end_with_the_parent() -> None:
    """Standard input is a pipe that only the parent holds open: its end is the parent's end."""
    while os.read(sys.stdin.fileno(), 4096):  # unbuffered: a buffer's lock could stop the interpreter's end
        pass
    if os.getpgrp() == os.getpid():  # with the worker processes that an encrypted study starts
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
