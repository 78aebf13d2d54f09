"""Two studies over the same records: what their sums tell together, through real sites and masked sums."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

from secfed.algorithms.data.memory import SiteTables
from secfed.algorithms.framework.base import ForwardingProgram
from secfed.algorithms.framework.parameters import read_parameters
from secfed.study.build import build
from secfed.study.study import Study
from tests.secfed.durable_case import VICTIM, Consortium, Killed, Plug, study, with_stack

PEOPLE = ("hospital-1", "hospital-2", "hospital-3", "hospital-4")
LEFT_OUT = PEOPLE[3]
TWIN = """
study = { name = "wards", rounds = 1, seed = 3 }
algorithm = { name = "fedavg", batch_size = BATCH, learning_rate = 2.0, weighting = "equal" }
model = { name = "logistic-regression" }
data = { name = "tests.secfed.site.test_twin_studies:wards", hospitals = SITES }
protection = { name = "masked" }
"""


def wards(hospitals: int) -> SiteTables:
    """The same noisy records of a hospital, whoever else takes part."""
    rng = np.random.default_rng(5)
    made = {site: (rng.normal(size=(40, 6)), rng.integers(0, 2, 40)) for site in PEOPLE}
    return SiteTables({site: made[site] for site in PEOPLE[:hospitals]}, classes=2, standardize=False)


def twin(sites: int, batch: int) -> Study:
    return Study.parse(TWIN.replace("SITES", str(sites)).replace("BATCH", str(batch)))


def flat(state: Any) -> torch.Tensor:
    return torch.cat([torch.as_tensor(state[name]).reshape(-1).double() for name in sorted(state)])


def sum_of(chosen: Study, folder: Path, *, simulated: bool) -> torch.Tensor:
    """The sum of updates, as the aggregator learns it."""
    with ExitStack() as stack:
        made = with_stack(stack, Consortium(chosen, folder, simulated, people=PEOPLE))
        after = load(made.run())
        before = read_parameters(build(chosen).setting.model())  # type: ignore[attr-defined]
        return (flat(after) - flat(before)) * len(made.hospitals)


def update_of_the_left_out(folder: Path, batch: int, *, simulated: bool) -> torch.Tensor:
    """What the hospital contributed to the larger study, from what its own disk holds."""
    with ExitStack() as stack:
        made = with_stack(stack, Consortium(twin(4, batch), folder, simulated, people=PEOPLE))
        memory = made.hospitals[LEFT_OUT].open.store  # type: ignore[union-attr]
        algorithm: Any = build(made.chosen, site_seed=None if simulated else memory.site_seed())
        server, (exchange, *_) = algorithm.server(), algorithm.exchanges(1)
        given = algorithm.site(LEFT_OUT).contribute(1, exchange, server.broadcast(1, exchange))
        return flat({name: value for name, value in given.items() if name.startswith("update/")})


def distance(folder: Path, batch: int, *, simulated: bool) -> float:
    """From the difference of two sums to the update of the hospital that one of them lacks, over its norm."""
    update = update_of_the_left_out(folder, batch, simulated=simulated)  # the sites keep their secrets
    larger = sum_of(twin(4, batch), folder, simulated=simulated)
    smaller = sum_of(twin(3, batch), folder, simulated=simulated)
    return float((larger - smaller - update).norm() / update.norm())


def test_with_secret_batches_the_difference_of_two_sums_is_not_an_update(tmp_path: Path) -> None:
    assert distance(tmp_path / "public", 4, simulated=True) < 1e-5  # what a public order gives away
    assert distance(tmp_path / "secret", 4, simulated=False) > 0.05


def test_with_full_batches_it_is_so_near_twins_are_shown_to_a_person(tmp_path: Path) -> None:
    """Nothing is random in a full batch; SECURITY.md says so."""
    assert distance(tmp_path, 64, simulated=False) < 1e-5


@pytest.mark.parametrize(("key", "value"), [("protection.deadline_s", 30.0), ("algorithm.device", "cpu")])
def test_another_deadline_or_device_is_the_same_study_and_contributes_no_second_time(
    key: str, value: object, tmp_path: Path
) -> None:
    first = study("masked", None)
    second = first.replace(key, value)
    with ExitStack() as stack:
        made = with_stack(stack, Consortium(first, tmp_path))
        made.run()
        assert made.outcomes
    with ExitStack() as stack:
        again = with_stack(stack, Consortium(second, tmp_path))
        assert again.terms.study_id == made.terms.study_id
        again.run()
        assert [stage for stage, _, _, reply in again.frames if reply is not None] == []
        refused = [stage for stage, _, _, _ in again.frames]
        assert refused
        assert all("was already worked on" in stage for stage in refused if stage.startswith("train"))
        assert all(hospital.trained == 0 for hospital in again.hospitals.values())


def test_every_hospital_and_every_study_has_a_seed_of_its_own_until_the_study_is_over(tmp_path: Path) -> None:
    seeds = []
    with ExitStack() as stack:
        for chosen in (study("masked", None), study("masked", None).replace("study.name", "other")):
            made = with_stack(stack, Consortium(chosen, tmp_path, False))
            for hospital in made.hospitals.values():
                memory = hospital.open.store  # type: ignore[union-attr]
                seeds.append(memory.site_seed())
                assert hospital.start().store.site_seed() == seeds[-1]  # and after a restart
                assert "local-draws" in hospital.files
        assert len({*seeds, chosen.seed}) == 7
        assert all(0 <= seed < 2**63 for seed in seeds)
        made.run()
        for hospital in made.hospitals.values():
            assert hospital.open is not None
            hospital.open.finish()
            assert "local-draws" not in hospital.files


def test_work_that_a_crash_cut_off_is_done_again_with_the_same_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug = Plug(monkeypatch)
    with ExitStack() as stack:
        made = with_stack(stack, Consortium(study("masked", None), tmp_path, False))
        hospital = made.hospitals[VICTIM]
        given: list[Any] = []
        program = hospital._program

        def watched(*arguments: Any) -> Any:
            inner = program(*arguments)

            class Watched(ForwardingProgram):
                def contribute(self, *where: Any) -> Any:
                    given.append(inner.contribute(*where))
                    return given[-1]

            return Watched(inner)

        monkeypatch.setattr(hospital, "_program", watched)
        hospital.start()
        plug.set("site: before contribution noted")

        def deliver(_stage: str, asked: Any, frame: Any) -> bytes:
            plug.only = asked is hospital
            try:
                return bytes(asked.handle(frame))
            except Killed:
                asked.start()
                return bytes(asked.handle(frame))
            finally:
                plug.only = False

        made.deliver = deliver
        made.run()
        assert plug.pulled == 1
        first, again, *_ = given
        assert first.keys() == again.keys()
        assert all(torch.equal(torch.as_tensor(first[name]), torch.as_tensor(again[name])) for name in first)
