"""An audit computes every epsilon again: fast, and with the digits that the accountants give."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from secfed.audit.privacy.recompute import Recomputer
from secfed.crypto.identity import Identity
from secfed.dp.accounting.accountants import _cached_epsilon
from secfed.dp.accounting.budget import Budget, Spent, standing
from secfed.dp.accounting.events import Event, Gaussian, PoissonSampledGaussian
from secfed.dp.accounting.interface import Pld, Prv, Rdp, statement
from secfed.dp.accounting.pld import ExpectingPld
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import Ledger, verify
from tests.dp.report_case import ADD, DATASET, LEDGER, report, studies


class TestRecomputing:
    EVENTS = (
        (PoissonSampledGaussian(ADD, 0.1, 2.0, 7),),
        (PoissonSampledGaussian(ADD, 0.1, 2.0, 7), PoissonSampledGaussian(ADD, 0.2, 3.0, 4)),
        (PoissonSampledGaussian(Adjacency.REPLACE_RECORD, 0.1, 4.0, 9),),
        (PoissonSampledGaussian(ADD, 0.1, 0.0, 1),),
        (Gaussian(ADD, 5.0, 3),),
        (Gaussian(ADD, 5.0, 3), PoissonSampledGaussian(ADD, 0.1, 2.0, 7)),
        (PoissonSampledGaussian(ADD, 1.0, 5.0, 3),),
    )

    @pytest.mark.parametrize("events", EVENTS)
    def test_an_expected_epsilon_is_accepted_only_if_it_is_right(self, events: tuple[Event, ...]) -> None:
        right = statement(events, 1e-5, Pld(1e-3)).epsilon
        for claimed in (right, right * (1 - 1e-6), right * (1 + 1e-6), right / 2, 0.0, math.nan):
            _cached_epsilon.cache_clear()
            assert statement(events, 1e-5, ExpectingPld(1e-3, expected=claimed)).epsilon == right

    def test_a_composition_that_grows_and_shrinks_stays_right(self) -> None:
        checker = ExpectingPld(1e-3)
        for first, second in ((5, 0), (10, 0), (10, 4), (15, 4), (3, 4), (10, 8), (15, 8)):
            events = [PoissonSampledGaussian(ADD, 0.1, 2.0, first)]
            events += [PoissonSampledGaussian(ADD, 0.2, 3.0, second)] if second else []
            right = statement(events, 1e-5, Pld(1e-3)).epsilon
            checker = replace(checker, expected=right)
            assert statement(events, 1e-5, checker).epsilon == right
            composed = checker.grown(events).get_epsilon_for_delta(1e-5)
            assert composed == pytest.approx(right, rel=1e-7)

    @pytest.mark.parametrize("accountant", [Pld(1e-3), Prv(), Rdp()])
    def test_a_ledger_is_recomputed_with_the_accountant_it_names(
        self, tmp_path: Path, accountant: Pld | Prv | Rdp
    ) -> None:
        identity = Identity.from_seed("st-anna", bytes([3]) * 32)
        budgets = (Budget(50.0, 1e-5), Budget(None, 1e-6))
        ledger = Ledger(tmp_path / LEDGER, identity, DATASET, budgets, accountant=accountant)
        ledger.spend(PoissonSampledGaussian(ADD, 0.1, 2.0, 5), study="s", round_number=1, exchange="update")
        entries = verify((tmp_path / LEDGER).read_bytes().splitlines(keepends=True), identity.public_bytes)
        recomputer = Recomputer()
        standings, wrong = recomputer.ledger(entries)
        assert wrong == []
        assert recomputer.checked == 2
        assert list(standings.values()) == [ledger.standings()]

    def test_equal_ledgers_are_computed_once(self, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[object] = []
        honest = Rdp._epsilon
        _cached_epsilon.cache_clear()
        monkeypatch.setattr(
            Rdp,
            "_epsilon",
            lambda self, events, delta: asked.append((tuple(events), delta)) or honest(self, events, delta),
        )
        report(*studies(written))
        assert len(asked) == len(set(asked)) > 10

    def test_a_grid_that_only_costs_memory_is_not_followed(self) -> None:
        wanted = {"accountant": "pld", "version": "dp-accounting 0, interval 1e-12"}
        (chosen,) = Recomputer().accountants_of(wanted)
        assert chosen.version == Pld().version

    def test_a_period_is_counted_as_of_each_entry(self, tmp_path: Path) -> None:
        spent = [Spent(Gaussian(ADD, 5.0, 1), 0), Spent(Gaussian(ADD, 5.0, 1), 20 * 86_400)]
        found = standing(Budget(9.0, 1e-5, period_days=10), spent, 20 * 86_400, Rdp())
        assert found.epsilon == statement([Gaussian(ADD, 5.0, 1)], 1e-5, Rdp()).epsilon
        assert replace(found, spent=None).epsilon == 0.0
