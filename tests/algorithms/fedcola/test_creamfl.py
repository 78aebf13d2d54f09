"""CreamFL as sums allow: the published weights out of two sums, and what they change."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from secfed.algorithms.fedcola.creamfl import CreamFL, contrast
from secfed.algorithms.fedcola.plan import KINDS
from secfed.algorithms.framework.server_state import part_of
from secfed.errors import ConfigError, MalformedMessage
from secfed.pipeline.noised_algorithm import with_privacy
from secfed.study.build import build, build_data
from tests.algorithms.fedcola_case import CREAM, study, tiny
from tests.algorithms.loop import Rounds, add, add_in_ring, same, simulate

IMAGES = [*(f"image-{k}" for k in range(1, 5)), *(f"pairs-{k}" for k in range(1, 4))]


def representations(rounds: Rounds, number: int, one: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What sites make of public pairs after training in a round, and their weights."""
    for kind in KINDS:
        rounds.contributions(number, f"own-{kind}")
    got = rounds.contributions(number, f"public-{one}")
    weights = {site: values["public/contrast"] for site, values in got.items()}
    return {s: v["public/representation"] / weights[s][:, None] for s, v in got.items()}, weights


def test_the_mean_has_the_published_weights() -> None:
    rounds = Rounds(tiny(CREAM))
    rounds.round(1)
    common = rounds.server.save()
    found, _ = representations(rounds, 2, "image")
    assert sorted(found) == sorted(IMAGES)
    contrasts = [torch.log_softmax(x @ common["public/text"].T, dim=1).diagonal() for x in found.values()]
    shares = torch.softmax(torch.stack(contrasts), dim=0)  # over sites, as the paper has it
    assert not torch.allclose(shares, torch.full_like(shares, 1 / len(found)))
    wanted = sum(share[:, None] * x for share, x in zip(shares, found.values(), strict=True))
    rounds.round(2)
    assert torch.allclose(rounds.server.save()["public/image"], wanted, atol=1e-6)


def test_in_the_first_round_all_count_the_same() -> None:
    rounds = Rounds(tiny(CREAM))
    found, weights = representations(rounds, 1, "text")
    assert all(torch.allclose(one, torch.ones(6)) for one in weights.values())
    assert all(torch.allclose(one.norm(dim=1), torch.ones(6), atol=1e-6) for one in found.values())
    rounds.round(1)
    mean = torch.stack(list(found.values())).mean(dim=0)
    assert torch.allclose(rounds.server.save()["public/text"], mean, atol=1e-6)


def test_without_distillation_models_are_those_of_federated_averaging() -> None:
    averaged = simulate(study(algorithm__aggregation="fedavg", algorithm__co_layers="none"))
    assert same(simulate(study(CREAM, algorithm__distillation=0.0)).model(), averaged.model())
    pulled = simulate(study(CREAM)).model()
    for name, value in averaged.model().items():
        assert torch.equal(value, pulled[name]) == (not name.startswith("pairs/"))


def test_distillation_pulls_sites_with_pairs_to_the_means() -> None:
    def apart(distillation: float) -> float:
        rounds = Rounds(tiny(CREAM, algorithm__distillation=distillation, algorithm__local_epochs=2))
        rounds.round(1)
        common = rounds.server.save()["public/image"]
        found, _ = representations(rounds, 2, "image")
        return sum(float((x - common).square().sum()) for s, x in found.items() if s.startswith("pairs"))

    assert apart(1000.0) < 0.9 * apart(0.0)


def test_public_pairs_are_the_same_everywhere_and_nobody_s() -> None:
    algorithm = build(study(CREAM))
    public = algorithm.data.public_pairs(6)
    assert torch.equal(public.images, algorithm.public.images)
    for site in ("image-1", "pairs-2"):
        held = algorithm.site_data(site)
        for part in (held.train.images, held.test.images):
            assert not any(torch.equal(one, other) for one in part for other in public.images)


@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("number", [1, 2])
def test_no_weight_tells_of_a_training_that_failed(number: int, raises: bool) -> None:
    rounds = Rounds(tiny(CREAM))
    if number == 2:
        rounds.round(1)

    def overflows(network: torch.nn.Module, *_: object) -> float:
        if raises:
            raise ArithmeticError("of its records")
        with torch.no_grad():
            for value in network.parameters():
                value.fill_(torch.nan)
        return 0.0

    rounds.programs["image-2"]._fit = overflows
    for kind in KINDS:
        rounds.contributions(number, f"own-{kind}")
    got = rounds.contributions(number, "public-image")
    assert not got["image-2"]["public/representation"].any()
    assert got["image-1"]["public/representation"].all()
    weights = [got[site]["public/contrast"] for site in ("image-1", "image-2")]
    assert torch.allclose(weights[1], torch.ones(6))
    assert torch.allclose(*weights) == (number == 1)


def test_weights_fit_their_bound_however_representations_lie() -> None:
    bound = Rounds(tiny(CREAM)).exchange(1, "public-image").layout.fields[1].bound
    axis = torch.eye(8)[0]
    common = torch.cat([axis[None], -axis.repeat(1999, 1)])  # the first of its kind, against all others
    for length in (1.0, 100.0):  # longer than any mean
        weight = contrast(axis.repeat(2000, 1), length * common)
        assert math.exp(2) - 0.1 < float(weight.max()) < bound
    exact, ringed = (simulate(study(CREAM, study__rounds=1), adder=one).save() for one in (add, add_in_ring))
    assert same(*(part_of(state, "public/") for state in (exact, ringed)), 1e-5)


class TestRestarts:
    @pytest.mark.parametrize("stop", range(1, 5))
    def test_a_server_that_stops_between_sums_goes_on_as_it_was(self, stop: int) -> None:
        straight, stopped = Rounds(tiny(CREAM)), Rounds(tiny(CREAM))
        for rounds in (straight, stopped):
            rounds.round(1)
        straight.round(2)
        for at, exchange in enumerate(stopped.algorithm.exchanges(2)):
            if at == stop:
                state = stopped.server.save()
                stopped.server = stopped.algorithm.server()
                stopped.server.load(state)
            stopped.take(2, exchange.name)
        assert same(straight.server.save(), stopped.server.save())

    def test_a_site_goes_on_with_what_it_had_represented(self) -> None:
        rounds = Rounds(tiny(CREAM))
        for kind in KINDS:
            rounds.contributions(1, f"own-{kind}")
        wanted = rounds.contributions(1, "public-text")
        for site in wanted:
            kept = rounds.programs[site].save()
            rounds.programs[site] = rounds.algorithm.site(site)
            rounds.programs[site].load(kept)
        found = rounds.contributions(1, "public-text")
        assert all(same(wanted[site], found[site]) for site in wanted)

    def test_a_checkpoint_of_another_study_is_refused(self) -> None:
        state = Rounds(tiny(CREAM, algorithm__public_pairs=7)).server.save()
        with pytest.raises(MalformedMessage, match="another model"):
            Rounds(tiny(CREAM)).server.load(state)


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"algorithm__aggregation": "compensated"}, "algorithm.aggregation"),
            ({"algorithm__co_layers": "all"}, "algorithm.co_layers"),
            ({"algorithm__shared_layers": "mlp"}, 'shared_layers: has no effect with aggregation = "fedavg"'),
            ({"algorithm__public_pairs": 1}, "algorithm.public_pairs"),
            ({"algorithm__weighting": "records"}, "algorithm.weighting"),
        ],
    )
    def test_what_creamfl_is_not(self, changes: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            tiny(CREAM, **changes)

    def test_records_without_public_pairs(self) -> None:
        algorithm = tiny(CREAM)
        names = [one for one in dir(algorithm.data) if not one.startswith("_") and one != "public_pairs"]
        data = SimpleNamespace(**{one: getattr(algorithm.data, one) for one in names})
        with pytest.raises(ConfigError, match=r"data\.name: creamfl needs pairs .* scenes does not give"):
            CreamFL(dataclasses.replace(algorithm.setting, data=data), algorithm.options)

    def test_privacy(self) -> None:
        made = study(CREAM + '[privacy]\nunit = "site"\nepsilon = 4.0\ndelta = 1e-3\n')
        with pytest.raises(ConfigError, match=r"privacy\.unit"):
            with_privacy(made, build(made), build_data(made).sites)
        assert CreamFL.private_units == ()


@pytest.mark.parametrize("absent", ["image", "text"])
def test_a_group_may_be_absent(absent: str) -> None:
    rounds = Rounds(tiny(CREAM, **{f"data__{absent}_sites": 0})).run()
    assert "text_to_image_recall_at_1" in rounds.server.metrics()[2]
    for one in ("image", "text"):
        assert rounds.server.save()[f"public/{one}"].any()  # sites with pairs represent both
