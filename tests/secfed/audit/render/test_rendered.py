"""The report in a browser and on paper: nothing is cut off, and it looks as it should."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pypdf
import pytest
from PIL import Image

from secfed.audit.privacy.evidence import Report
from secfed.audit.render.html import to_html
from tests.dp.report_case import keep

WINDOW = (1200, 900)


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def chromium(folder: Path, path: Path, *options: str) -> str:
    """Run headless Chromium on a page, without any network chatter of its own."""
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
        *options,
        path.as_uri(),
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def measured(folder: Path, page: str, width: int) -> dict[str, Any]:
    """Sizes of the rendered page, by a script that only this copy of it has and may run."""
    script = (
        "<script>addEventListener('load', () => { const r = document.documentElement; const o = {};"
        "o.scroll = r.scrollWidth; o.client = r.clientWidth; o.height = r.scrollHeight;"
        "o.wide = [...document.querySelectorAll('body *')].filter(e => !e.closest('svg') && "
        "!e.closest('.scroll') && e.getBoundingClientRect().right > r.clientWidth + 1).length;"
        "o.tables = [...document.querySelectorAll('.scroll')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1).length;"
        "o.cards = [...document.querySelectorAll('.card')].map(e => e.getBoundingClientRect().top);"
        "const p = document.createElement('p'); p.id = 'measured'; p.textContent = JSON.stringify(o);"
        "document.body.append(p); });</script></body>"
    )
    probe = folder / "probe.html"
    probe.write_text(
        re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page).replace("</body>", script),
        encoding="utf-8",
    )
    dom = chromium(folder, probe, f"--window-size={width},900", "--virtual-time-budget=2000", "--dump-dom")
    match = re.search(r'<p id="measured">(.*?)</p>', dom)
    assert match, dom[-500:]
    sizes: dict[str, Any] = json.loads(unescape(match[1]))
    return sizes


def rows_of(sizes: dict[str, Any]) -> list[int]:
    """How many cards stand side by side, row by row."""
    return list(Counter(sizes["cards"]).values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For pages and the browser's profile, which takes a while to make."""
    return tmp_path_factory.mktemp("browser")


@pytest.fixture(scope="module")
def sizes(folder: Path, page: str) -> dict[str, Any]:
    return measured(folder, page, WINDOW[0])


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium program on this machine")
class TestRendered:
    def test_nothing_is_wider_than_the_window(self, sizes: dict[str, Any]) -> None:
        assert sizes["scroll"] <= sizes["client"]
        assert sizes["wide"] == 0
        assert sizes["height"] > 3000
        assert sizes["tables"] == 0  # no table needs to be scrolled on a usual screen
        assert rows_of(sizes) == [2]  # two hospitals are one card

    def test_nothing_is_wider_than_a_narrow_window_and_four_cards_stand_two_by_two(
        self, folder: Path, made: Report
    ) -> None:
        names = ("a", "b", "c", "d")
        different = [replace(made.ledgers[0], site=name, dataset=name) for name in names]
        four = replace(made, ledgers=tuple(different))
        sizes = measured(folder, to_html(four), 700)
        assert sizes["scroll"] <= sizes["client"]
        assert sizes["wide"] == 0
        assert rows_of(sizes) == [2, 2]

    def test_long_hostile_names_do_not_break_the_layout(self, folder: Path, hostile: Report) -> None:
        sizes = measured(folder, to_html(hostile), WINDOW[0])
        assert sizes["scroll"] <= sizes["client"]
        assert sizes["wide"] == 0

    def test_the_picture_shows_the_report(self, folder: Path, page: str) -> None:
        path = folder / "report.html"
        path.write_text(page, encoding="utf-8")
        picture = folder / "report.png"
        chromium(folder, path, "--window-size=1200,6500", f"--screenshot={picture}")  # to the first figure
        keep(picture.read_bytes(), "audit-report.png")
        keep(page.encode(), "audit-report.html")
        with Image.open(picture) as opened:
            assert opened.width == WINDOW[0]
            pixels = np.asarray(opened.convert("RGB"))[::2, ::2].astype(np.int16)
        # Every tenth of it has something on it, and the limit lines and verdict have their colours.
        for part in np.array_split(pixels[::2, ::2], 10):
            assert part.std() > 5
        for colour in ((0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2), (0x8A, 0x5A, 0x00)):
            distance = np.abs(pixels - np.array(colour, dtype=np.int16)).sum(axis=2)
            assert (distance < 12).sum() > 50, colour

    def test_it_prints(self, folder: Path, page: str) -> None:
        path, out = folder / "report.html", folder / "printed.pdf"
        path.write_text(page, encoding="utf-8")
        chromium(folder, path, f"--print-to-pdf={out}", "--no-pdf-header-footer")
        opened = pypdf.PdfReader(io.BytesIO(out.read_bytes()))
        assert 4 <= len(opened.pages) <= 12  # three studies; of one, at most six
