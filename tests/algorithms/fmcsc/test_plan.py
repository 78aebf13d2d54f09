from __future__ import annotations

import pytest
import torch

from secfed.algorithms.fmcsc.options import FmcscOptions
from secfed.algorithms.fmcsc.plan import FULL, FmcscPlan
from secfed.algorithms.fmcsc.privacy import phases
from secfed.config.sections import ProtectionSection
from secfed.errors import ConfigError, WrongState
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms.fmcsc_case import TINY, Rounds, tiny, until

NETWORK = "hidden = [16, 12]\nfeatures = 4\nhead_hidden = 8\n"
VIEWS = "views = [-1, -1, -1, 0, 0, 0, 1]\n"


def plan(full: int, single: int, **options) -> FmcscPlan:
    protection = options.pop("protection", {"colluders": 1})
    sites = {f"h{at}": None for at in range(full)} | {f"s{at}": at % 2 for at in range(single)}
    return FmcscPlan(
        options=FmcscOptions(name="fmcsc", **options),
        protection=ProtectionSection(**protection),
        rounds=46,
        seed=1,
        view_of=sites,
        views=2,
        classes=10,
        features=4,
        shapes={"enc.0.0.weight": (3, 2), "dec.1.0.bias": (2,), "fuse_head.0.bias": (4,)},
    )


def names(algorithm, round_number: int) -> list[str]:
    return [exchange.name for exchange in algorithm.exchanges(round_number)]


def test_rounds_pretrain_then_train_every_group_then_score():
    algorithm = tiny()
    assert names(algorithm, 1) == names(algorithm, 2) == ["pretrain"]
    assert names(algorithm, 3) == names(algorithm, 4) == ["train-full", "train-view-1", "train-view-2"]
    assert names(algorithm, 5) == [
        "score-moments",
        *(f"score-full-0{at}" for at in (1, 2, 3)),
        *(f"score-view-1-0{at}" for at in (1, 2)),  # one site with view 2 is too few for a sum
        "score-table",
    ]


def test_scoring_can_follow_every_main_round_and_then_happens_once_for_each():
    algorithm = tiny(algorithm__evaluate="every")
    assert names(algorithm, 3)[:3] == ["train-full", "train-view-1", "train-view-2"]
    assert names(algorithm, 3)[3:] == names(algorithm, 5)
    assert names(algorithm, 4) == ["train-full", "train-view-1", "train-view-2"]


def asked(algorithm, number: int) -> dict[str, list[int]]:
    ask = {e.name: algorithm.members(number, e, algorithm.plan.sites) for e in algorithm.exchanges(number)}
    return {name: [int(site[-1]) for site in sites] for name, sites in ask.items()}


def test_public_view_types_ask_each_group_its_own_sites():
    algorithm = tiny()
    members = asked(algorithm, 5)
    assert members["score-moments"] == members["score-full-01"] == [1, 2, 3]
    assert members["score-view-1-02"] == [4, 5, 6]
    assert members["score-table"] == [1, 2, 3, 4, 5, 6]  # the one with view 2 would be alone of its kind
    of_views = {"train-view-1": [1, 2, 3, 4, 5, 6], "train-view-2": [1, 2, 3]}
    assert asked(algorithm, 3) == {"train-full": [1, 2, 3], **of_views}


def test_sites_that_would_count_nothing_are_not_asked():
    assert all(sites == [1, 2, 3] for sites in asked(tiny(algorithm__weights="public"), 3).values())


def parts(algorithm, number: int) -> dict[str, list[tuple[list[int], int]]]:
    return {
        exchange.name: [
            (sorted(int(site[-1]) for site in part), least)
            for part, least in algorithm.contributors(number, exchange)
        ]
        for exchange in algorithm.exchanges(number)
    }


@pytest.mark.parametrize("view_types", ["public", "hidden"])
def test_every_kind_is_a_part_of_a_sum_and_one_that_is_too_small_is_none(view_types):
    algorithm, both = tiny(algorithm__view_types=view_types), [([1, 2, 3], 3), ([4, 5, 6], 3)]
    assert parts(algorithm, 1) == {"pretrain": both}
    # In the first main round the models of single views are only taught.
    assert set(map(str, parts(algorithm, 3).values())) == {"[([1, 2, 3], 3)]"}
    assert parts(algorithm, 4) == {
        "train-full": [([1, 2, 3], 3)],
        "train-view-1": both,
        "train-view-2": [([1, 2, 3], 3)],
    }
    scoring = parts(algorithm, 5)
    assert scoring["score-moments"] == scoring["score-full-02"] == [([1, 2, 3], 3)]
    assert scoring["score-view-1-01"] == [([4, 5, 6], 3)]
    assert scoring["score-table"] == both


def test_more_colluders_ask_for_more_contributors():
    made = plan(12, 12, protection={"colluders": 4})
    assert made.fewest == 6
    rounds = [made.sampled(number) for number in range(1, 41)]
    assert min(sum(site[0] == "h" for site in sites) for sites in rounds) >= 6


def test_with_hidden_view_types_everybody_pretrains():
    made = plan(12, 12, view_types="hidden", pretrain_share=0.1)
    assert {made.sampled(number) for number in (1, 2, 3)} == {made.sites}


def test_hidden_view_types_ask_everybody_for_everything():
    algorithm = tiny(algorithm__view_types="hidden")
    sites = algorithm.plan.sites
    for number in (3, 5):
        for exchange in algorithm.exchanges(number):
            assert algorithm.members(number, exchange, sites) == sites
            assert exchange.cohort == "all"


def test_with_hidden_view_types_a_kind_that_is_too_small_adds_zeros():
    rounds = Rounds(algorithm__view_types="hidden", algorithm__weights="equal")
    for number in range(1, 6):
        for exchange in rounds.algorithm.exchanges(number):
            got = rounds.take(number, exchange.name)
            assert list(got) == list(rounds.algorithm.plan.sites)
            some = {name for name, value in got["hospital-7"].items() if bool(torch.as_tensor(value).any())}
            assert some == ({"sites/view-2"} if exchange.name == "score-moments" else set())  # it is there
    assert got["hospital-4"]["table"].sum() == 24
    assert all(phase.passes == 0 for phase in phases(rounds.algorithm.plan, "hospital-7", 24))


def test_an_exchange_of_another_round_is_refused():
    algorithm = tiny()
    with pytest.raises(WrongState, match="no exchange 'pretrain'"):
        algorithm.stage(3, algorithm.exchanges(1)[0])
    with pytest.raises(WrongState, match="no round 6"):
        algorithm.exchanges(6)


@pytest.mark.parametrize(
    ("full", "single", "share", "expected"),
    [
        (17, 7, 0.5, (9, 3)),  # all three of one view
        (17, 7, 0.9, (15, 6)),
        (12, 12, 0.5, (6, 6)),
        (12, 12, 0.7, (8, 8)),
        (8, 16, 0.5, (4, 8)),
        (50, 50, 0.29, (15, 14)),  # 29 of a hundred: 0.29 * 100 is a little less
        (6, 6, 0.7, (4, 6)),  # no fewer than three of each view
    ],
)
def test_participation_keeps_the_proportion_of_view_types(full, single, share, expected):
    chosen = plan(full, single, participation=share).participants
    assert (sum(s[0] == "h" for s in chosen), sum(s[0] == "s" for s in chosen)) == expected
    for first, step in (("h0", 1), ("s0", 2), ("s1", 2)):  # the first ones of every kind, or none
        some = [
            int(site[1:]) for site in chosen if site[0] == first[0] and int(site[1:]) % step == int(first[1])
        ]
        assert some == [int(first[1]) + step * at for at in range(len(some))]
        assert not 0 < len(some) < 3


def test_pretraining_samples_a_share_with_enough_owners_of_every_view():
    made = plan(12, 12)
    rounds = [made.sampled(number) for number in range(1, 41)]
    assert {len(sites) for sites in rounds} == {8}
    assert min(sum(site[0] == "h" for site in sites) for sites in rounds) >= 3
    assert len(set(rounds)) > 30
    assert rounds[0] == made.sampled(1)
    assert set().union(*rounds) == set(made.sites)


def test_pretraining_samples_no_fewer_sites_than_a_sum_needs():
    made = plan(12, 12, protection={"colluders": 7}, pretrain_share=0.1)
    assert made.least == 9
    assert len(made.sampled(1)) == 9


@pytest.mark.parametrize("single", [4, 6, 12])
def test_pretraining_samples_enough_sites_of_a_view_or_none(single):
    made = plan(12, single, pretrain_share=1 / 3)
    rounds = [made.sampled(number) for number in range(1, 41)]
    counts = {sum(made.view_of[site] == view for site in sites) for sites in rounds for view in (0, 1)}
    assert not counts & {1, 2}
    large = {site for site in made.sites if single > 4 or site[0] == "h"}  # two of each view are too few
    assert set().union(*rounds) == large
    assert min(map(len, rounds)) >= made.least


def test_groups_that_are_too_small_do_not_cluster_by_themselves():
    made = plan(12, 12, protection={"colluders": 5})  # six sites hold each view, a sum needs seven
    assert [made.clusters_itself(group) for group in range(3)] == [True, False, False]
    made = plan(12, 12, protection={"colluders": 4})
    assert [made.clusters_itself(group) for group in range(3)] == [True, True, True]


def test_every_planned_cohort_is_one_that_a_masked_site_accepts():
    made = plan(12, 12)
    for number in (1, 41, 47):
        for stage in made.stages(number):
            assert len(made.members(stage, number)) >= made.least >= made.protection.colluders_for(24) + 2


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"study__rounds": 1}, "study.rounds: 1 rounds are fewer than the 2 of pre-training"),
        ({"protection__colluders": 2}, "algorithm.name: 3 sites train .*'full', but a sum needs 4"),
        (
            {"data__views": [-1, -1, 0, 0, 0], "algorithm__view_types": "hidden"},
            "algorithm.name: 2 sites train .*'full', but a sum needs 3",
        ),
        ({"algorithm__pretrain_start": "independent"}, "algorithm.pretrain_rounds"),
        ({"algorithm__participation": 0.9, "algorithm__view_types": "hidden"}, "algorithm.participation"),
    ],
)
def test_a_study_that_cannot_be_is_refused(changes, key):
    with pytest.raises(ConfigError, match=key):
        tiny(**changes)


def test_a_study_without_rounds_only_evaluates():
    assert len(tiny(study__rounds=0).exchanges(1)) > 1


def test_other_models_and_data_sets_are_refused():
    with pytest.raises(ConfigError, match=r"model\.name: fmcsc"):
        build(Study.parse(TINY.replace('"multiview"', '"logistic-regression"').replace(NETWORK, "")))
    text = TINY.replace(VIEWS, "")
    with pytest.raises(ConfigError, match=r"data\.name: fmcsc needs several views of a record"):
        build(Study.parse(text.replace('"tests.algorithms.fmcsc_case:blobs"', '"breast-cancer"')))


def test_update_fields_are_the_study_s_lanes_and_scalars_are_wide():
    algorithm = tiny(protection__bits=24, protection__bound=0.5)
    layout = algorithm.exchanges(3)[FULL].layout
    widths = {field.name: (field.bits, field.bound) for field in layout.fields}
    assert widths["update/enc.0.0.weight"] == (24, 0.5)
    assert widths["weight"] == (64, 1.0)


def largest_step(one):
    steps = [value.abs().max() / one["weight"] for name, value in one.items() if name.startswith("update/")]
    return float(max(steps))


def test_the_step_size_falls_from_round_to_round_in_every_kind_of_training():
    # Adam's first step is as long as its step size in every coordinate; so each phase takes one step,
    # and every site starts from the received model.
    steps = {"local_epochs": 1, "distillation_epochs": 1, "batch_size": 99, "model_contrast": False}
    keys = {f"algorithm__{name}": value for name, value in steps.items()}
    rounds = until(3, **keys, algorithm__learning_rate_decay=0.25, algorithm__weights="equal")
    for number, size in ((3, 1e-3), (4, 0.25e-3)):
        for index in range(3):
            got = rounds.take(number, index)
            counted = [largest_step(one) for one in got.values() if one["weight"]]
            assert counted == pytest.approx([size] * len(counted), rel=0.01)
            assert len(counted) == (len(got) if number == 4 or not index else 3)  # once single views count
