"""Reports, the folder a run writes, and its figures."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from secfed.algorithms.framework.base import PARAMETERS
from secfed.crypto.identity import Identity, Roster
from secfed.errors import ConfigError, RosterError
from secfed.records.chain_file import ChainFile
from secfed.records.roster_file import read_roster, write_roster
from secfed.runs.aggregator_saw import what_the_aggregator_saw
from secfed.runs.figures import write_figures
from secfed.runs.run_folder import (
    is_unfinished,
    prepare,
    run_json,
    site_folder,
    site_of,
    sites_folder,
    write_run,
)
from secfed.runs.run_report import (
    Comparison,
    ComparisonRow,
    PerSite,
    PrivacyReport,
    RoundReport,
    RunReport,
    SiteSpent,
    ordered_metrics,
)
from secfed.wire.layout import Field, Layout

SITES = ("cleveland", "hungarian", "switzerland", "va")


def a_round(number: int, **changes: object) -> RoundReport:
    report = RoundReport(
        round=number,
        survivors=SITES,
        asked=SITES,
        metrics={"roc_auc": 0.9 + number / 100, "loss": 1 / number},
        bytes_up_per_site=PerSite(1200.5, 1300),
        bytes_down_per_site=PerSite(2400.0, 2400),
        seconds={"train": 0.2, "protect": 0.03, "carry": 0.001, "server": 0.01},
    )
    return replace(report, **changes)  # type: ignore[arg-type]


def a_run(number_of_rounds: int = 3, **changes: object) -> RunReport:
    report = RunReport(
        study="heart",
        algorithm="fedavg",
        protection="masked",
        sites=SITES,
        rounds=tuple(a_round(number) for number in range(1, number_of_rounds + 1)),
        final={"roc_auc": 0.93, "loss": 0.3},
        saw="The aggregator saw: sums.",
        initial={"roc_auc": 0.5, "loss": 0.7},
    )
    return replace(report, **changes)  # type: ignore[arg-type]


class TestRunJson:
    def test_has_exactly_the_documented_keys_and_what_is_allowed_beside_them(self) -> None:
        content = a_run().to_json()
        assert {"study", "algorithm", "protection", "sites", "rounds", "final"} <= set(content)
        row = content["rounds"][0]
        promised = {"round", "metrics", "survivors", "bytes_up_per_site", "bytes_down_per_site", "seconds"}
        assert promised <= set(row)
        assert row["survivors"] == list(SITES)
        assert (row["bytes_up_per_site"], row["bytes_up_per_site_max"]) == (1200.5, 1300)
        assert set(row["seconds"]) == {"train", "protect", "carry", "server"}
        assert content["final"] == {"roc_auc": 0.93, "loss": 0.3}
        assert content["sites"] == list(SITES)

    def test_is_strict_json_even_when_a_metric_is_undefined_or_unknown(self) -> None:
        report = a_run(final={"roc_auc": math.nan, "loss": math.inf})
        content = json.loads(run_json(report), parse_constant=pytest.fail)
        assert content["final"] == {"roc_auc": None, "loss": None}
        assert a_round(1, metrics=None).to_json()["metrics"] == {}

    def test_numbers_that_need_single_sites_are_labelled_oracle(self) -> None:
        rows = (ComparisonRow("mean", {"roc_auc": 0.9}, {"roc_auc": 0.8}),)
        content = a_run(oracle={"worst": 0.7}, compare=Comparison("alone", rows)).to_json()
        assert content["oracle"] == {"worst": 0.7}
        row = {"where": "mean", "federated": {"roc_auc": 0.9}, "alone": {"roc_auc": 0.8}}
        assert content["compare"] == {"label": "oracle", "other": "alone", "rows": [row]}
        assert not {"oracle", "compare"} & set(a_run().to_json())

    def test_tells_dropouts_and_aborts(self) -> None:
        row = a_round(2, survivors=(), drops=(("va", "mask"),), aborted="too few", attempts=2).to_json()
        assert row["drops"] == [{"site": "va", "stage": "mask"}]
        assert (row["aborted"], row["attempts"]) == ("too few", 2)


def test_metrics_that_come_one_after_the_other_are_all_kept() -> None:
    first = a_round(1, metrics=None).completed({"acc": 0.5})
    second = first.completed({"acc": 0.5, "loss": 2.0}).completed({"nmi": 0.25})
    assert first.metrics == {"acc": 0.5}
    assert second == a_round(1, metrics={"acc": 0.5, "loss": 2.0, "nmi": 0.25})
    assert second.completed({"acc": 0.75}).metrics == {"acc": 0.75, "loss": 2.0, "nmi": 0.25}


def test_nothing_new_is_the_same_report() -> None:
    report = a_round(1, metrics={"acc": 0.5, "loss": math.nan})
    assert report.completed({"loss": float("nan"), "acc": 0.5}) is report
    without = a_round(1, metrics=None).completed({})
    assert without.metrics == {}
    assert without.completed({}) is without


def test_sizes_are_told_by_mean_and_largest() -> None:
    assert PerSite.over([1, 2, 6]) == PerSite(3.0, 6)
    assert PerSite.over([]) == PerSite(0.0, 0)


WORDS = {
    "update": PARAMETERS,
    "eval": "metrics over held-out records",
    "weight": "the weight",
    "loss": "the training loss",
}


def saw(protection: str = "masked", sums: int = 1, survivors: tuple[int, ...] = (4,), **sizes: int) -> str:
    """Of one exchange whose fields have these sizes; ``__`` stands for the stroke in a name."""
    fields = (Field(name.replace("__", "/"), (size,), 1.0, 64) for name, size in sizes.items())
    layouts = [Layout(tuple(fields), sites=4)]
    return what_the_aggregator_saw(protection, sums=sums, survivors=survivors, layouts=layouts, words=WORDS)


class TestWhatTheAggregatorSaw:
    def test_masked_names_sums_cohorts_and_sizes(self) -> None:
        assert saw(sums=12, survivors=(4, 3, 4), update__0=30, update__1=1, weight=1, loss=1) == (
            "The aggregator saw: 12 sums over 3-4 hospitals of 31 parameters + 2 other numbers each "
            "(1 for the weight, 1 for the training loss); no hospital's values."
        )

    def test_parameters_and_the_numbers_beside_them_are_told_apart(self) -> None:
        said = saw(update__a=31, own__thing=2, eval__scores=2048, eval__loss=1)
        assert "31 parameters + 2,051 other numbers each (2 for own, 2,049 for metrics over held-out" in said
        said = saw(totals=4000, counts=200)
        assert "of 4,200 numbers each (4,000 for totals, 200 for counts);" in said
        said = saw(update__a=31)
        assert said.startswith("The aggregator saw: 1 sum over 4 hospitals of 31 parameters each; no hosp")
        said = saw("encrypted", update=1, x=1)
        assert "of 1 parameter + 1 other number each (1 for x), as ciphertext" in said

    def test_what_the_algorithm_does_not_describe_is_told_by_its_name(self) -> None:
        assert "(1 for score)" in saw(update__a=31, score=1)

    def test_the_largest_contribution_of_all_exchanges_is_told(self) -> None:
        layouts = [Layout((Field("update/a", (size,), 1.0, 64),), sites=4) for size in (5, 7, 6)]
        said = what_the_aggregator_saw("masked", sums=1, survivors=[4], layouts=layouts, words=WORDS)
        assert "of 7 parameters each;" in said

    def test_each_protection_says_what_it_hides(self) -> None:
        said = saw("plain", update__a=31, weight=1)
        assert "every hospital's own values in 1 sum over 4 hospitals" in said
        assert "no hospital's values" not in said
        assert "as ciphertext; no totals" in saw("encrypted", sums=2, update__a=31, weight=1)
        nothing = "The aggregator saw: no sum; no hospital's values."
        assert saw(sums=0, survivors=(), update__a=31) == nothing


def test_metrics_that_people_look_at_come_first_and_losses_last() -> None:
    of_a_clustering = [{"pretrain_loss": 1.0}, {"full_loss": 2.0, "acc": 0.9, "nmi": 0.8}, None]
    assert ordered_metrics(of_a_clustering) == ["acc", "nmi", "pretrain_loss", "full_loss"]
    assert ordered_metrics([{"loss": 1.0, "brier": 0.1, "roc_auc": 0.9}]) == ["roc_auc", "loss", "brier"]


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


class TestFolder:
    def test_a_new_folder_is_made_with_its_parents_and_an_empty_one_is_taken(self, tmp_path: Path) -> None:
        for _ in range(2):
            prepare(tmp_path / "runs" / "one", overwrite=False)
            assert (tmp_path / "runs" / "one").is_dir()

    def test_a_full_folder_is_refused_with_the_remedy(self, tmp_path: Path) -> None:
        write(tmp_path, "run.json")
        with pytest.raises(ConfigError, match="not empty") as caught:
            prepare(tmp_path, overwrite=False)
        assert "--overwrite" in caught.value.remedy
        assert (tmp_path / "run.json").exists()
        with pytest.raises(ConfigError, match="not empty") as caught:  # by a command without that option
            prepare(tmp_path)
        assert "--overwrite" not in caught.value.remedy

    def test_overwrite_removes_what_a_run_writes_and_nothing_else(self, tmp_path: Path) -> None:
        write_figures(a_run(), tmp_path / "figures")
        figures = [f"figures/{path.name}" for path in (tmp_path / "figures").iterdir()]
        ours = ["run.json", "model.safetensors", "roster.json", "transcript.jsonl", "audit-report.html"]
        ours += ["sites/va/transcript.jsonl", *figures]
        theirs = ["notes.txt", "sites/va/patients.csv", "figures/mine.png", "data/model.safetensors"]
        theirs += ["figures/mine.svg", "audit-report.docx", "audit-report.x/notes.txt"]
        write(tmp_path, *ours, *theirs)
        bodies = ({"study": "one"}, {"simulated": True})
        lines = "".join(json.dumps({"body": body}) + "\n" for body in bodies)
        (tmp_path / "transcript.jsonl").write_text(lines)
        prepare(tmp_path, overwrite=True)
        assert not any((tmp_path / name).exists() for name in ours)
        assert all((tmp_path / name).exists() for name in theirs)

    def test_overwrite_leaves_a_run_whole_where_a_folder_is_in_the_way(self, tmp_path: Path) -> None:
        write(tmp_path, "run.json")
        (tmp_path / "audit-report.html").mkdir()
        with pytest.raises(ConfigError, match=r"audit-report\.html: is a folder") as caught:
            prepare(tmp_path, overwrite=True)
        assert caught.value.remedy
        assert (tmp_path / "run.json").exists()

    def test_overwrite_does_not_touch_a_folder_that_holds_no_run(self, tmp_path: Path) -> None:
        write(tmp_path, "figures/holiday.svg")
        with pytest.raises(ConfigError, match="holds none"):
            prepare(tmp_path, overwrite=True)
        assert (tmp_path / "figures" / "holiday.svg").exists()

    def test_a_run_that_was_killed_is_known_by_its_study_and_only_where_it_was_simulated(
        self, tmp_path: Path
    ) -> None:
        def written(**settings: object) -> bool:
            bodies = ({"study": "one"}, settings)
            lines = "".join(json.dumps({"body": body}) + "\n" for body in bodies)
            (tmp_path / "transcript.jsonl").write_text(lines)
            return is_unfinished(tmp_path, "one")

        assert not is_unfinished(tmp_path, "one")
        assert not written()  # of an aggregator
        assert written(simulated=True)
        assert not is_unfinished(tmp_path, "another")
        with ChainFile(tmp_path / "transcript.jsonl"):
            assert not is_unfinished(tmp_path, "one")
        write(tmp_path, "run.json")
        assert not is_unfinished(tmp_path, "one")

    def test_a_file_is_not_a_folder(self, tmp_path: Path) -> None:
        write(tmp_path, "file")
        with pytest.raises(ConfigError, match="not a folder"):
            prepare(tmp_path / "file", overwrite=True)
        with pytest.raises(ConfigError, match="Not a directory"):
            prepare(tmp_path / "file" / "below", overwrite=False)

    def test_run_json_is_written_whole(self, tmp_path: Path) -> None:
        write_run(a_run(), tmp_path)
        assert json.loads((tmp_path / "run.json").read_text()) == a_run().to_json()
        assert [path.name for path in tmp_path.iterdir()] == ["run.json"]

    @given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50))
    @example("..")
    @example("../../etc")
    @example("/etc")
    @example(".")
    @example("a\0b")
    @example("%2e%2e")
    def test_a_site_id_is_always_one_folder_below_sites(self, site: str) -> None:
        folder = site_folder(Path("/out"), site)
        assert folder.parent == sites_folder(Path("/out")) == Path("/out/sites")
        assert folder.name not in ("", ".", "..")
        assert folder.resolve().parent == Path("/out/sites").resolve()
        assert site_of(folder) == site


class TestRosterFile:
    ROSTER = Roster.of(Identity.generate("aggregator"), [Identity.generate(site) for site in SITES])

    def test_is_read_back_and_a_changed_member_is_found(self, tmp_path: Path) -> None:
        path = tmp_path / "roster.json"
        write_roster(path, self.ROSTER)
        assert read_roster(path) == self.ROSTER
        content = json.loads(path.read_text())
        assert set(content) == {"aggregator", "sites", "digest"}
        assert content["digest"] == self.ROSTER.digest.hex()
        content["sites"]["va"] = Identity.generate("va").public_bytes.hex()
        path.write_text(json.dumps(content))
        with pytest.raises(RosterError, match="digest"):
            read_roster(path)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "{}",
            '{"sites": {}, "aggregator": "", "digest": ""}',
            '{"sites": 3}',
            "\0",
            "[" * 10**5,
            "x" * (1 << 21),
        ],
        ids=["empty", "list", "object", "hollow", "number", "nul", "deep", "long"],
    )
    def test_anything_else_is_one_clear_error(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(ConfigError, match="No such file"):
            read_roster(tmp_path / "roster.json")
        (tmp_path / "roster.json").write_text(text)
        with pytest.raises(RosterError, match=r"roster\.json"):
            read_roster(tmp_path / "roster.json")


class TestFigures:
    def test_are_well_formed_svg_and_equal_for_equal_reports(self, tmp_path: Path) -> None:
        written = write_figures(a_run(), tmp_path / "a")
        assert [path.name for path in written] == ["metrics.svg", "participation.svg", "cost.svg"]
        first = [path.read_bytes() for path in written]
        assert all(ElementTree.fromstring(data).tag.endswith("svg") for data in first)
        assert not any(b"dc:date" in data for data in first)
        assert first == [path.read_bytes() for path in write_figures(a_run(), tmp_path / "b")]
        other = write_figures(a_run(rounds=(a_round(1), a_round(2, survivors=SITES[:3]))), tmp_path / "c")
        assert all(a != b.read_bytes() for a, b in zip(first, other, strict=True))

    def test_metrics_show_every_name_epsilon_and_chance(self, tmp_path: Path) -> None:
        names = {f"metric-{number}": 0.5 for number in range(4)}
        sites = (SiteSpent("va", 3.21, 4.0, 0),)
        privacy = PrivacyReport("record", "replace-record", 1e-5, "rdp", "x", sites, ())
        plain = write_figures(a_run(1, rounds=(a_round(1, metrics=names),)), tmp_path / "a")[0].read_text()
        report = a_run(1, rounds=(a_round(1, metrics=names),), privacy=privacy, chance={"metric-3": 0.125})
        drawn = write_figures(report, tmp_path / "b")[0].read_text()
        assert all(f"<!-- {name} -->" in plain for name in names)
        assert "<!-- round; epsilon 3.21 after the last -->" in drawn
        assert "epsilon" not in plain
        dashes = [text.count("stroke-dasharray") for text in (plain, drawn)]
        assert dashes[1] == dashes[0] + 1

    def test_waiting_for_hospitals_does_not_flatten_the_seconds(self, tmp_path: Path) -> None:
        waited = a_round(1, seconds={**a_round(1).seconds, "wait": 86_400.0})
        *_, first = write_figures(a_run(1), tmp_path / "a")
        *_, second = write_figures(a_run(1, rounds=(waited,)), tmp_path / "b")
        assert first.name == "cost.svg"
        assert first.read_bytes() == second.read_bytes()

    @pytest.mark.parametrize(
        "report",
        [
            a_run(0, initial=None, final={}),
            a_run(1),
            a_run(2, rounds=(a_round(1, metrics=None), a_round(2, metrics={"roc_auc": math.nan}))),
            a_run(1, rounds=(a_round(1, survivors=(), aborted="too few", drops=(("va", "mask"),)),)),
            a_run(1, rounds=(a_round(1, seconds={}, asked=(), survivors=(), drops=(("va", "result"),)),)),
            a_run(150),
            a_run(1, rounds=(a_round(1, metrics={f"metric-{n}": n / 10 for n in range(7)}),)),
        ],
        ids=["no rounds", "one", "undefined", "aborted", "nobody", "many", "many metrics"],
    )
    def test_every_kind_of_run_can_be_drawn_and_the_callers_style_stays(
        self, tmp_path: Path, report: RunReport
    ) -> None:
        before = dict(mpl.rcParams)
        write_figures(report, tmp_path)
        assert dict(mpl.rcParams) == before


def test_a_printed_report_is_short() -> None:
    assert str(a_run()).splitlines() == [
        "heart: fedavg, masked, 4 hospitals, 3 rounds",
        "Final model: roc_auc 0.9300, loss 0.3000",
        "The aggregator saw: sums.",
    ]
    assert "Final model: not measured" in repr(a_run(final={}))
