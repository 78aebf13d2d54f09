"""A run in a kernel of Jupyter: one display that changes, however many rounds there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

RUN = """
from secfed import Study, simulate
report = simulate(Study.of(
    study={"name": "in-a-notebook", "rounds": 60},
    algorithm={"name": "fedavg"},
    model={"name": "logistic-regression"},
    data={"name": "breast-cancer", "sites": 3},
    protection={"name": "plain"},
))
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The cells of a notebook that was executed."""
    pytest.importorskip("ipykernel")
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(text) for text in (RUN, "report.rounds[-1].round")]
    folder: Path = tmp_path_factory.mktemp("notebook")
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return book.cells


@pytest.mark.slow
def test_a_run_is_one_display(cells: Any) -> None:
    (shown,) = cells[0].outputs
    assert shown.output_type == "display_data"
    html = shown.data["text/html"]
    assert "in-a-notebook: 3 hospitals, 60 rounds" in html
    assert html.count("<tr>") == 12  # names, how many there were before, and the newest ten
    assert "<td>50 earlier</td>" in html
    assert "<td>60</td>" in html
    assert "The aggregator saw" in html
    assert cells[1].outputs[0].data["text/plain"] == "60"
