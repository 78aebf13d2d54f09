"""Who decided: the login that the kernel keeps, whatever account somebody has switched to."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from secfed.deploy.admission import persons


@pytest.mark.parametrize(
    ("login", "expected"),
    [
        ("0", pwd.getpwuid(0).pw_name),
        (str(2**32 - 1), pwd.getpwuid(os.getuid()).pw_name),  # nobody logged in: a service, a container
        (None, pwd.getpwuid(os.getuid()).pw_name),
        ("no number", pwd.getpwuid(os.getuid()).pw_name),
        ("3999999999", "uid 3999999999"),  # an account that this machine does not name
    ],
)
def test_the_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: str | None, expected: str
) -> None:
    file = tmp_path / "loginuid"
    if login is not None:
        file.write_text(login)
    monkeypatch.setattr(persons, "_LOGIN", file)
    assert persons.account() == expected
