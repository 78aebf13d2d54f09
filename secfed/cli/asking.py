"""Questions to the person at the terminal; where there is none, an error that says which option answers."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from secfed.errors import ConfigError


def someone_is_there() -> bool:
    """Whether questions can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, *, yes: bool, option: str) -> None:
    """Ask before something that rests on a person's judgement, unless ``option`` answered ``yes`` already.

    ``ConfigError``: nobody is there to answer. typer.Exit: the answer was no.
    """
    if yes:
        return
    if not someone_is_there():
        raise ConfigError("nobody is there to confirm this", remedy=f"compare, then repeat it with {option}")
    if not typer.confirm(question, err=True):
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(1)


def passphrase_of(*keys: Path) -> str | None:
    """The passphrase of these key files; None if they need none. ConfigError if nothing gives it."""
    from secfed.deploy.pki.key_files import passphrase_for

    def ask(question: str) -> str:
        return str(typer.prompt(question, hide_input=True, err=True))

    return passphrase_for(*keys, ask=ask if someone_is_there() else None)


def new_passphrase(wanted: bool) -> str | None:
    """The passphrase for new keys: from ``SECFED_PASSPHRASE_FILE``, or typed twice if ``wanted``.

    ``ConfigError``: too short, or one is wanted and nobody is there to type it.
    """
    from secfed.deploy.pki.key_files import PASSPHRASE_FILE, check_passphrase, passphrase_from_file

    passphrase = passphrase_from_file()
    if passphrase is None and wanted:
        if not someone_is_there():
            message = "--passphrase: nobody is there to type it"
            raise ConfigError(message, remedy=f"set {PASSPHRASE_FILE} to a file that holds it")
        passphrase = str(typer.prompt("New passphrase", hide_input=True, confirmation_prompt=True, err=True))
    return None if passphrase is None else check_passphrase(passphrase)
