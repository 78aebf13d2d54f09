"""FedMOON, FedEMA and FedLDAWA of dual encoders, against their definitions computed the long way."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from secfed.algorithms.framework.parameters import read_parameters
from secfed.algorithms.framework.randomness import torch_generator
from secfed.algorithms.vision_language.stage import contrastive_batches
from secfed.errors import ConfigError, MalformedMessage
from tests.algorithms.loop import same
from tests.algorithms.vlp_case import AVERAGING, Rounds, study

SITE = "hospital-3"
KINDS = ("moon", "ema", "ldawa")


def rounds(kind: str | None = None, **changes: Any) -> Rounds:
    """A study of three rounds; without a kind, of federated averaging."""
    name = AVERAGING["name"] if kind is None else f"vlp-fed{kind}"
    return Rounds(study(algorithm={**AVERAGING, "name": name, **changes}))


def after(made: Rounds, count: int) -> Rounds:
    for number in range(1, count + 1):
        made.round(number)
    return made


def local(made: Rounds) -> dict[str, dict[str, torch.Tensor]]:
    """Every site's model as its last training left it."""
    return {site: read_parameters(program.network) for site, program in made.programs.items()}


def trained(made: Rounds, start, round_number: int, site: str, extra=None) -> dict[str, torch.Tensor]:
    """What AdamW makes of a model on a site's batches of a round; ``extra(network, batch)`` is added."""
    network, program = made.algorithm.network(start), made.programs[site]
    parameters = [value.requires_grad_() for value in network.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.05, fused=True)
    generator = torch_generator(5, "batches", site, round_number, "joint")
    for rows in contrastive_batches(24, batch_size=8, steps=3, generator=generator):
        optimiser.zero_grad()
        batch = program.batch(rows)
        value = network.objective(network(*batch)).total
        (value if extra is None else value + extra(network, batch)).backward()
        optimiser.step()
    return read_parameters(network)


def close(one, other) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=2e-6, rtol=1e-5)


# in common


@pytest.mark.parametrize(("kind", "same_rounds"), [("moon", 1), ("ema", 1), ("ldawa", 2)])
def test_first_rounds_are_federated_averaging_and_later_ones_are_not(kind, same_rounds):
    ours, theirs = rounds(kind), rounds()
    for number in range(1, same_rounds + 2):
        assert same(ours.server.model(), theirs.server.model())
        ours.round(number)
        theirs.round(number)
    assert not same(ours.server.model(), theirs.server.model())


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("moon", {"contrast": 0.0}), ("ema", {"autoscale": 0.0}), ("ldawa", {"warmup_rounds": 3})],
)
def test_switched_off_they_are_federated_averaging_bit_by_bit(kind, changes):
    assert same(rounds(kind, **changes).run().server.model(), rounds().run().server.model())


@pytest.mark.parametrize("kind", KINDS)
def test_only_updates_loss_and_scores_are_summed(kind):
    made, plain = rounds(kind), rounds()
    for number in (1, 3):
        assert made.algorithm.exchanges(number) == plain.algorithm.exchanges(number)


def continued(made: Rounds, fresh: Any) -> list[dict[str, Any]]:
    """What a site adds in round 3, and what another program for it does."""
    exchange = made.algorithm.exchanges(3)[0]
    state = made.server.broadcast(3, exchange)
    return [program.contribute(3, exchange, state) for program in (made.programs[SITE], fresh)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_goes_on_from_what_it_saved(kind):
    made = after(rounds(kind), 2)
    fresh = made.algorithm.site(SITE)
    fresh.load({name: value.clone() for name, value in made.programs[SITE].save().items()})
    one, other = continued(made, fresh)
    assert {**one, "loss": torch.tensor(one["loss"])}.keys() == other.keys()
    assert all(torch.equal(torch.as_tensor(one[n]), torch.as_tensor(other[n])) for n in one)
    assert same(made.programs[SITE].save(), fresh.save())


@pytest.mark.parametrize("kind", ["moon", "ema"])
def test_forgetting_what_was_kept_would_change_the_next_round(kind):
    made = after(rounds(kind), 2)
    fresh = made.algorithm.site(SITE)
    fresh.load(fresh.save())  # of a site that has not trained yet
    one, other = continued(made, fresh)
    assert any(not torch.equal(torch.as_tensor(one[n]), torch.as_tensor(other[n])) for n in one)


@pytest.mark.parametrize("kind", ["moon", "ema"])
def test_what_another_model_left_is_refused(kind):
    program = after(rounds(kind), 1).programs[SITE]
    saved = program.save()
    name = next(name for name in saved if "/" in name)
    for wrong in ({**saved, name: torch.zeros(3)}, {n: v for n, v in saved.items() if n != name}):
        with pytest.raises(MalformedMessage, match="another model"):
            program.load(wrong)


# FedMOON


def test_moon_trains_on_objective_and_contrast_with_received_and_previous_model():
    made = after(rounds("moon", contrast=2.0, contrast_temperature=0.3), 1)
    previous, received = local(made)[SITE], made.server.model()
    got = made.take(2, 0)[SITE]
    near, far = made.algorithm.network(received), made.algorithm.network(previous)

    def contrast(network, batch) -> torch.Tensor:
        terms = []
        for row in range(8):
            one = tuple(part[row : row + 1] for part in batch)
            z = network(*one).image[0]
            with torch.no_grad():
                g, p = near(*one).image[0], far(*one).image[0]
            to_global, to_previous = (torch.exp(torch.cosine_similarity(z, x, dim=0) / 0.3) for x in (g, p))
            terms.append(-torch.log(to_global / (to_global + to_previous)))
        return 2.0 * torch.stack(terms).mean()

    expected = trained(made, received, 2, SITE, contrast)
    close({n: got[f"update/{n}"] for n in expected}, {n: expected[n] - received[n] for n in expected})
    plain = trained(made, received, 2, SITE)
    assert any(not torch.allclose(plain[n] - received[n], got[f"update/{n}"], atol=1e-4) for n in plain)


def test_moon_keeps_the_model_of_the_last_round_the_site_trained_in():
    made = after(rounds("moon"), 1)
    first = local(made)[SITE]
    made.round(2, absent=(SITE,))
    kept = {n.removeprefix("previous/"): v for n, v in made.programs[SITE].save().items()}
    assert same(kept, first)
    made.round(3)
    kept = {n.removeprefix("previous/"): v for n, v in made.programs[SITE].save().items()}
    assert same(kept, local(made)[SITE])


# FedEMA


def norm(one, other) -> float:
    return math.sqrt(sum(float((one[n].double() - other[n].double()).square().sum()) for n in one))


def test_ema_starts_between_its_own_and_the_received_model_with_a_scale_fixed_once():
    made = after(rounds("ema", autoscale=0.4), 1)
    own, scale = local(made)[SITE], None
    for number in (2, 3):
        received = made.server.model()
        scale = 0.4 / norm(received, own) if scale is None else scale
        m = min(scale * norm(received, own), 1.0)
        assert 0 < m < 1
        start = {name: m * own[name] + (1 - m) * received[name] for name in own}
        expected = trained(made, start, number, SITE)
        got = made.take(number, 0)[SITE]
        close({n: got[f"update/{n}"] for n in expected}, {n: expected[n] - received[n] for n in expected})
        assert float(made.programs[SITE].save()["scale"]) == pytest.approx(scale)
        own = local(made)[SITE]


def test_ema_measures_its_scale_when_a_site_first_has_both_models():
    made = rounds("ema")
    made.round(1, absent=(SITE,))
    made.round(2)
    assert "scale" in made.programs["hospital-1"].save()
    assert "scale" not in made.programs[SITE].save()
    own, received = local(made)[SITE], made.server.model()
    made.round(3)
    assert float(made.programs[SITE].save()["scale"]) == pytest.approx(0.7 / norm(received, own))


def test_ema_refuses_a_scale_without_meaning():
    program = after(rounds("ema"), 2).programs[SITE]
    with pytest.raises(MalformedMessage, match="scale"):
        program.load({**program.save(), "scale": torch.tensor(math.nan)})


def test_ema_shares_are_between_none_and_all():
    with pytest.raises(ConfigError, match=r"algorithm\.autoscale"):
        rounds("ema", autoscale=1.5)


# FedLDAWA


def test_ldawa_averages_layers_scaled_by_their_cosine_with_the_received_model():
    made = after(rounds("ldawa", warmup_rounds=1), 1)
    received = made.server.model()
    made.round(2)
    models = local(made).values()
    for name, value in made.server.model().items():
        total = torch.zeros_like(value, dtype=torch.float64)
        for one in models:
            w, g = one[name].double().ravel(), received[name].double().ravel()
            total += (w @ g) / (w.norm() * g.norm()) * one[name].double()
        torch.testing.assert_close(value.double(), total / len(models), atol=2e-6, rtol=1e-5)
