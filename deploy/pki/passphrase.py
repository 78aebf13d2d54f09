"""Where a passphrase comes from: a file named in the environment, or the person at the terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from secfed.deploy.pki import key_files
from secfed.errors import ConfigError
from secfed.storage import private_files

PASSPHRASE_FILE: Final = "SECFED_PASSPHRASE_FILE"  # noqa: S105 - the name of a variable


def from_file(environment: Mapping[str, str] = os.environ) -> str | None:
    """The passphrase in the file that ``SECFED_PASSPHRASE_FILE`` names, or None if it names none.

    One newline at the end is not part of it. A service gets the file from its supervisor (systemd:
    ``LoadCredentialEncrypted=``).
    """
    name = environment.get(PASSPHRASE_FILE)
    if not name:
        return None
    path = Path(name)
    # What systemd hands to a service is private to it, whatever an access list makes of its mode bits.
    if path.parent != Path(environment.get("CREDENTIALS_DIRECTORY", "/nonexistent")):
        private_files.check_private(path)
    try:
        text = private_files.read(path, "a passphrase").decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text", remedy="write the passphrase as one line") from None
    if not text:
        raise ConfigError(f"{path}: holds no passphrase", remedy="write the passphrase as one line")
    return text


def for_keys(
    *paths: Path, ask: Callable[[str], str] | None = None, environment: Mapping[str, str] = os.environ
) -> str | None:
    """The passphrase of existing keys, or None if none needs one; ``ask`` asks a person."""
    encrypted = [path for path in paths if key_files.is_encrypted(path)]
    if not encrypted:
        return None
    if (found := from_file(environment)) is not None:
        return found
    if ask is None:
        raise ConfigError(
            f"{encrypted[0]}: needs a passphrase", remedy=f"set {PASSPHRASE_FILE} to the file that holds it"
        )
    return ask(f"Passphrase of {encrypted[0].parent}")
