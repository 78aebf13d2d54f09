import fmcsc_epsilon as made
import pytest

AFTER = "\nAfter.\n\n| other |\n| --- |\n\n## More\n\n| own |\n"
OLD = dict.fromkeys(((panel, e) for panel in made.PANELS for e in made.EPSILONS), "50.0 ± 1.0")


@pytest.fixture
def page(tmp_path, monkeypatch):
    path = tmp_path / "page.md"
    path.write_text(f"# Page\n\n## {made.TITLE}\n\nBefore.\n\n| set |\n| --- |\n{AFTER}")
    monkeypatch.setattr(made, "PAGE", path)
    made.write({"site-dp": OLD}, {"site-dp": ["1", "2"]})
    return path


def results(folder, variant, seeds, points=tuple(OLD)):
    rows = [f"{variant},{p},{e},{seed},done,0.25" for p, e in points for seed in seeds]
    (folder / "results.csv").write_text("\n".join(["variant,panel,epsilon,seed,status,acc", *rows]) + "\n")


def test_the_table_says_what_was_measured_and_the_rest_of_the_page_stays(page):
    columns, seeds = made.on_page()
    assert columns["site-dp"] == OLD
    assert seeds == {"site-dp": ["1", "2"]}
    text = page.read_text()
    assert "Before.\n\n| set | epsilon |" in text
    assert text.endswith(AFTER)


def test_only_a_whole_sweep_becomes_a_column(tmp_path):
    results(tmp_path, "canonical", (1, 2, 3))
    found, seeds = made.measured(tmp_path)["canonical"]
    assert (set(found.values()), seeds) == ({"25.0 ± 0.0"}, ("1", "2", "3"))
    results(tmp_path, "canonical", (1, 2, 3), list(OLD)[1:])
    assert made.measured(tmp_path) == {}
    assert made.measured(tmp_path / "nowhere") == {}


def test_a_column_of_more_seeds_stays(page, tmp_path, monkeypatch):
    monkeypatch.setattr(made, "FIGURE", tmp_path / "figure.svg")
    monkeypatch.setattr("sys.argv", ["", str(tmp_path)])
    results(tmp_path, "site-dp", (1,))
    made.main()
    assert made.on_page()[0]["site-dp"] == OLD
    results(tmp_path, "site-dp", (1, 2))
    made.main()
    assert set(made.on_page()[0]["site-dp"].values()) == {"25.0 ± 0.0"}
    assert (tmp_path / "figure.svg").exists()
