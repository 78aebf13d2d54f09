"""FedMAE, FedX and FedU in the forms that sums allow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.spatial.distance import jensenshannon

from secfed.algorithms.framework.parameters import read_parameters
from secfed.algorithms.losses.self_supervised import (
    bootstrap_loss,
    masked_error,
    patches_of,
    relation_loss,
)
from secfed.algorithms.models import image_branches
from secfed.algorithms.vision_language import self_supervised
from secfed.errors import ConfigError
from secfed.study.study import Study
from secfed.testing import check_algorithm
from tests.algorithms.loop import Rounds, changed, same
from tests.algorithms.vlp_case import AVERAGING
from tests.algorithms.vlp_case import study as toy

SMALL = """
[study]
name = "images"
rounds = 2
seed = 5
[algorithm]
name = "vlp-fedavg"
local_steps = 2
batch_size = 6
learning_rate = 0.01
evaluation_batch = 4
device = "cpu"
[model]
name = "vision-language"
[data]
name = "chest-synthetic"
sites = 4
train = 8
test = 4
size = 16
[protection]
name = "plain"
colluders = 1
"""
METHODS = {
    "vlp-fedmae": self_supervised.VlpMae,
    "vlp-fedx": self_supervised.VlpX,
    "vlp-fedu": self_supervised.VlpU,
}
SITE = "hospital-2"


def study(name: str, **changes: object) -> Study:
    return changed(SMALL, {"algorithm__name": name, **changes})


def encoders(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model.items() if not name.startswith("branch.")}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_it_keeps_the_rules_of_algorithms(name: str) -> None:
    # Keys' offsets have no gradient but rounding's, of which AdamW would make whole steps.
    made = study(name, algorithm__evaluate="last", algorithm__optimizer="sgd")
    check_algorithm(METHODS[name], study=made)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "vlp-fedmae" else pytest.mark.slow) for name in METHODS]
)
def test_without_the_loss_of_images_it_is_federated_averaging_bit_by_bit(name: str) -> None:
    plain = Rounds(study("vlp-fedavg", study__rounds=1)).run().server.model()
    ours = Rounds(study(name, study__rounds=1, algorithm__image_loss=0.0)).run().server.model()
    assert same(encoders(ours), plain)
    with_it = Rounds(study(name, study__rounds=1)).run().server.model()
    assert not same(encoders(with_it), plain)
    started = Rounds(study(name)).server.model()
    assert any(not torch.equal(with_it[one], started[one]) for one in started if one.startswith("branch."))


def test_a_model_of_ones_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="built-in dual encoder"):
        Rounds(toy(algorithm={**AVERAGING, "name": "vlp-fedmae"}))


def test_only_hidden_patches_are_rebuilt_and_the_encoder_does_not_see_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Rounds(study("vlp-fedmae"))
    network = made.programs[SITE].network
    images = made.programs[SITE].data.train.images[:3]
    seen: dict[str, Any] = {}
    monkeypatch.setattr(
        image_branches, "masked_error", lambda *given: seen.update(given=given) or given[0].sum()
    )

    def rebuilt(shown: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        image_branches.rebuilding_error(network, shown, 0.75)
        result: torch.Tensor = seen["given"][0]
        return result

    first = rebuilt(images)
    hidden = seen["given"][2]
    assert hidden.sum(dim=1).tolist() == [3, 3, 3]  # of the four patches of 8 pixels a side
    where = hidden.reshape(3, 1, 2, 2).repeat_interleave(8, dim=2).repeat_interleave(8, dim=3)
    assert torch.equal(rebuilt(images + where * 9.0), first)
    assert not torch.equal(rebuilt(images + ~where * 9.0), first)


def site_after_a_round(**changes: object) -> Any:
    made = Rounds(study("vlp-fedu", study__rounds=3, **changes))
    made.round(1)
    return made, made.programs[SITE]


def start_of(program: Any, received: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = program._start(received)
    return found


def test_a_site_keeps_its_predictor_where_its_encoder_moved_far() -> None:
    for divergence, own in ((0.0, True), (1e9, False)):
        made, program = site_after_a_round(algorithm__divergence=divergence)
        received, kept = made.server.model(), program.own
        start = start_of(program, received)
        for name, value in start.items():
            wanted = kept if own and name.startswith("branch.") else received
            assert torch.equal(value, wanted[name]), name


def test_the_target_follows_slowly_and_gets_no_gradient() -> None:
    _, program = site_after_a_round(algorithm__momentum=0.9)
    slow = {n: v.clone() for n, v in program._target.named_parameters()}
    begun = {name: value.clone() for name, value in read_parameters(program.network).items()}
    optimiser = torch.optim.SGD(program.network.parameters(), lr=0.0)
    program.prepare_optimiser(optimiser)
    optimiser.step()
    for name, value in program._target.named_parameters():
        moved = name.startswith(("image_encoder.", "image_align."))
        wanted = 0.9 * slow[name] + 0.1 * begun[name] if moved else slow[name]
        torch.testing.assert_close(value, wanted)
        assert not value.requires_grad


def test_patches_are_squares_row_by_row() -> None:
    images = torch.arange(2 * 1 * 4 * 4.0).reshape(2, 1, 4, 4)
    found = patches_of(images, 4)
    assert found[0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    hidden = torch.tensor([[True, False, False, False], [False, False, False, True]])
    rebuilt = found.clone()
    rebuilt[:, 1] = 100.0  # seen: an error there costs nothing
    assert float(masked_error(rebuilt, images, hidden)) == 0.0
    rebuilt[1, 3] += 3.0
    assert float(masked_error(rebuilt, images, hidden)) == pytest.approx(9.0 / 2)


def test_relations_are_compared_by_jensen_and_shannon() -> None:
    one, other, seen = torch.nn.functional.normalize(torch.randn(3, 5, 4), dim=2)
    expected = 0.0
    for row in range(5):
        rest = [at for at in range(5) if at != row]
        first, second = (torch.softmax(view[row] @ seen[rest].T / 0.3, dim=0) for view in (one, other))
        expected += jensenshannon(first.numpy(), second.numpy()) ** 2 / 5
    assert float(relation_loss(one, other, seen, temperature=0.3)) == pytest.approx(expected, rel=1e-4)
    assert float(relation_loss(one[:2], other[:2], seen[:2], temperature=0.3)) == 0.0


def test_the_bootstrap_is_a_distance_on_the_sphere() -> None:
    one, other = torch.randn(6, 4), torch.randn(6, 4)
    ours, theirs = (value / value.norm(dim=1, keepdim=True) for value in (one, other))
    expected = (ours - theirs).square().sum(dim=1).mean()
    assert float(bootstrap_loss(one, other)) == pytest.approx(float(expected), rel=1e-5)
