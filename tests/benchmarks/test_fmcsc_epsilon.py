from __future__ import annotations

from pathlib import Path

import fmcsc_epsilon as made
import pytest
import sections


def _row(
    variant: str, seed: int, acc: float, nmi: float | None = None, ari: float | None = None
) -> dict[str, str]:
    scores = {"acc": acc, "nmi": nmi, "ari": ari}
    told = {name: "" if value is None else str(value) for name, value in scores.items()}
    return {"panel": "bdgp", "variant": variant, "seed": str(seed), **told}


ROWS = [
    _row("paper-laplace epsilon=inf", 1, 0.5, 0.25),
    _row("paper-laplace epsilon=inf", 4, 0.75, 0.75),
    _row("site-dp epsilon=inf", 4, 0.9, 0.9, 0.9),
    _row("site-dp epsilon=10", 1, 0.25, 0.5, 0.5),
    _row("site-dp epsilon=10", 3, 0.125, 0.5, 0.5),
]
NO_NOISE = ("bdgp", "paper-laplace", "inf")


@pytest.fixture
def scores() -> made.Scores:
    return made.measured(ROWS)


def test_a_point_is_over_the_seeds_that_have_the_score(scores):
    one = scores[NO_NOISE, "acc"]
    assert one.seeds == {1, 4}
    assert (one.found.seeds, one.found.mean) == (2, 62.5)
    assert one.found.deviation == pytest.approx(12.5 * 2**0.5)
    assert scores[("bdgp", "site-dp", "inf"), "acc"].text() == "90.0"
    assert (NO_NOISE, "ari") not in scores  # the runs have none
    assert ("bdgp", "canonical", "inf") not in {point for point, _ in scores}


def test_the_tables_say_what_was_measured_and_the_rest_of_the_page_stays(scores, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(
        f"| a |\n\n## {made.TITLE}\n\nBefore.\n\n| b |\n| --- |\n\nMid.\n\n| c |\n\nAfter.\n\n| d |\n"
    )
    monkeypatch.setattr(made, "PAGE", page)
    made.write(made.tables(scores))
    text = page.read_text()
    assert text.startswith("| a |\n")
    assert text.endswith("\n\nAfter.\n\n| d |\n")
    first, second = text.split("Before.\n\n")[1].split("\n\nMid.\n\n")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in first.splitlines()]
    assert lines[2] == ["seeds", "", "", "1, 4", "", "4; 1, 3"]
    assert ["", "10", "", "", "", "18.8 ± 8.8"] in lines
    assert "50.0 / 50.0" in second
    assert " c " not in second


def test_the_figure_is_drawn_from_whatever_is_there(scores, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(made, "FIGURE", tmp_path / "figure.svg")
    made.draw(scores)
    assert (tmp_path / "figure.svg").exists()


def test_the_page_has_what_is_kept_of_the_study():
    found = made.measured(made.kept_runs.kept(made.NAME))
    assert len(found) > len(made.PANELS) * len(made.CURVES) * (len(made.EPSILONS) - 1)
    shown = [cell for row in sections.rows(made.PAGE, made.TITLE)[1:] for cell in row[2:]]
    of_page = [
        one.text() if (one := found.get(((panel, variant, epsilon), "acc"))) else ""
        for panel in made.PANELS
        for epsilon in made.EPSILONS
        for variant in made.CURVES
    ]
    assert shown == of_page
