import json

import pytest
import vlp_similarity


def test_the_facts_of_curves():
    mean, apart = [0.0, 0.3, 0.5, 0.4, 0.45], [0.1, 0.05, 0.02, 0.01, 0.005]
    curves = {
        site: [one + side * other for one, other in zip(mean, apart, strict=True)]
        for site, side in {"ahead": 1, "behind": -1, "between": 0}.items()
    }
    found = vlp_similarity.facts(curves)
    assert found["similarity"] == pytest.approx(0.45)
    assert found["settled"] == 2 / 4
    assert found["falls"] == pytest.approx(0.1)
    assert found["catching_up"] == pytest.approx(-1.0)


def test_a_fall_before_most_is_reached_is_none_and_who_is_ahead_may_gain_more():
    found = vlp_similarity.facts({"a": [0.0, 0.4, 0.2, 1.0], "b": [0.1, 0.6, 0.5, 1.9]})
    assert (found["settled"], found["falls"]) == (1, 0)
    assert found["catching_up"] == pytest.approx(1.0)


def test_a_run_is_kept_drawn_and_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(vlp_similarity.kept_runs, "FOLDER", tmp_path / "kept")
    monkeypatch.setattr(vlp_similarity.sections, "FIGURES", tmp_path)
    (tmp_path / "kept").mkdir()
    measured = []

    def curves(run):
        measured.append(run.title)
        values = {"hospital-1": [0.0, 0.5], "hospital-2": [0.1, 0.4]}
        return {"study": run.text, "variant": run.at["variant"], "seed": run.seed, "curves": values}

    monkeypatch.setattr(vlp_similarity, "_measured", curves)
    monkeypatch.setattr("sys.argv", ["x", "--seeds", "1", "2", "--keep", "--runs", str(tmp_path / "runs")])
    assert vlp_similarity.main() == 0
    assert len(measured) == len(set(measured)) == 6
    drawn = (tmp_path / "vlp-similarity.svg").read_bytes()
    assert drawn.count(b'id="axes_') == 3
    assert vlp_similarity.main() == 0
    assert len(measured) == 6
    assert (tmp_path / "vlp-similarity.svg").read_bytes() == drawn
    rows = vlp_similarity.kept_runs.kept("vlp-similarity")
    assert len(rows) == 6
    assert rows[0]["similarity"] == "0.45"
    one = next((tmp_path / "runs").glob("feddra-seed-2.json"))
    assert json.loads(one.read_text())["seed"] == 2
