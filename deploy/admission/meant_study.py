"""Which study a person means: its name, its digest or the beginning of it, or an id that secfed printed."""

from __future__ import annotations

import re
from typing import Final

from secfed.errors import ConfigError

LEAST_PREFIX: Final = 8  # hexadecimal digits that stand for a digest
DIGEST_DIGITS: Final = 64
_ID: Final = re.compile(r"(?P<name>.+)-(?P<digits>[0-9a-f]{16,64})")  # of a study, or of its folder
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")  # as study.py, which is too heavy to import here


def name_and_digits(text: str) -> tuple[str, str]:
    """Name and digits of what stands for a digest wherever it is shown; one or both may be empty."""
    found = _ID.fullmatch(text)
    if found is not None:
        return found["name"], found["digits"]
    digits = "".join(text.split()).lower()  # shown in groups, too
    return "", digits if re.fullmatch(r"[0-9a-f]+", digits) else ""


def check_name(text: str) -> None:
    """Refuse what cannot be the name of a study: it would be noted, and refuse nothing."""
    if len(name_and_digits(text)[1]) >= LEAST_PREFIX:
        raise ConfigError(
            f"no study with the digest {text!r} has asked",
            remedy=f"give all {DIGEST_DIGITS} digits of a digest that has not asked yet",
        )
    if not _NAME.fullmatch(text):
        raise ConfigError(
            f"{text!r} is neither the name of a study nor a digest",
            remedy="names have 1 to 63 of a-z, 0-9 and -; patterns belong into policy.toml",
        )
