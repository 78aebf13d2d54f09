"""All documents: links resolve, versions agree, and nothing private or tied to one machine is named."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

from secfed.wire.stages import STAGES
from tests.layout import slug

ROOT: Final = Path(__file__).parents[1]
NOT_OURS: Final = {"wheelhouse", "runs", "build", "_build", "dist", "node_modules", "shared"}


def _documents() -> list[Path]:
    found = []
    for path in sorted(ROOT.rglob("*.md")):
        inside = path.relative_to(ROOT).parts[:-1]
        if not any(part.startswith(".") or part in NOT_OURS for part in inside):
            found.append(path)
    return found


def _prose(path: Path) -> str:
    """A document without its code blocks."""
    return re.sub(r"(?ms)^```.*?^```", "", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", _documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_resolve(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(path)):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{target} does not exist"
        assert found.is_relative_to(ROOT), f"{target} leads out of the repository"
        if anchor:
            headings = re.findall(r"(?m)^#+ (.+)$", _prose(found))
            assert anchor in {slug(heading) for heading in headings}, f"{target}: no such heading"


PRIVATE: Final = (
    r"(?<![\w.])/(?:work|tmp|root|home)/",
    r"\bpypi\.(?:org|python\.org)",
    r"pythonhosted\.org",
    r"download\.pytorch\.org",
    r"\b(?:npmjs|anaconda)\.(?:org|com)\b",
    r"\bcrates\.io\b",
    r"https?://[^\s)]*/simple\b",
    r"--(?:extra-)?index-url\b",
)


@pytest.mark.parametrize("path", _documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_document_names_a_private_path_or_a_package_registry(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for pattern in PRIVATE:
        assert not re.search(pattern, text), f"matches {pattern}"


def test_the_version_is_the_same_in_all_places() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"(?m)^## \[(\d[^\]]*)\]", changes)
    coming = re.findall(r"(?m)^Will be (\d+\.\d+\.\d+)\b", changes)
    assert version in (released[:1] or coming)
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    supported = security[security.index("## Supported versions") :].split("\n## ")[0]
    assert version in supported
    assert ("not yet released" in supported) == (not released)


def test_the_documents_name_what_the_simulation_and_the_extras_offer() -> None:
    studies = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    assert all(f"`{stage}`" in studies for stage in STAGES)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for wanted in project["optional-dependencies"]["vision-language"]:
        assert re.split(r"[<>=]", wanted)[0] in studies


def test_a_stranger_reads_the_readme_to_its_end() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_study_file_of_the_guide_is_the_example() -> None:
    studies = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    shown = re.search(r"(?ms)^```toml\n(.*?)^```", studies)
    assert shown
    example = (ROOT / "examples" / "breast-cancer.toml").read_text(encoding="utf-8")
    assert tomllib.loads(shown[1]) == tomllib.loads(example)
