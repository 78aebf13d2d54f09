"""One line of `secfed site check`: what is so in words for a person, and what to do where it fails.

The exit code of a failure is that of the error which the agent would end or refuse with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from secfed.errors import ConfigError, SecfedError


@dataclass(frozen=True)
class PreflightCheck:
    """One question and its answer."""

    name: str
    ok: bool | None  # None if it was not looked at, because something before it failed
    detail: str
    remedy: str = ""  # with ``ok``, what to do before a date or before the next step
    exit_code: int = 0


def passed(name: str, detail: str, remedy: str = "") -> PreflightCheck:
    """All is well."""
    return PreflightCheck(name, True, detail, remedy)


def skipped(name: str, why: str) -> PreflightCheck:
    """Not looked at."""
    return PreflightCheck(name, None, f"not looked at: {why}")


def failed(name: str, detail: str, remedy: str, kind: type[SecfedError] = ConfigError) -> PreflightCheck:
    """Something is wrong."""
    return PreflightCheck(name, False, detail, remedy, kind.exit_code)


def failed_with(name: str, error: SecfedError) -> PreflightCheck:
    """What the agent would end or refuse with."""
    return PreflightCheck(name, False, error.message, error.remedy, error.exit_code)


def exit_code(checks: Iterable[PreflightCheck]) -> int:
    """0 if every check passed; else that of the first that did not, which is where to begin."""
    return next((check.exit_code or SecfedError.exit_code for check in checks if check.ok is False), 0)
