"""A report as PDF from the HTML page itself, where a Chromium is installed; pdf.py draws one without it.

Security: the page comes from a file of our own, forbids itself to load or run anything, and the browser gets
a profile of its own that is removed again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LIMIT_S: Final = 120.0


def browser() -> str | None:
    """The Chromium of this machine; None if there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


def print_to_pdf(page: str, program: str) -> bytes | None:
    """The page as PDF; None where the browser does not print it."""
    with tempfile.TemporaryDirectory(prefix="secfed-print-") as name:
        folder = Path(name)
        source, target = folder / "report.html", folder / "report.pdf"
        source.write_text(page, encoding="utf-8")
        command = [
            program,
            "--headless",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # Chromium refuses to start as root with it
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            f"--user-data-dir={folder / 'profile'}",
            "--no-pdf-header-footer",
            f"--print-to-pdf={target}",
            source.as_uri(),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_LIMIT_S)
            return target.read_bytes()
        except (OSError, subprocess.SubprocessError):
            return None
