from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load, save

from secfed.algorithms.fmcsc.options import FmcscOptions
from secfed.algorithms.fmcsc.site import as_weight
from secfed.errors import MalformedMessage, WrongState
from secfed.wire.layout import Totals
from tests.algorithms.fmcsc_case import LARGE, Rounds, study, tiny, until, whole
from tests.algorithms.loop import add_in_ring, same, simulate

WEIGHTS = {"mi", "public", "equal"}


def test_pretraining_moves_all_groups_together_and_no_head():
    rounds = Rounds()
    before = rounds.group("full")
    rounds = until(3)
    after = rounds.group("full")
    assert same(after, rounds.group("view-1"))
    assert same(after, rounds.group("view-2"))
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert {name.split(".")[0] for name in moved} == {"enc", "dec"}
    assert {name.split(".")[1] for name in moved} == {"0", "1"}


def test_pretraining_averages_a_view_over_its_owners_only():
    rounds = Rounds(data__views=LARGE)
    before = rounds.group("full")
    got = rounds.take(1, 0)
    after = rounds.group("full")
    owners = [site for site, one in got.items() if one["sites/view-2"]]
    assert owners == [f"hospital-{at}" for at in (1, 2, 3, 7, 8, 9)]
    for site, one in got.items():
        assert bool(one["update/enc.1.0.weight"].any()) == (site in owners)
    mean = sum(got[site]["update/dec.1.0.bias"] for site in owners) / len(owners)
    assert torch.allclose(after["dec.1.0.bias"], before["dec.1.0.bias"] + mean, atol=1e-7)


def test_a_view_with_too_few_owners_in_a_sum_is_left_alone():
    rounds = Rounds(data__views=LARGE)
    before = rounds.group("full")
    rounds.take(1, 0, lambda got: {site: got[site] for site in got if site[-1] in "14567"})
    after = rounds.group("full")
    assert torch.equal(after["enc.1.0.weight"], before["enc.1.0.weight"])  # hospitals 1 and 7
    assert not torch.equal(after["enc.0.0.weight"], before["enc.0.0.weight"])  # hospitals 1, 4, 5 and 6


def test_sites_with_the_same_records_average_to_each_one_s_own_model():
    rounds = until(3, data__same=True)
    before = rounds.group("full")
    got = rounds.take(3, 0)
    one = got["hospital-1"]
    local = {name: before[name] + one[f"update/{name}"] / one["weight"] for name in before}
    assert same(rounds.group("full"), local, atol=1e-6)


def scaled(got, factors):
    return {
        site: {name: value if name == "sites" else value * factor for name, value in got[site].items()}
        for site, factor in zip(got, factors, strict=True)
    }


@pytest.mark.parametrize("index", [0, 1])
def test_scaling_all_weights_of_a_group_changes_nothing(index):
    models = []
    for factor in (1.0, 0.25):
        rounds = until(3)
        for earlier in range(index):
            rounds.take(3, earlier)
        rounds.take(3, index, lambda got, factor=factor: scaled(got, [factor] * len(got)))
        models.append(rounds.server.model())
    assert same(*models, atol=1e-7)


def test_a_site_of_weight_zero_changes_nothing():
    models = []
    for change in (
        lambda got: scaled(got, [1, 1, 1, 0, 1, 1]),
        lambda got: {site: one for site, one in got.items() if site != "hospital-4"},
    ):
        rounds = until(4, algorithm__weights="equal")
        rounds.take(4, 0)
        rounds.take(4, 1, change)
        models.append(rounds.server.model())
    assert same(*models, atol=1e-7)


def test_without_any_weight_or_with_fewer_than_three_models_a_group_keeps_its_model():
    for change in (lambda got: scaled(got, [0, 0, 0]), lambda got: dict(list(got.items())[:2])):
        rounds = until(3)
        before = rounds.group("full")
        rounds.take(3, 0, change)
        assert same(rounds.group("full"), before)


def test_equal_weights_give_the_plain_mean():
    rounds = until(3, algorithm__weights="equal")
    before = rounds.group("full")
    got = rounds.take(3, 0)
    assert {one["weight"] for one in got.values()} == {1.0}
    for name, value in rounds.group("full").items():
        mean = torch.stack([one[f"update/{name}"] for one in got.values()]).mean(dim=0)
        assert torch.allclose(value, before[name] + mean, atol=1e-6)


def test_public_weights_count_sites_with_all_views_only():
    rounds = until(4, algorithm__weights="public")
    rounds.take(4, 0)
    got = rounds.take(4, 1)
    assert {site: one["weight"] for site, one in got.items()} == {f"hospital-{at}": 1.0 for at in (1, 2, 3)}


def test_a_negative_information_is_clipped_and_still_counts_a_little():
    most = math.log2(10)
    assert as_weight(-1.0, most) == as_weight(0.0, most) > 0
    assert as_weight(most, most) == as_weight(2 * most, most) == 1.0
    assert as_weight(1.0, most) < as_weight(2.0, most)


@pytest.mark.parametrize("weights", sorted(WEIGHTS))
def test_after_the_first_main_round_view_models_are_what_multi_view_sites_taught(weights):
    rounds = until(3, algorithm__weights=weights)
    rounds.take(3, 0)
    before = rounds.group("view-1")
    got = rounds.take(3, 1)
    assert ("hospital-4" in got) == (weights != "public")
    for site in ("hospital-4", "hospital-5", "hospital-6"):
        if site not in got:
            continue
        assert got[site]["weight"] == 0.0
        assert not any(got[site][f"update/{name}"].any() for name in before)
    teachers = [got[f"hospital-{at}"] for at in (1, 2, 3)]
    total = sum(one["weight"] for one in teachers)
    for name, value in rounds.group("view-1").items():
        mean = sum(one[f"update/{name}"] for one in teachers) / total
        assert torch.allclose(value, before[name] + mean, atol=1e-6)


def test_teaching_view_models_leaves_the_multi_view_model_alone():
    rounds = until(3)
    rounds.take(3, 0)
    full = rounds.group("full")
    rounds.take(3, 1)
    rounds.take(3, 2)
    assert same(rounds.group("full"), full)
    assert not rounds.programs["hospital-1"]._target[1].requires_grad


def test_a_single_view_site_keeps_its_own_model_and_never_takes_the_group_s():
    def update(contrast: bool, own: bool):
        rounds = until(4) if contrast else until(4, algorithm__model_contrast=False)
        rounds.take(4, 0)
        if not own:  # a site that was away before starts from the group's model
            rounds.programs["hospital-4"] = rounds.algorithm.site("hospital-4")
        got = rounds.take(4, 1)["hospital-4"]
        return {name: got[f"update/{name}"] / got["weight"] for name in rounds.group("full")}

    assert not same(update(True, True), update(True, False))
    assert same(update(False, True), update(False, False))


def test_without_distillation_view_models_learn_no_common_semantics_from_multi_view_sites():
    rounds = until(3, algorithm__distillation=False)
    rounds.take(3, 0)
    got = rounds.take(3, 1)
    assert not any(one["update/fuse_head.0.weight"].any() for one in got.values())
    assert got["hospital-1"]["update/enc.0.0.weight"].any()


@pytest.mark.parametrize(
    ("number", "lacks"), [(3, "did not train on all views in round 3"), (5, "has no features")]
)
def test_a_site_that_missed_the_first_exchange_of_a_round_sits_out_the_next(number, lacks):
    rounds = until(number)
    rounds.take(number, 0)
    late = rounds.algorithm.site("hospital-1")
    exchange = rounds.algorithm.exchanges(number)[1]
    with pytest.raises(WrongState, match=lacks):
        late.contribute(number, exchange, rounds.server.broadcast(number, exchange))


def test_broadcasts_carry_one_group_s_model_or_centres():
    rounds = Rounds(data__views=[-1, -1, -1, -1, 0, 0, 0, 0, 1, 1, 1], protection__min_cohort=4)
    parts = {}
    for number in (1, 2, 3, 4, 5):
        for index, exchange in enumerate(rounds.algorithm.exchanges(number)):
            state = rounds.server.broadcast(number, exchange)
            parts[exchange.name] = {name.split("/")[0] for name in state}
            rounds.take(number, index)
    assert parts["pretrain"] == parts["train-full"] == parts["score-moments"] == {"full"}
    assert parts["train-view-2"] == {"view-2"}
    assert parts["score-full-01"] == parts["score-full-03"] == {"centres", "active"}
    assert parts["score-view-1-01"] == {"view-1", "centres", "active"}
    assert parts["score-view-1-02"] == {"centres", "active"}
    assert parts["score-table"] == {"view-2", "centres"}  # its group has had no sum of its own


def test_a_broadcast_of_another_exchange_is_refused():
    rounds = until(3)
    state = rounds.server.broadcast(3, rounds.algorithm.exchanges(3)[0])
    with pytest.raises(MalformedMessage, match="does not have this study's parameters"):
        rounds.programs["hospital-4"].contribute(3, rounds.algorithm.exchanges(3)[1], state)


def test_the_server_finds_its_place_after_a_round_that_was_given_up():
    rounds = until(3)
    rounds.take(3, 0)  # and then round 3 is aborted
    for index in range(3):
        rounds.take(4, index)
    for index in range(len(rounds.algorithm.exchanges(5))):
        rounds.take(5, index)
    assert "acc" in rounds.server.metrics()[4]


def test_same_seed_same_model_another_seed_another():
    first, again = whole().model(), simulate(study()).model()
    assert same(first, again)
    assert not same(first, simulate(study(study__seed=6)).model())


def test_result_does_not_depend_on_the_order_of_sites():
    sites = list(tiny().plan.sites)
    forward = simulate(study(), adder=add_in_ring, order=sites)
    backward = simulate(study(), adder=add_in_ring, order=sites[::-1])
    assert same(forward.model(), backward.model())
    assert forward.metrics() == backward.metrics()


def test_training_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.random.get_rng_state()
    simulate(study(algorithm__paper_laplace_epsilon=50.0))
    assert torch.equal(torch.random.get_rng_state(), expected)


def test_infinite_epsilon_of_the_paper_s_noise_is_bit_identical_to_no_noise():
    clean = whole().model()
    assert same(clean, simulate(study(algorithm__paper_laplace_epsilon=math.inf)).model())
    assert not same(clean, simulate(study(algorithm__paper_laplace_epsilon=50.0)).model(), atol=0.01)


def test_the_paper_s_noise_has_scale_one_over_epsilon_on_every_local_model():
    def updates(**changes):
        rounds = until(3, algorithm__weights="equal", protection__bound=64.0, **changes)
        one = rounds.take(3, 0)["hospital-1"]
        return torch.cat([one[f"update/{name}"].reshape(-1) for name in rounds.group("full")])

    noise = updates(algorithm__paper_laplace_epsilon=10.0) - updates()
    assert float(noise.std()) == pytest.approx(0.1 * math.sqrt(2), rel=0.1)
    assert float(noise.abs().mean()) == pytest.approx(0.1, rel=0.1)


def test_pretraining_carries_no_paper_noise():
    noisy = until(3, algorithm__paper_laplace_epsilon=1.0)
    assert same(until(3).server.model(), noisy.server.model())


def test_independent_starts_differ_from_site_to_site():
    rounds = Rounds(algorithm__pretrain_rounds=1, algorithm__pretrain_start="independent")
    got = rounds.take(1, 0)
    received = tiny().initial["enc.0.0.weight"]
    locals_ = [received + one["update/enc.0.0.weight"] for one in list(got.values())[:3]]
    gaps = [float((locals_[0] - other).abs().mean()) for other in (*locals_[1:], received)]
    assert min(gaps) > 0.05  # initial weights are spread over about +-0.29


def test_a_checkpoint_continues_bit_for_bit_wherever_it_was_made():
    unbroken = until(6, algorithm__evaluate="every")
    for stop in ((3, 1), (3, 6), (4, 0)):
        rounds = until(stop[0], algorithm__evaluate="every")
        for number in range(stop[0], 6):
            for index in range(len(rounds.algorithm.exchanges(number))):
                if (number, index) == stop:
                    state, rounds.server = rounds.server.save(), rounds.algorithm.server()
                    rounds.server.load({name: value.clone() for name, value in state.items()})
                rounds.take(number, index)
        assert same(rounds.server.model(), unbroken.server.model())
        assert rounds.server.metrics() == unbroken.server.metrics()


def test_sites_that_are_restarted_between_any_two_exchanges_go_on_bit_for_bit():
    unbroken = until(6, algorithm__evaluate="every")
    rounds = Rounds(algorithm__evaluate="every")
    for number in range(1, 6):
        for index in range(len(rounds.algorithm.exchanges(number))):
            for site, program in rounds.programs.items():
                kept = load(save(dict(program.save())))  # as it travels: nothing but tensors by name
                rounds.programs[site] = rounds.algorithm.site(site)
                rounds.programs[site].load(kept)
            rounds.take(number, index)
    assert same(rounds.server.model(), unbroken.server.model())
    assert rounds.server.metrics() == unbroken.server.metrics()


def test_losses_belong_to_the_model_that_training_started_from():
    metrics = whole().metrics()
    assert set(metrics[0]) == set(metrics[1]) == {"pretrain_loss"}
    assert metrics[1]["pretrain_loss"] < metrics[0]["pretrain_loss"]
    assert set(metrics[2]) == set(metrics[3]) == {"full_loss", "view_1_loss", "view_2_loss"}
    assert set(metrics[4]) == {"acc", "nmi", "ari"}


def test_without_pretraining_the_first_round_trains_all_groups_from_the_common_start():
    rounds = Rounds(algorithm__pretrain_rounds=0)
    assert rounds.algorithm.exchanges(1)[0].name == "train-full"
    start = rounds.algorithm.initial
    for name in rounds.algorithm.plan.groups:
        assert same(rounds.group(name), start)
    for index in range(3):
        rounds.take(1, index)
    assert not same(rounds.group("view-2"), start)


def test_defaults_are_the_recommended_pipeline():
    options = FmcscOptions(name="fmcsc")
    assert (options.contrast, options.weights, options.view_types) == ("eq5", "mi", "public")
    assert (options.paper_laplace_epsilon, options.distillation, options.model_contrast) == (None, True, True)
    assert (options.pretrain_rounds, options.pretrain_epochs) == (40, 20)
    assert (options.local_epochs, options.distillation_epochs) == (25, 50)
    assert (options.pretrain_learning_rate, options.learning_rate) == (1e-3, 3e-4)


def test_totals_of_other_names_never_reach_the_model():
    server, exchange = tiny().server(), tiny(model__features=5).exchanges(1)[0]
    with pytest.raises(WrongState, match="no exchange 'pretrain'"):
        server.absorb(1, exchange, Totals({}, ("hospital-1",)))


def test_spherical_clustering_gives_every_group_centres_of_norm_1():
    found = {}
    for clustering in ("euclidean", "spherical"):
        rounds = until(6, algorithm__clustering=clustering)
        found[clustering] = rounds.server.save()["scoring/found"]
        final = rounds.server.metrics()[4]
        assert final["acc"] > 0.5
    assert torch.allclose(found["spherical"].norm(dim=-1), torch.ones(3, 3, dtype=torch.float64))
    assert float(found["euclidean"].norm(dim=-1).max()) < 1.0 - 1e-9
