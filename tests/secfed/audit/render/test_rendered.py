"""The report in a browser and on paper: nothing is cut off, and it looks as it should."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from secfed.audit.privacy.evidence import Report
from secfed.audit.render.html import to_html
from tests.dp.report_case import honest_report, hostile_report, keep

WINDOW = (1200, 900)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return honest_report(tmp_path_factory.mktemp("case"))


@pytest.fixture(scope="module")
def page(made: Report) -> str:
    return to_html(made)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return hostile_report(tmp_path_factory.mktemp("hostile"))


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


def measured(folder: Path, page: str, width: int) -> dict[str, int]:
    """Sizes of the rendered page, by a script that only this copy of it has and may run."""
    script = (
        "<script>addEventListener('load', () => { const r = document.documentElement; const o = {};"
        "o.scroll = r.scrollWidth; o.client = r.clientWidth; o.height = r.scrollHeight;"
        "o.wide = [...document.querySelectorAll('body *')].filter(e => !e.closest('svg') && "
        "!e.closest('.scroll') && e.getBoundingClientRect().right > r.clientWidth + 1).length;"
        "o.tables = [...document.querySelectorAll('.scroll')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1).length;"
        "const p = document.createElement('p'); p.id = 'measured'; p.textContent = JSON.stringify(o);"
        "document.body.append(p); });</script></body>"
    )
    probe = folder / "probe.html"
    probe.write_text(
        re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page).replace("</body>", script),
        encoding="utf-8",
    )
    dom = chromium(folder, probe, f"--window-size={width},900", "--virtual-time-budget=2000", "--dump-dom")
    found = re.search(r'<p id="measured">(.*?)</p>', dom)
    assert found, dom[-500:]
    sizes: dict[str, int] = json.loads(unescape(found[1]))
    return sizes


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium program on this machine")
class TestRendered:
    @pytest.mark.parametrize("width", [1200, 700])
    def test_nothing_is_wider_than_the_window(self, tmp_path: Path, page: str, width: int) -> None:
        sizes = measured(tmp_path, page, width)
        assert sizes["scroll"] <= sizes["client"]
        assert sizes["wide"] == 0
        assert sizes["height"] > 3000
        if width >= 1200:
            assert sizes["tables"] == 0  # no table needs to be scrolled on a usual screen

    def test_long_hostile_names_do_not_break_the_layout(self, tmp_path: Path, hostile: Report) -> None:
        sizes = measured(tmp_path, to_html(hostile), WINDOW[0])
        assert sizes["scroll"] <= sizes["client"]
        assert sizes["wide"] == 0

    def test_the_picture_shows_the_report(self, tmp_path: Path, page: str) -> None:
        from PIL import Image

        path = tmp_path / "report.html"
        path.write_text(page, encoding="utf-8")
        height = measured(tmp_path, page, WINDOW[0])["height"]
        picture = tmp_path / "report.png"
        chromium(tmp_path, path, f"--window-size={WINDOW[0]},{height}", f"--screenshot={picture}")
        keep(picture.read_bytes(), "audit-report.png")
        keep(page.encode(), "audit-report.html")
        with Image.open(picture) as opened:
            pixels = np.asarray(opened.convert("RGB")).astype(np.int16)
        assert pixels.shape[1] == WINDOW[0]
        # Every tenth of the page has something on it, and the limit lines and verdict have their colours.
        for part in np.array_split(pixels, 10):
            assert part.std() > 5
        for colour in ((0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2), (0x8A, 0x5A, 0x00), (0xA3, 0x20, 0x14)):
            assert (
                np.abs(pixels[::2, ::2] - np.array(colour, dtype=np.int16)).sum(axis=2) < 12
            ).sum() > 50, colour

    def test_it_prints(self, tmp_path: Path, page: str) -> None:
        pypdf = pytest.importorskip("pypdf", reason="pypdf is not installed")
        path, out = tmp_path / "report.html", tmp_path / "printed.pdf"
        path.write_text(page, encoding="utf-8")
        chromium(tmp_path, path, f"--print-to-pdf={out}", "--no-pdf-header-footer")
        opened = pypdf.PdfReader(io.BytesIO(out.read_bytes()))
        assert 6 <= len(opened.pages) <= 30


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium program on this machine")
def test_four_cards_stand_two_by_two(tmp_path: Path, made: Report) -> None:
    for count, expected in ((3, [3]), (4, [2, 2])):
        ledgers = (*made.ledgers, made.ledgers[0])[:count]
        page = to_html(replace(made, ledgers=ledgers)).replace(
            "</body>",
            "<script>const c = [...document.querySelectorAll('.card')];"
            "const t = c.map(e => e.getBoundingClientRect().top);"
            "const p = document.createElement('p'); p.id = 'tops'; p.textContent = JSON.stringify(t);"
            "document.body.append(p);</script></body>",
        )
        page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
        probe = tmp_path / f"{count}.html"
        probe.write_text(page, encoding="utf-8")
        dom = chromium(tmp_path, probe, f"--window-size={WINDOW[0]},900", "--dump-dom")
        found = re.search(r'<p id="tops">(.*?)</p>', dom)
        assert found, dom[-500:]
        tops = json.loads(found[1])
        assert [tops.count(top) for top in dict.fromkeys(tops)] == expected
