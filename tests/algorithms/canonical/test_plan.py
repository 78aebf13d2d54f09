"""What a study sums, what one record can add to each sum, and which studies are refused."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from secfed.algorithms.canonical.algorithm import Canonical
from secfed.algorithms.canonical.clusters import local_sums
from secfed.algorithms.canonical.plan import CanonicalStage
from secfed.algorithms.canonical.projections import embedded
from secfed.algorithms.canonical.site import CanonicalSite
from secfed.algorithms.data.multiview.base import MultiviewSite
from secfed.algorithms.models.feature_maps import by_rows, unit
from secfed.config.schema import checked
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.settings import PrivacySection
from secfed.dp.training.unit_sums import UnitSums
from secfed.errors import ConfigError, MalformedMessage, WrongState
from secfed.wire.layout import State
from tests.algorithms.canonical_case import SIZES, study, tiny

ALL: dict[str, Any] = {
    "algorithm__maps": ["l2", "hog"],
    "algorithm__starts": "divisive",
    "algorithm__refinements": 2,
}
STANDARD: dict[str, Any] = {**ALL, "algorithm__maps": ["standard", "sqrt-l2+projection:5"]}
CUBES: dict[str, Any] = {"algorithm__starts": "cubes", "algorithm__restarts": 1}
THREE: dict[str, Any] = {
    **CUBES,
    "data__views": 3,
    "algorithm__maps": "projection:6",
    "algorithm__cross_radius": 0.5,
}
STUDIES = [ALL, STANDARD, THREE]


def names(algorithm: Canonical, number: int) -> list[str]:
    return [exchange.name for exchange in algorithm.exchanges(number)]


def test_the_sums_of_a_study() -> None:
    assert names(tiny(), 1) == ["moments", "cross", *(f"kmeans-0{n}" for n in range(1, 5)), "objective"]
    assert names(tiny(), 2) == ["table"]
    everything = [
        "scale",
        "moments",
        "cross",
        *(f"split-{n}" for n in range(1, 5)),
        *(f"kmeans-0{n}" for n in range(1, 5)),
    ]
    assert names(tiny(**STANDARD), 1) == [*everything, "objective", "refine-1", "refine-2"]
    alone = ["moments", "cross", "cubes", *(f"kmeans-0{n}" for n in range(1, 5))]
    assert names(tiny(**CUBES), 1) == alone  # of one restart nobody asks how well it did
    with pytest.raises(WrongState):
        tiny().exchanges(3)


@pytest.mark.parametrize("ones", [2, 3])
def test_who_is_asked_and_who_adds_more_than_zeros(ones: int) -> None:
    algorithm = tiny(**ALL, data__holds=[-1, -1, -1, 1, *[0] * ones])
    everybody = list(algorithm.setting.sites)
    full, single = everybody[:3], everybody[4:]
    for number in (1, 2):
        for exchange in algorithm.exchanges(number):
            asked = list(algorithm.members(number, exchange, everybody))
            parts = algorithm.contributors(number, exchange)
            if exchange.name == "cross" or ones < 3:  # the others would be alone, or two
                assert (asked, parts) == (full, ())
            else:
                assert asked == [*full, *single]
                assert parts == ((frozenset(full), 3), (frozenset(single), 3))


@pytest.mark.parametrize("changes", [{}, *STUDIES])
def test_shares_of_the_budget_add_up_to_all_of_it(changes: dict[str, Any]) -> None:
    stages = tiny(**changes).plan.summing
    assert sum(stage.share for stage in stages) == pytest.approx(1.0)
    assert {stage.kind for stage in stages if not stage.share} <= {"scale"}
    assert tiny(**changes).plan.scoring[0].share == 0


def records(count: int, algorithm: Canonical, rng: np.random.Generator, extreme: bool) -> MultiviewSite:
    """Records of all views, on any scale."""
    views = []
    for size in algorithm.plan.raw_sizes:
        values = rng.normal(size=(count, size)) * 10.0 ** rng.integers(-3, 4)
        if extreme:
            values = rng.choice([0.0, 1.0, 3e38, -3e38, 1e-45], size=(count, size))
        views.append(torch.from_numpy(values.astype(np.float32)))
    return MultiviewSite(tuple(views), torch.from_numpy(rng.integers(0, 3, count)))


def broadcast(algorithm: Canonical, stage: CanonicalStage, rng: np.random.Generator) -> State:
    """One that sites let pass: any numbers up to the study's bound."""
    size = 10.0 ** rng.integers(-6, 7)
    shapes = algorithm.plan.broadcast(stage)
    return {name: torch.from_numpy(rng.uniform(-size, size, shape)) for name, shape in shapes.items()}


def added(
    algorithm: Canonical,
    data: MultiviewSite,
    number: int,
    stage: CanonicalStage,
    sent: State,
    units: UnitSums | None = None,
) -> torch.Tensor:
    program = CanonicalSite(algorithm.plan, algorithm.maps, data)
    if units is not None:
        program.use_unit_sums(units)
    given = program.contribute(number, stage.exchange, sent)
    fields = {field.name: field for field in stage.exchange.layout.fields}
    assert given.keys() == fields.keys()
    for name, value in given.items():
        assert float(torch.as_tensor(value).abs().max()) <= fields[name].bound  # or fixed point would clip it
    return torch.cat([torch.as_tensor(given[name], dtype=torch.float64).reshape(-1) for name in fields])


def stages(algorithm: Canonical) -> list[tuple[int, CanonicalStage]]:
    return [(number, stage) for number in (1, 2) for stage in algorithm.stages(number)]


@pytest.mark.parametrize("changes", STUDIES)
def test_no_record_adds_more_than_the_sensitivity_whatever_is_broadcast(changes: dict[str, Any]) -> None:
    algorithm, rng = tiny(**changes), np.random.default_rng(1)
    for number, stage in stages(algorithm):
        most = 0.0
        for turn in range(40):
            data, sent = records(1, algorithm, rng, turn % 2 == 1), broadcast(algorithm, stage, rng)
            norm = float(added(algorithm, data, number, stage, sent).norm())
            assert norm <= stage.sensitivity * (1 + 1e-9)
            most = max(most, norm)
        if math.isfinite(stage.sensitivity):
            assert most >= 0.8 * stage.sensitivity  # or the noise would be wasted
        else:
            assert stage.kind == "scale"


UNITS: list[dict[str, Any]] = [
    {"unit": "group", "group_size": 3},
    {"unit": "group", "group_size": 4, "adjacency": "replace-patient"},
]
PATIENTS = (0, 1, 1, 1, 2, 2, 3, 1, 4, 4, 1)  # the second has more records than a group


def units_of(privacy: dict[str, Any]) -> UnitSums:
    table = {"noise": "sum", "epsilon": 1.0, "delta": 1e-5, **privacy}
    settings = checked(PrivacySection, table, "privacy")
    return UnitSums(settings, seed=1, random=lambda *_: SecureRandom.for_simulation(1, "test"))


@pytest.mark.parametrize("privacy", UNITS, ids=["group", "patient"])
@pytest.mark.parametrize("changes", STUDIES)
def test_no_group_and_no_patient_adds_more_than_one_record_may(
    changes: dict[str, Any], privacy: dict[str, Any]
) -> None:
    """All records of one unit are replaced by others, or are all the same, or nothing: 2 C apart at most."""
    algorithm, rng = tiny(**changes), np.random.default_rng(3)
    weights = units_of(privacy).weights(len(PATIENTS), PATIENTS)
    assert weights is not None
    of_patients = "adjacency" in privacy
    assert int((weights == 0).sum()) == (1 if of_patients else 2)  # more than a group holds; none to fill one
    mine = np.flatnonzero(np.asarray(PATIENTS) == 1)
    if not of_patients:
        units = units_of(privacy).plan(len(PATIENTS))
        mine = units[0]
    assert float(weights[mine].sum()) == pytest.approx(1.0)
    for number, stage in stages(algorithm):
        if stage.kind == "scale":
            continue  # without a bound
        most = 0.0
        for turn in range(12):  # every combination of the three choices below
            before = records(len(PATIENTS), algorithm, rng, turn % 2 == 1)
            others = records(1 if turn % 4 else len(mine), algorithm, rng, turn % 3 == 1)
            views = [view.clone() for view in before.views if view is not None]
            for view, other in zip(views, others.views, strict=True):
                view[mine] = 0.0 if turn == 0 else other  # one record for all, where there is but one
            labels = before.labels.clone()
            labels[mine] = others.labels
            sent, parts = broadcast(algorithm, stage, rng), []
            for data in (before, MultiviewSite(tuple(views), labels)):
                given = MultiviewSite(data.views, data.labels, PATIENTS)
                parts.append(added(algorithm, given, number, stage, sent, units_of(privacy)))
            apart = float((parts[0] - parts[1]).norm())
            assert apart <= 2 * stage.sensitivity * (1 + 1e-9)
            most = max(most, apart)
        assert most > 0


@pytest.mark.parametrize("changes", STUDIES)
def test_what_a_site_adds_is_the_sum_over_its_records(changes: dict[str, Any]) -> None:
    algorithm, rng = tiny(**changes), np.random.default_rng(2)
    data = records(6, algorithm, rng, extreme=False)
    for number, stage in stages(algorithm):
        sent = broadcast(algorithm, stage, rng)
        alone = [
            MultiviewSite(tuple(view[at : at + 1] for view in data.views), data.labels[at : at + 1])
            for at in range(6)
        ]
        parts = [added(algorithm, one, number, stage, sent) for one in alone]
        whole = added(algorithm, data, number, stage, sent)
        assert torch.allclose(torch.stack(parts).sum(dim=0), whole, rtol=1e-9, atol=1e-9), stage.kind


def test_a_broadcast_of_another_shape_is_refused() -> None:
    algorithm = tiny(**ALL)
    server = algorithm.server()
    for exchange in algorithm.exchanges(1):
        algorithm.check_broadcast(1, exchange, server.broadcast(1, exchange))
    cross = algorithm.exchanges(1)[1]
    with pytest.raises(MalformedMessage):
        algorithm.check_broadcast(1, cross, {"mean/0": torch.zeros(5), "mean/1": torch.zeros(200)})


REFUSED = [
    ({"study__rounds": 2}, r"study\.rounds: canonical takes one round of sums, not 2"),
    ({"model__name": "mlp"}, r"model\.name: canonical has no network, so 'mlp'"),
    ({"protection__name": "encrypted"}, r"protection\.name: under encrypted every site repeats"),
    ({"data__views": 1, "data__holds": [-1, -1, -1, 0]}, r"data\.name: canonical needs several views"),
    ({"data__holds": [-1, -1, 0, 0, 1, 1]}, r"data: 2 sites hold all views, but a sum over them needs 3"),
    ({"algorithm__maps": ["l2"]}, r"algorithm\.maps: has 1 entries for 2 views"),
    ({"algorithm__maps": "hog"}, r"algorithm\.maps: .hog. needs square images, and view 1 has 12 features"),
    ({"algorithm__maps": "l3"}, r"algorithm\.maps: there is no map 'l3'"),
    ({"algorithm__dimensions": 10}, r"algorithm\.dimensions: 10 are more than the 9 in which"),
    ({"algorithm__ridge": 0.0}, r"algorithm\.ridge"),
    ({"algorithm__restarts": 0}, r"algorithm\.restarts"),
    ({"algorithm__starts": "first"}, r"algorithm\.starts"),
    ({"algorithm__minimum": 1}, r"algorithm\.minimum"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED, ids=lambda part: str(part)[:40])
def test_a_study_that_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        tiny(**changes)
    assert refused.value.remedy


def test_other_records_are_refused() -> None:
    from secfed.algorithms.framework.setting import Setting

    made = study()
    data: Any = SimpleNamespace(sites=("a", "b", "c"))
    with pytest.raises(ConfigError, match="needs several views of a record"):
        Canonical(Setting(made, data, lambda: None), made.algorithm)  # type: ignore[arg-type]


def test_dimensions_are_twice_the_classes_as_far_as_views_correlate() -> None:
    assert tiny().plan.dimensions == 6
    assert tiny(algorithm__maps=["l2", "projection:4"]).plan.dimensions == 4
    assert tiny(algorithm__dimensions=2).plan.dimensions == 2
    assert tiny(**THREE).plan.sizes == (6, 6, 6)
    assert tiny().plan.sizes == SIZES[:2]


@pytest.mark.parametrize("count", [2, 5, 30, 64, 65, 130, 257, 2050])
def test_no_row_depends_on_the_others_to_the_last_bit(count: int) -> None:
    """Where centres tie to rounding, the last bit decides the cluster of a record that is there in both."""
    generator = torch.Generator().manual_seed(count)
    rows = torch.randn(count, 200, generator=generator, dtype=torch.float64)
    matrix = torch.randn(200, 20, generator=generator, dtype=torch.float64)
    whole = by_rows(rows, matrix)
    assert torch.allclose(whole, rows @ matrix)
    assert torch.equal(by_rows(rows[1:], matrix), whole[1:])
    assert torch.equal(by_rows(rows[:-1], matrix), whole[:-1])


def test_centres_that_tie_let_no_record_move_another() -> None:
    """Centres one last digit apart, from an aggregator that looks for a flip; in all restarts."""
    generator = torch.Generator().manual_seed(5)
    worst, sizes = 0.0, ((64, 200), (200, 20))
    for _ in range(20):
        drawn = [torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes]
        records, mean = unit(drawn[0]), torch.ones(200, dtype=torch.float64)
        base = unit(torch.randn(10, 1, 20, generator=generator, dtype=torch.float64))
        centres = base * (1 + 2.0**-52 * torch.arange(10, dtype=torch.float64)[:, None] % 3)
        whole, fewer = (
            local_sums(embedded([some], [mean], [drawn[1]]), centres) for some in (records, records[1:])
        )
        worst = max(worst, float((whole - fewer).norm()))
    assert worst <= math.sqrt(10) * (1 + 1e-9)
