"""What a person sees: tables that fit the terminal, and progress that suits it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from secfed.errors import RoundAborted
from secfed.runs.run_report import CLIPPED, Comparison, ComparisonRow, Observer
from secfed.terminal.consoles import explain_errors, show_bytes, show_metric, show_number, show_seconds
from secfed.terminal.live_rounds import LineObserver, LiveObserver, watching
from secfed.terminal.tables import incidents, round_table, summary
from tests.secfed.run_case import SITES, a_round, a_run


class TestTables:
    @pytest.mark.parametrize("columns", [80, 120])
    @pytest.mark.parametrize("sites", [4, 100])
    def test_fit_the_terminal_and_keep_what_was_promised(self, columns: int, sites: int) -> None:
        names = tuple(f"hospital-{number}" for number in range(sites))
        rows = tuple(ComparisonRow(name, {"roc_auc": 0.9}, {"roc_auc": 0.8}) for name in (*names[:5], "mean"))
        report = a_run(sites=names, compare=Comparison("alone", rows), oracle={"worst_site": 0.8})
        report = replace(
            report, rounds=tuple(replace(r, asked=names, survivors=names[: sites - 1]) for r in report.rounds)
        )
        text = shown(summary(console := a_console(columns), report), console)
        assert max(map(len, text.splitlines())) <= columns
        header = "\n".join(text.splitlines()[:4])
        assert all(word in header for word in ("Round", "roc_auc", "Survivors", "Up/site"))
        assert all(phase in header for phase in ("train", "protect", "carry", "server"))
        assert f"{sites - 1}/{sites}" in text
        assert "…" not in text

    def test_a_very_narrow_terminal_cuts_nothing(self) -> None:
        report = a_run()
        text = shown(summary(console := a_console(40), report), console)
        assert max(map(len, text.splitlines())) <= 40
        assert "…" not in text
        first = report.rounds[0]
        for header, value in (("Round", "1"), ("roc_auc", show_number((first.metrics or {})["roc_auc"]))):
            assert f"{header} {value}" in " ".join(text.split())

    def test_a_wide_terminal_shows_every_metric(self) -> None:
        text = shown(round_table(console := a_console(120), a_run().rounds), console)
        assert all(name in text for name in ("roc_auc", "accuracy", "loss", "Down/site"))

    @pytest.mark.parametrize(
        ("changes", "told", "untold"),
        [
            (
                {},
                (
                    "Round 2: hospital-2 dropped at mask (not in the sum).",
                    "Round 3: hospital-3 dropped at unmask (in the sum).",
                    "Round 4 aborted: exchange 'fit': too few sites. hospital-1 dropped at share.",
                ),
                (),
            ),
            (
                {"closing_aborted": "too few sites."},
                (
                    "Final model: roc_auc 0.9800 (untrained 0.5000)\n"
                    "The closing evaluation was given up: too few",
                ),
                (),
            ),
            (
                {"compare": Comparison("alone", (ComparisonRow("mean", {"auc": 0.93}, {"auc": 0.81}),))},
                ("oracle", "0.9300", "0.8100"),
                (),
            ),
            (
                {"oracle": {CLIPPED: 0.031}},
                ("protection.bound clipped 3.1% of the numbers of one update: raise it, or lower",),
                (),
            ),
            ({"oracle": {CLIPPED: 0.999}}, ("protection.bound clipped 100% of",), ()),
            ({"oracle": {"worst_site": 0.5}}, (), ("clipped",)),
            ({"rounds": 0}, ("0 rounds",), ("Round",)),
        ],
        ids=["dropouts", "closing", "comparison", "clipped", "all-clipped", "not-clipped", "no-rounds"],
    )
    def test_the_summary_tells(
        self, changes: dict[str, Any], told: Sequence[str], untold: Sequence[str]
    ) -> None:
        text = shown(summary(console := a_console(120), a_run(**changes)), console)
        assert all(words in text for words in told)
        assert not any(words in text for words in untold)

    def test_a_final_model_that_was_not_measured_is_not_given_the_metrics_of_another(self) -> None:
        given_up = "round 6, exchange 'evaluate': too few sites."
        rounds = (*a_run().rounds[:4], replace(a_run().rounds[4], metrics=None))
        report = replace(a_run(final={}, closing_aborted=given_up), rounds=rounds)
        text = shown(summary(console := a_console(200), report), console)
        told = "The closing evaluation was given up: exchange 'evaluate': too few sites."
        assert f"Final model: not measured. {told}" in text
        assert "Measured last: the model after round 4: roc_auc 0.9200 (untrained 0.5000), accuracy" in text
        report = replace(a_run(final={}), rounds=(replace(rounds[4], round=1),))
        text = shown(summary(console, report), console)
        assert "Final model: not measured.\nMeasured last: the untrained model: roc_auc 0.5000\n" in text
        text = shown(summary(console, a_run(rounds=0, final={}, initial=None)), console)
        assert "Final model: no metrics\n" in text

    def test_why_a_site_gave_up_stands_beside_its_drop(self) -> None:
        why = {"drops": (("va", "train"),), "gave_up": "va gave up: NaN"}
        rounds = (a_round(1, **why), a_round(2, aborted="round 2, too few.", **why))
        assert incidents(rounds) == [
            "Round 1: va dropped at train (not in the sum). va gave up: NaN.",
            "Round 2 aborted: too few. va dropped at train. va gave up: NaN.",
        ]

    def test_a_long_run_shows_its_beginning_and_end(self) -> None:
        text = shown(round_table(console := a_console(120), a_run(rounds=500).rounds), console)
        numbers = [line.split()[0] for line in text.splitlines()[2:]]
        assert (numbers[0], numbers[-1]) == ("1", "500")
        assert "⋮" in numbers
        assert len(numbers) == 61

    @pytest.mark.parametrize("columns", [80, 120])
    def test_waiting_for_hospitals_is_no_work_of_the_server(self, columns: int) -> None:
        seconds = {**a_round(1).seconds, "wait": 169.4}
        rounds = (a_round(1, seconds=seconds), a_round(2, seconds={**seconds, "wait": 0.0}))
        text = shown(round_table(console := a_console(columns), rounds), console)
        assert "wait  train  protect" in text
        assert [line.split()[-5:] for line in text.splitlines()[2:]] == [
            ["169", "0.210", "0.034", "0.002", "0.012"],
            ["0.000", "0.210", "0.034", "0.002", "0.012"],
        ]
        briefly = (a_round(1, seconds={**seconds, "wait": 0.02}),)
        text = shown(round_table(console := a_console(columns), briefly), console)
        assert "wait" not in text

    def test_numbers_are_short_and_honest(self) -> None:
        sizes = {0: "0 B", 999: "999 B", 1234: "1.2 kB", 999_949: "999.9 kB", 999_950: "1.0 MB"}
        sizes |= {40_000_000: "40.0 MB", 2_500_000_000_000: "2.5 TB"}
        assert {size: show_bytes(size) for size in sizes} == sizes
        numbers = {0.98765: "0.9877", None: "–", 123456.0: "1.23e+05", 0.00001234: "1.23e-05", 0.0: "0.0000"}
        assert {value: show_number(value) for value in numbers} == numbers
        assert show_number(float("nan")) == "–"
        seconds = {0.0021: "0.002", 9.9991: "9.999", 12.34: "12.3", 123.4: "123"}
        assert {value: show_seconds(value) for value in seconds} == seconds


class TestProgress:
    def test_a_terminal_gets_a_live_display(self) -> None:
        console = a_console(80, terminal=True)
        with watching(console, quiet=False) as observer:
            assert isinstance(observer, LiveObserver)
            follow(observer)
            text = shown(observer.render(), a_console(80))
        assert "breast-cancer" in text
        assert max(map(len, text.splitlines())) <= 80

    def test_anything_else_gets_plain_lines(self) -> None:
        console = a_console(40)
        with watching(console, quiet=False) as observer:
            assert isinstance(observer, LineObserver)
            follow(observer)
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert "round 4/5: aborted: exchange 'fit': too few sites" in lines
        assert len(lines) == 1 + 2 * 5

    def test_a_line_tells_the_work_and_the_waiting_apart(self) -> None:
        observer = LineObserver(console := a_console(120))
        observer.started("s", SITES, 2)
        observer.round_finished(a_round(1, metrics=None, seconds={**a_round(1).seconds, "wait": 169.4}))
        observer.round_finished(a_round(2, metrics=None))
        first, second = console.file.getvalue().splitlines()[1:]  # type: ignore[attr-defined]
        assert first.endswith("1.2 kB up per site, 0.258 s after waiting 169 s for hospitals")
        assert second.endswith("1.2 kB up per site, 0.258 s")

    def test_quiet_is_quiet(self) -> None:
        console = a_console(80)
        with watching(console, quiet=True) as observer:
            follow(observer)
        assert console.file.getvalue() == ""  # type: ignore[attr-defined]

    def test_the_live_display_ends_with_an_error_inside(self) -> None:
        console = a_console(80, terminal=True)
        with pytest.raises(RoundAborted), watching(console, quiet=False):
            raise RoundAborted("too few")
        assert console._live_stack == []

    def test_the_bar_stays_where_it_is_and_as_wide_as_it_is(self) -> None:
        console = a_console(80)
        observer = LiveObserver(console)
        observer.started("s", SITES, 12)
        seen = set()
        for number, stage in ((1, "train"), (9, "consistency"), (12, "mask"), (13, "unmask")):
            observer.stage(number, "update" * number, stage, 2, 4)
            line = next(
                line for line in shown(observer.render(), a_console(80)).splitlines() if "0:00:0" in line
            )
            seen.add(line.index("0:00:0"))
            assert len(line) <= 80
        assert len(seen) == 1

    def test_the_bar_never_moves_back(self) -> None:
        observer = LiveObserver(a_console(80))
        observer.started("s", SITES, 2)
        seen = []
        for number in (1, 2, 3):
            for exchange in ("fit", "evaluate"):
                for stage in ("train", "advertise", "mask", "unmask", "result"):
                    observer.stage(number, exchange, stage, 2, 4)
                    seen.append(observer._bar.tasks[0].completed)
        assert seen == sorted(seen)
        assert seen[-1] <= 3

    @pytest.mark.parametrize(
        ("stage", "told"),
        [
            ((3, "", "train", 2, 3), ("round 3/20", "waiting for 1 more hospital (2 of 3 answered)")),
            ((3, "fit", "train", 2, 3), ("fit train 2/3",)),
            ((21, "", "mask", 0, 4), ("closing evaluation",)),
        ],
    )
    def test_it_shows_what_happens_and_who_is_waited_for(self, stage: Any, told: Sequence[str]) -> None:
        observer = LiveObserver(a_console(80))
        observer.started("s", SITES, 20)
        observer.stage(*stage)
        text = shown(observer.render(), a_console(80))
        assert all(words in text for words in told)


def follow(observer: Observer) -> None:
    """A whole run, as the engine tells it."""
    report = a_run()
    observer.started(report.study, report.sites, len(report.rounds))
    for item in report.rounds:
        observer.stage(item.round, "fit", "train", 2, 4)
        observer.stage(item.round, "", "unheard-of", 0, 0)
        observer.round_finished(replace(item, metrics=None))
        observer.round_finished(item)
    observer.finished(report)


def a_console(columns: int, *, terminal: bool = False) -> Console:
    size: Any = {"width": columns, "height": 24}
    return Console(file=io.StringIO(), force_terminal=terminal, highlight=False, color_system=None, **size)


def shown(renderable: Any, console: Console) -> str:
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_a_noisy_metric_stands_with_its_error_or_is_withheld():
    known = {"accuracy": 0.84, "accuracy_error_95": 0.03}
    unknown = {"accuracy": float("nan"), "accuracy_error_95": 0.55}
    assert show_metric(known, "accuracy") == "0.8400 ± 0.0300"
    assert show_metric(unknown, "accuracy") == "withheld"
    assert show_metric({"accuracy": 0.84}, "accuracy") == "0.8400"
    assert "error above 0.1 (here 0.5500)" in explain_errors([known, unknown, None])
    assert explain_errors([{"accuracy": 0.84}, None]) == ""
