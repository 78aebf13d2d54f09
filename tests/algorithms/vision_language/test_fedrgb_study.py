"""FedRGB as a study: dropouts, memory, options, protection, privacy, and what the teacher is for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from secfed.algorithms.dro.rule import LEAST_STEP_SCALE
from secfed.algorithms.framework.parameters import read_parameters
from secfed.algorithms.losses.vlp import anchor_loss
from secfed.algorithms.vision_language.fedrgb_site import FedRgbOptions
from secfed.config.schema import checked
from secfed.dp.accounting.events import Gaussian, PoissonSampledGaussian
from secfed.errors import ConfigError, MalformedMessage, WrongState
from secfed.study.study import Study
from tests.algorithms.loop import add, same
from tests.algorithms.vision_language.test_fedrgb import RGB, SITE, aligner, at, rounds
from tests.algorithms.vlp_case import TINY, Rounds, study
from tests.algorithms.whole import paid, run


def options(**changes: Any) -> FedRgbOptions:
    return checked(FedRgbOptions, {"name": "fedrgb", **changes}, "algorithm")


# dropouts, memory


def test_a_site_without_an_aligner_of_this_round_sits_out_and_comes_back():
    made, index = at("encoder", warmup_rounds=0)  # so that it has an aligner, of round 1
    assert aligner(made.programs[SITE])
    made.take(2, index, absent=(SITE,))
    before = made.programs[SITE].weight
    for later in (index + 1, index + 2):
        exchange = made.algorithm.exchanges(2)[later]
        with pytest.raises(WrongState, match="no aligner of its own in round 2"):
            made.programs[SITE].contribute(2, exchange, made.server.broadcast(2, exchange))
        made.take(2, later, absent=(SITE,))
    assert made.programs[SITE].weight == before
    old = aligner(made.programs[SITE])
    made.round(3)
    assert not same(aligner(made.programs[SITE]), old)


def test_a_site_whose_encoder_sum_was_lost_may_train_the_teacher_with_its_own_aligner():
    made, index = at("encoder")
    made.take(2, index, lost=(SITE,))
    made.take(2, index + 1)
    assert set(made.take(2, index + 2)) == set(made.programs)


def test_a_site_goes_on_from_what_it_saved():
    made, index = at("weights")
    exchange, got = made.exchange(2, index), made.contributions(2, index)
    made.server.absorb(2, exchange, add(exchange, got))
    fresh = made.algorithm.site(SITE)
    fresh.load({name: value.clone() for name, value in made.programs[SITE].save().items()})
    last = made.algorithm.exchanges(2)[index + 1]
    state = made.server.broadcast(2, last)
    one, other = (program.contribute(2, last, state) for program in (made.programs[SITE], fresh))
    assert same(one, other)
    assert same(made.programs[SITE].save(), fresh.save())


def test_a_site_that_has_not_trained_yet_saves_that_and_nothing_of_another_study_is_loaded():
    made = rounds()
    program = made.programs[SITE]
    program.load(program.save())
    made.round(1)
    made.round(2)
    saved = program.save()
    name = next(name for name in saved if name.startswith("aligner/"))
    with pytest.raises(MalformedMessage, match="another model"):
        program.load({**saved, name: torch.zeros(2)})
    with pytest.raises(MalformedMessage, match="another model"):
        program.load({key: value for key, value in saved.items() if key != name})
    with pytest.raises(MalformedMessage, match="round"):
        program.load({key: value for key, value in saved.items() if key != "aligner_round"})


def test_the_server_is_sent_no_aligner_no_loss_and_no_weight():
    made = rounds()
    seen: set[str] = set()
    for number in (1, 2, 3, 4):
        for index in range(len(made.algorithm.exchanges(number))):
            for summands in made.take(number, index).values():
                seen |= set(summands)
    extra = {name for name in seen if not name.startswith(("update/", "eval/"))}
    assert extra == {"loss", "dro/a", "dro/a2", "dro/a2_rest"}
    assert not any(name.startswith(("aligner", "dro/site")) for name in made.server.save())


# protection and privacy


PRIVACY = """
[privacy]
unit = "group"
group_size = 4
epsilon = 8.0
delta = 1e-4
"""


def test_under_privacy_both_stages_and_every_loss_are_paid(tmp_path):
    table = {**RGB, "warmup_steps": 1, "guided_steps": 2, "teacher_steps": 3}
    made = Study.parse(TINY + PRIVACY).replace("algorithm", table)
    for one in run(made, tmp_path).privacy.sites:
        assert 0.95 * 8.0 < one.epsilon <= 8.0
        assert one.refused == 0
        events = paid(tmp_path, one.site, made.data.name)
        steps = [(PoissonSampledGaussian, count) for count in (1, 2, 3)]
        of_a_round = [steps[1], (Gaussian, 1), steps[2]]
        assert [(type(event), event.times) for event in events] == [steps[0], *of_a_round, *of_a_round]


# options


def test_defaults_are_the_papers():
    made = options()
    assert (made.guided_steps, made.teacher_steps, made.batch_size) == (50, 50, 388)
    assert (made.learning_rate, made.gamma, made.rho) == (2e-5, 1.0, 1.0)
    assert (made.guidance, made.beta, made.warmup_rounds) == (1.0, 2.0, 1)
    assert (made.teacher, made.guidance_loss, made.dro_task_term) == ("robust", "l2", True)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"teacher": "averaged", "rho": 0.1}, "rho"),
        ({"teacher": "averaged", "beta": 2.0}, "beta"),
        ({"guidance": 0.0, "guidance_loss": "contrastive"}, "guidance_loss"),
        ({"guidance": -1.0}, "guidance"),
        ({"teacher": "median"}, "teacher"),
    ],
)
def test_options_without_effect_or_meaning_are_refused(changes, key):
    with pytest.raises(ConfigError, match=rf"algorithm\.{key}"):
        options(**changes)


def test_warm_up_must_leave_a_round_for_the_teacher():
    with pytest.raises(ConfigError, match=r"algorithm\.warmup_rounds"):
        rounds(warmup_rounds=3)
    names = [exchange.name for exchange in rounds(warmup_rounds=0).algorithm.exchanges(1)]
    assert names == ["encoder", "weights", "teacher"]


def test_robust_weights_of_three_sites_are_refused():
    made = study(algorithm=RGB, data__sites=3, protection__threshold=3)
    with pytest.raises(ConfigError, match=r"algorithm\.rho"):
        Rounds(made)


def test_weights_without_a_floor_are_refused_where_sums_are_protected():
    low = {**RGB, "least_step_scale": LEAST_STEP_SCALE / 2}
    Rounds(study(algorithm=low))
    with pytest.raises(ConfigError, match=r"algorithm\.least_step_scale: 0\.025 is less than 0\.05"):
        Rounds(study(algorithm=low, protection__name="masked"))
    Rounds(study(algorithm={**low, "least_step_scale": LEAST_STEP_SCALE}, protection__name="masked"))


# what it is for

CHEST = """
[study]
name = "chest"
rounds = 2
seed = {seed}
[algorithm]
name = "fedrgb"
warmup_steps = 20
guided_steps = 15
teacher_steps = 30
batch_size = 32
learning_rate = 1.5e-3
rho = 0.0
beta = 20.0
[model]
name = "vision-language"
size = "tiny"
temperature = 0.1
[data]
name = "chest-synthetic"
sites = 3
train = 256
test = 64
[protection]
name = "plain"
min_cohort = 3
"""


@pytest.mark.slow
def test_a_trained_teacher_moves_less_under_distortion_than_the_mean_of_the_local_aligners():
    """In two of three seeds. The encoders are bent by ten steps on one site's pairs, with its own aligner."""
    wins = 0
    for seed in range(3):
        made = Rounds(Study.parse(CHEST.format(seed=seed)))
        made.round(1)
        made.round(2)
        algorithm, model = made.algorithm, made.server.model()
        locals_ = [aligner(program) for program in made.programs.values()]
        mean = {name: torch.stack([one[name] for one in locals_]).mean(dim=0) for name in locals_[0]}
        program = next(iter(made.programs.values()))
        distorted = algorithm.network({**model, **locals_[0]})
        names = algorithm.encoder_names
        stage = replace(algorithm.stages(2)[0], name="distortion", steps=10, trained=names)
        program.network = distorted
        program.fit(2, stage, lambda network, batch: network.objective(network(*batch)).total)
        bent = {name: value for name, value in read_parameters(distorted).items() if name in names}
        test = program.data.test
        moved = []
        for aligner_ in ({name: model[name] for name in algorithm.align_names}, mean):
            with torch.no_grad():
                before, after = (
                    algorithm.network({**model, **encoder, **aligner_})(test.images, test.tokens)
                    for encoder in ({}, bent)
                )
            moved.append(float(anchor_loss(after, before)))
        wins += moved[0] < moved[1]
    assert wins >= 2
