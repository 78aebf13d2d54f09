"""The documents as a site: `make docs`. Broken links, broken anchors and failing notebooks are errors."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from sphinx.application import Sphinx

from secfed import __version__
from secfed.study.option_tables import markdown_tables

DOCS: Final = Path(__file__).parent
# Documents that lie beside docs/: in the repository their pages are links, here the text itself.
BESIDE: Final = {
    DOCS.parent / "SECURITY.md": DOCS / "security.md",
    DOCS.parent / "CHANGELOG.md": DOCS / "changelog.md",
    DOCS.parent / "README.md": DOCS / "index.md",
}
OPTIONS: Final = re.compile(r"^<!-- options of every (\w+) -->$", re.MULTILINE)
LINK: Final = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")

project = "secfed"
release = version = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"secfed {__version__}"
html_copy_source = False

myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_show_tb = True

suppress_warnings = ["misc.highlighting_failure"]  # diagrams in Mermaid are shown as their text

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"


def site_text(app: Sphinx, name: str, source: list[str]) -> None:
    """Links to files that are not part of the site become their text: its reader may have no repository."""
    page = Path(app.env.doc2path(name))
    home = page
    if page.suffix != ".md":
        return
    for path, stub in BESIDE.items():
        if page == stub and page.name != "index.md":
            source[0], home = path.read_text(encoding="utf-8"), path

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match["text"], match["target"], match["anchor"] or ""
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        file = (home.parent / target).resolve()
        file = BESIDE.get(file, file)
        if not file.is_relative_to(DOCS) or file.is_dir():
            return text
        return f"[{text}]({os.path.relpath(file, page.parent)}{anchor})"

    source[0] = OPTIONS.sub(lambda match: markdown_tables(match[1]), LINK.sub(link, source[0]))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", site_text)
