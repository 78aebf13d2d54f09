"""``noise = "sum"`` in a whole study: who may use it, what it pays, and what arrives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import stats

from secfed.algorithms.framework.base import UnitBound
from secfed.config.cohort_rules import min_survivors
from secfed.crypto.attempt import SiteLimits
from secfed.dp.accounting.events import from_value
from secfed.dp.accounting.interface import statement
from secfed.errors import ConfigError
from secfed.pipeline.noised_algorithm import NoisedAlgorithm, with_privacy
from secfed.simulation import simulate
from secfed.simulation.dropouts import Dropout
from secfed.site.terms import Terms
from secfed.study.study import Study
from secfed.wire.layout import Exchange
from tests.secfed.pipeline.test_noised_algorithm import Constant, Server
from tests.secfed.privacy_case import SITES, run, study

RECORDS = 100.0


class Sums(Constant):
    """A sum over as many records as the bound says, each of norm 1 at most."""

    summed_units = ("record", "group")
    bound: UnitBound | None = UnitBound(1.0)

    def unit_bound(self, exchange: Exchange) -> UnitBound | None:
        assert exchange in self.exchanges(1)
        return self.bound

    def use_unit_sums(self, sums: Any) -> None:
        sums.plan(100)


def chosen(protection: str = "masked", privacy: str = "", **more: Any) -> Study:
    asked = study(protection=protection, privacy=f'noise = "sum"\n{privacy}', **more)
    return asked.replace("study.rounds", 1).replace("protection.colluders", 1)


def play(
    inner: Constant, asked: Study, monkeypatch: pytest.MonkeyPatch, *drops: str, out: Path | None = None
) -> np.ndarray:
    server = Server()
    inner.server = lambda: server  # type: ignore[method-assign]
    monkeypatch.setattr(simulate, "build", lambda _study: inner)
    run(asked, out, drops=tuple(map(Dropout.parse, drops)))
    totals = server.taken[0]  # under encrypted protection every site replays the server
    return totals["update/x"].numpy()


@pytest.mark.parametrize(
    ("protection", "drops"),
    [
        ("masked", ()),
        ("masked", ("hospital-3@mask:1",)),
        ('masked"\nreveal = "sites', ("hospital-3@mask:1",)),
        ("encrypted", ()),
    ],
    ids=["masked", "masked with a dropout", "closed with a dropout", "encrypted"],
)
def test_what_arrives_is_the_sum_with_the_promised_noise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, protection: str, drops: tuple[str, ...]
) -> None:
    if protection == "encrypted":
        pytest.importorskip("tenseal")
    asked = chosen(protection, epsilon=2.0)
    inner = Sums(0.25, 20_000, 4)
    found = play(inner, asked, monkeypatch, *drops, out=tmp_path)
    noised = with_privacy(asked, inner, SITES)
    assert isinstance(noised, NoisedAlgorithm)
    honest = min_survivors(asked.protection, 4) - max(1, asked.protection.colluders_for(4))
    assert honest >= 2
    survivors = 4 - len(drops)
    deviation = noised.noise_multiplier * (survivors / honest) ** 0.5
    assert stats.kstest((found - survivors * 0.25) / deviation, "norm").pvalue > 1e-4
    # Every site paid before it worked, for its records, and no more than the study's epsilon.
    ledgers = sorted(tmp_path.glob("sites/*/ledger-*.jsonl"))
    assert ledgers
    for path in ledgers:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        events = [from_value(line["body"]["event"]) for line in lines if "event" in line.get("body", {})]
        assert [event.name for event in events] == ["unit-skellam/1"]
        told = statement(events, 1e-4)
        assert told.adjacency == "add-or-remove-record"
        assert 1.9 < told.epsilon <= 2.0


def test_shares_of_a_study_divide_what_is_paid() -> None:
    """An exchange with four times the share has half the noise, and both together keep to epsilon."""

    class Two(Sums):
        def exchanges(self, round_number: int) -> tuple[Exchange, ...]:
            return (
                tuple(Exchange(name, "all", self.layout) for name in ("a", "b")) if round_number == 1 else ()
            )

        def unit_bound(self, exchange: Exchange) -> UnitBound:
            return UnitBound(1.0, share=0.8 if exchange.name == "a" else 0.2)

    noised = with_privacy(chosen(), Two(0.0, 10, 4), SITES)
    assert isinstance(noised, NoisedAlgorithm)
    first, second = (noised.event_of(exchange) for exchange in noised.exchanges(1))
    assert first is not None
    assert second is not None
    assert noise_of(second) == pytest.approx(4 * noise_of(first), rel=1e-3)
    assert 7.9 < statement([first, second], 1e-4).epsilon <= 8.0


def test_releases_of_one_exchange_divide_its_share() -> None:
    """Four rounds of one exchange, and one round of another with the same share, which has half the noise."""

    class Rounds(Sums):
        def exchanges(self, round_number: int) -> tuple[Exchange, ...]:
            names = {1: ("a", "b"), 2: ("a",), 3: ("a",), 4: ("a",)}.get(round_number, ())
            return tuple(Exchange(name, "all", self.layout) for name in names)

        def unit_bound(self, exchange: Exchange) -> UnitBound:
            return UnitBound(1.0, share=0.5)

    noised = with_privacy(chosen().replace("study.rounds", 4), Rounds(0.0, 10, 4), SITES)
    assert isinstance(noised, NoisedAlgorithm)
    often, once = (noised.event_of(exchange) for exchange in noised.exchanges(1))
    assert noise_of(often) == pytest.approx(4 * noise_of(once), rel=1e-3)


class Groups(Sums):
    """One exchange of all sites in both rounds, one of five sites and then of six, and one of too few."""

    asked: ClassVar[dict[str, tuple[int, int]]] = {"all": (8, 8), "some": (5, 6), "few": (4, 4)}

    def exchanges(self, round_number: int) -> tuple[Exchange, ...]:
        return tuple(Exchange(name, "all", self.layout) for name in self.asked) if round_number < 3 else ()

    def members(self, round_number: int, exchange: Exchange, sites: Sequence[str]) -> Sequence[str]:
        return sites[: self.asked[exchange.name][round_number - 1]]


@pytest.mark.parametrize("protection", ["masked", "encrypted"])
@pytest.mark.parametrize("distribution", ["skellam", "discrete-gaussian"])
@pytest.mark.parametrize(("dropouts", "least"), [(None, (4, 4, 4)), (1, (7, 4, 4)), (0, (8, 5, 4))])
def test_no_sum_that_sites_release_has_less_noise_than_is_paid_for(
    protection: str, distribution: str, dropouts: int | None, least: tuple[int, ...]
) -> None:
    """Whatever the survivors are, the honest ones' shares add up to what the ledger says."""
    asked = chosen(protection, f'distribution = "{distribution}"').replace("data.sites", 8)
    asked = asked.replace("study.rounds", 2).replace("protection.min_cohort", 4)
    if dropouts is not None:
        asked = asked.replace("protection.max_dropouts", dropouts)
    sites = tuple(f"hospital-{number}" for number in range(8))
    noised = with_privacy(asked, Groups(0.0, 5, 8), sites)
    assert isinstance(noised, NoisedAlgorithm)
    limits = Terms(asked, noised, sites).limits(SiteLimits())
    found = []
    for number in (1, 2):
        for exchange in noised.exchanges(number):
            noise = noised._noises[noised.inner_exchange(exchange)]
            event, (item,) = noised.event_of(exchange), noise.layout.fields
            assert event is not None
            # Steps of the grid, of which the event's unit is the coarsest.
            paid = event.variance if distribution == "skellam" else event.shares * event.sigma**2
            members = len(noised.members(number, exchange, sites))
            permitted = limits.of_exchange(members).min_threshold
            assert noise.min_survivors <= permitted <= members
            for survivors in range(permitted, members + 1):
                assert (survivors - noise.colluders) * noise.share_variance(item) >= paid
            found.append(noise.min_survivors)
    assert tuple(found) == least * 2


def noise_of(event: Any) -> float:
    """Variance over the squared norm of one unit."""
    return float(event.variance / event.l2**2)


def refused(key: str, asked: Any) -> ConfigError:
    with pytest.raises(ConfigError, match=key) as problem:
        asked()
    return problem.value


def test_plain_protection_would_show_each_share() -> None:
    assert "masked" in str(refused(r"privacy\.noise", lambda: chosen("plain")).remedy)


@pytest.mark.parametrize("inner", [Constant, type("Unbounded", (Sums,), {"bound": None})])
def test_an_algorithm_must_bound_what_one_record_adds(inner: type[Constant]) -> None:
    refused(r"privacy\.noise", lambda: with_privacy(chosen(), inner(0.0, 5, 4), SITES))


def test_too_few_honest_sites_are_refused() -> None:
    """Masked protection has two honest sites in every sum by its own rules; encrypted has not."""
    asked = chosen("encrypted").replace("protection.min_cohort", 2)
    refused(r"privacy\.noise", lambda: with_privacy(asked, Sums(0.0, 5, 4), SITES))


def test_keys_without_effect_are_refused() -> None:
    refused(r"privacy\.clip_quantile", lambda: chosen(privacy="clip_quantile = 0.5"))
    refused(r"privacy\.distribution", lambda: study(privacy='distribution = "skellam"'))
    refused(r"privacy\.engine", lambda: study("site", privacy='engine = "loop"'))


def test_the_site_as_unit_has_no_choice_of_where_noise_is_added() -> None:
    refused(r"privacy\.noise", lambda: study("site", privacy='noise = "sum"'))


def test_a_study_of_before_keeps_its_digest() -> None:
    """``noise`` once named the distribution; records and study files of then are read as they were meant."""
    for unit in ("record", "site"):
        former = study(unit).tables()["privacy"]
        assert former["noise"] == "skellam"
        assert "distribution" not in former
    named = study("site", privacy='noise = "discrete-gaussian"')
    assert named.privacy is not None
    assert named.privacy.distribution == "discrete-gaussian"
    assert named.digest() == study("site", privacy='distribution = "discrete-gaussian"').digest()
    assert chosen().digest() != chosen().replace("privacy.noise", "site").digest()
    with pytest.raises(ConfigError, match=r"privacy\.noise"):  # the distribution, twice
        named.replace("privacy.noise", "skellam")


def test_another_hospital_is_counted_among_those_who_read_the_sum() -> None:
    """Where a study tolerates no colluder, each hospital still knows its own share of the noise."""
    asked = chosen().replace("data.sites", 3).replace("protection.colluders", 0)
    noised = with_privacy(asked, Sums(0.0, 5, 3), SITES[:3])
    assert isinstance(noised, NoisedAlgorithm)
    (event,) = (noised.event_of(exchange) for exchange in noised.exchanges(1))
    (noise,) = noised._noises.values()
    assert (noise.min_survivors, noise.colluders) == (3, 1)
    assert noise_of(event) == pytest.approx((noise.noise_multiplier * noise.clip_norm / noise.l2) ** 2)
