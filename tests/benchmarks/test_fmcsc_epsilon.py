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
    _row("paper-laplace epsilon=inf", 4, 0.5, 0.25),
    _row("site-dp epsilon=inf", 4, 0.9, 0.9, 0.9),
    _row("site-dp epsilon=10", 3, 0.125, 0.5, 0.5),
]
EARLIER = [
    {**place, "score": "acc", "seeds": "1 2", "mean": "60.0", "deviation": "10.0"}
    for place in ({key: row[key] for key in ("panel", "variant")} for row in (ROWS[0], ROWS[2]))
]
NO_NOISE, WITH = ("bdgp", "paper-laplace", "inf"), ("bdgp", "site-dp", "10")


@pytest.fixture
def scores() -> made.Scores:
    return made.measured(ROWS, EARLIER)


def test_kept_and_earlier_seeds_are_pooled(scores):
    one = scores[NO_NOISE, "acc"]
    assert one.seeds == {1, 2, 4}
    # 50, and two numbers of mean 60 and deviation 10
    assert (one.found.seeds, one.found.mean) == (3, pytest.approx(170 / 3))
    assert one.found.deviation == pytest.approx(
        (((50 - 170 / 3) ** 2 + 100 + 2 * (60 - 170 / 3) ** 2) / 2) ** 0.5
    )
    assert scores[("bdgp", "site-dp", "inf"), "acc"].text() == "90.0"
    assert (NO_NOISE, "ari") not in scores  # the run has none
    assert ("bdgp", "canonical", "inf") not in {point for point, _ in scores}


def test_an_earlier_number_stands_aside_where_a_run_of_its_seeds_is_kept():
    kept = {**ROWS[2], "seed": "2"}
    assert made.measured([kept], EARLIER)[WITH, "acc"].text() == "12.5"


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
    assert lines[2] == ["seeds", "", "", "1, 2, 4", "", "4; 1, 2, 3"]
    assert ["", "10", "", "", "", "44.2 ± 28.3"] in lines
    assert "50.0 / 50.0" in second
    assert " c " not in second


def test_the_figure_is_drawn_from_whatever_is_there(scores, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(made, "FIGURE", tmp_path / "figure.svg")
    made.draw(scores)
    assert (tmp_path / "figure.svg").exists()


def test_the_page_has_what_is_kept_of_the_study():
    found = made.measured(*(made.kept_runs.kept(name) for name in (made.NAME, f"{made.NAME}-earlier")))
    assert len(found) > len(made.PANELS) * len(made.CURVES) * (len(made.EPSILONS) - 1)
    shown = [cell for row in sections.rows(made.PAGE, made.TITLE)[1:] for cell in row[2:]]
    of_page = [
        one.text() if (one := found.get(((panel, variant, epsilon), "acc"))) else ""
        for panel in made.PANELS
        for epsilon in made.EPSILONS
        for variant in made.CURVES
    ]
    assert shown == of_page
