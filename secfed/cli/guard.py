"""What happens when a command fails: one line, a remedy and an exit code; never a traceback by itself.

A SecfedError has its own; a lack of memory exits with 74; of anything unexpected only the class is shown,
because its text could quote a patient's value (70). ``--debug`` adds frames and classes, never their text.
"""

from __future__ import annotations

import errno
from typing import Any

import click
import typer
from rich.text import Text
from typer.core import TyperGroup

from secfed.cli.site_folders import located_here
from secfed.errors import EXTRAS, ConfigError, SecfedError, missing_package
from secfed.terminal.consoles import plain_text, stderr, system_error, where

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_INTERNAL = 70  # EX_SOFTWARE of sysexits.h
EXIT_SYSTEM = 74  # EX_IOERR of sysexits.h


class GuardedGroup(TyperGroup):
    """The top-level command group; every command below it runs inside :meth:`invoke`."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and translate what it raises into ``typer.Exit`` with a code of the table above."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort) as error:
            message = getattr(error, "message", "")
            if not (isinstance(error, click.BadParameter) and message.endswith("is not readable.")):
                raise  # wrong usage and deliberate exits are typer's to report
            remedy = "use the account that it belongs to, as in: sudo -u secfed-agent secfed ..."
            failure: Exception = ConfigError(message, remedy=remedy)
        except KeyboardInterrupt:
            _say("Interrupted.", "", None)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader of our output went away: click ends quietly
            failure = error
        except Exception as error:  # noqa: BLE001 - the outermost boundary: a user gets a line, not a traceback
            failure = error
        message, remedy, code = _explained(failure, ctx)
        _say(message, remedy, failure if ctx.params.get("debug") else None)
        raise typer.Exit(code) from None


def _explained(error: Exception, ctx: click.Context) -> tuple[str, str, int]:
    """Message, remedy and exit code."""
    if isinstance(error, SecfedError):
        return error.message, located_here(error.remedy, ctx), error.exit_code
    if isinstance(error, ModuleNotFoundError):
        package = str(error.name).partition(".")[0]
        if any(package in packages for packages in EXTRAS.values()):
            missing = missing_package(f"secfed {ctx.invoked_subcommand}", package)
            return missing.message, missing.remedy, missing.exit_code
    if isinstance(error, OSError):
        return *system_error(error), EXIT_SYSTEM
    if _out_of_memory(error):
        remedy = "use a smaller model or algorithm.batch_size, or a larger machine"
        return "Not enough memory, on this machine or its GPU.", remedy, EXIT_SYSTEM
    remedy = "run it again as: secfed --debug ..., and report what it prints; it prints no values"
    return f"Internal error ({type(error).__name__}).", remedy, EXIT_INTERNAL


def _out_of_memory(error: Exception) -> bool:
    """NumPy raises MemoryError; PyTorch a class of its own on a GPU, else a RuntimeError with such a text."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "you tried to allocate" in str(error)


def _say(message: str, remedy: str, shown: Exception | None) -> None:
    console = stderr()
    if shown is not None:
        console.print(where(shown), markup=False, highlight=False, soft_wrap=True)
    for head, style, text in (("Error:", "bold red", message.rstrip(".") + "."), ("Remedy:", "bold", remedy)):
        if text:
            # Messages can carry names from files; a control character must not reach the terminal.
            lines = "\n".join(map(plain_text, text.split("\n")))
            console.print(Text.assemble((head, style), f" {lines}"), soft_wrap=True)
