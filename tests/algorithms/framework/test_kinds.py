"""Sites of several kinds in one sum: each kind that reads something else hides itself, or is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import torch

from secfed.algorithms.framework.base import Algorithm, SiteProgram
from secfed.algorithms.framework.kinds import by_kind, drawn, of_large_kinds, parts_by_kind
from secfed.algorithms.framework.links import LINK, split
from secfed.algorithms.framework.staged import PlannedStages
from secfed.crypto.refusals import Refusal
from secfed.errors import RangeError, RoundAborted
from secfed.server.round import sum_securely
from secfed.study.registry import ALGORITHMS
from secfed.study.study import Study
from secfed.wire.frames import decode_state, encode_state
from secfed.wire.layout import Exchange, State, Summands, state_digest
from tests.algorithms import fedcola_case, feddmvc_case, fmcsc_case
from tests.algorithms.isolation_case import Hospitals
from tests.algorithms.loop import Rounds
from tests.properties.readiness_studies import tiny

# --- the functions

KIND_OF = {f"site-{at}": kind for at, kind in enumerate("aababcabb")}
SITES = tuple(KIND_OF)
A, B, C = (tuple(site for site in SITES if KIND_OF[site] == kind) for kind in "abc")


def test_sites_by_their_kind() -> None:
    assert by_kind(KIND_OF, SITES) == (A, B, C)
    assert by_kind(KIND_OF, [B[0], A[1]]) == ((B[0],), (A[1],))
    assert of_large_kinds(KIND_OF, SITES, 4) == tuple(site for site in SITES if site not in C)
    assert of_large_kinds(KIND_OF, SITES, 5) == ()
    assert parts_by_kind(KIND_OF, (*A, *B), 3) == ((frozenset(A), 3), (frozenset(B), 3))
    assert parts_by_kind(KIND_OF, A, 3) == ()


def test_a_sample_has_enough_of_a_kind_or_none() -> None:
    mixed = [site for pair in zip(A, B, strict=True) for site in pair]  # a, b, a, b, ..
    assert drawn(KIND_OF, mixed, 6, 3) == tuple(mixed[:6])  # three of each: as they come
    assert drawn(KIND_OF, mixed, 4, 3) == A  # two of each would hide nobody
    assert drawn(KIND_OF, mixed, 1, 3) == A[:3]
    assert drawn(KIND_OF, mixed, 5, 3) == (*A, *B[:3])
    assert drawn(KIND_OF, mixed, 0, 3) == ()
    assert drawn(KIND_OF, mixed, 99, 3) == tuple(mixed)


# --- every algorithm: a kind is a part, or all read the same


def kinds_of(algorithm: Algorithm) -> Mapping[str, object]:
    """What every site holds, as the data set says."""
    data = algorithm.setting.data
    found: Mapping[str, object] = getattr(data, "view_of", None) or getattr(data, "kind_of", None) or {}
    return found or dict.fromkeys(algorithm.setting.sites)


def adds_something(summands: Summands) -> bool:
    return any(bool(torch.as_tensor(value).any()) for value in summands.values())


ALIKE = {("feddmvc", "pretrain-view-1")}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_each_kind_is_a_part_of_a_sum_of_several_unless_they_read_the_same(name: str) -> None:
    rounds = Rounds(tiny(name))
    algorithm, kind_of = rounds.algorithm, kinds_of(rounds.algorithm)
    protection = algorithm.setting.study.protection
    least = max(3, protection.colluders_for(len(kind_of)) + 2)
    if len(set(kind_of.values())) == 1:
        return
    mixed, alike = 0, set()
    for number in range(1, algorithm.setting.study.rounds + 2):
        for exchange in algorithm.exchanges(number):
            members = algorithm.members(number, exchange, algorithm.setting.sites)
            kinds = by_kind(kind_of, members)
            parts = algorithm.contributors(number, exchange)
            if len(kinds) > 1 and (name, exchange.name) in ALIKE:
                alike.add((name, exchange.name))
                assert not algorithm.builds_on(number, exchange)
            elif len(kinds) > 1:
                got = rounds.copy().contributions(number, exchange.name)
                adding = {kind for kind in kinds if any(adds_something(got[site]) for site in kind)}
                assert {frozenset(kind) for kind in adding} == {part for part, _ in parts}, exchange.name
                assert all(fewest >= least for _, fewest in parts)
                mixed += len(adding) > 1
            rounds.take(number, exchange.name)
    assert mixed
    assert alike == {one for one in ALIKE if one[0] == name}


@pytest.mark.parametrize(("name", "exchange"), sorted(ALIKE))
def test_who_is_no_part_adds_what_it_would_add_if_it_held_all_views(name: str, exchange: str) -> None:
    """The same hospital in two studies, with the first view and with all, and broadcasts that are made up."""
    both = [
        Rounds(tiny(name).replace("data.views", held)) for held in ([0] * 3 + [-1] * 3, [-1] * 3 + [0] * 3)
    ]
    honest = both[0].server.broadcast(1, both[0].exchange(1, exchange))
    generator = torch.Generator().manual_seed(1)
    for size in (0.0, 0.1, 1.0, 1e6):
        state = {
            part: value + size * torch.randn(value.shape, generator=generator).to(value.dtype)
            for part, value in honest.items()
        }
        one, all_views = (
            attempted(rounds.programs["hospital-1"], rounds.exchange(1, exchange), state) for rounds in both
        )
        of_view = [field for field in one if not field.startswith("view-2/")]
        assert one.keys() == all_views.keys()  # of none, where work fails: for both
        assert of_view or size == 1e6
        for field in of_view:
            left, right = torch.as_tensor(one[field]), torch.as_tensor(all_views[field])
            assert torch.allclose(left, right, rtol=0, atol=0, equal_nan=True), (size, field)


def attempted(program: SiteProgram, exchange: Exchange, state: State) -> Summands:
    """What a site adds; nothing where its work fails."""
    try:
        return program.contribute(1, exchange, state)
    except RangeError:
        return {}


# --- the attack: what only one kind reads is made up, and one site of another kind is put beside them

MASKED = {"protection__name": "masked"}
MULTIVIEW: dict[str, Any] = {**MASKED, "data__views": [-1] * 4 + [0] * 4}


def views(name: str, **changes: object) -> Study:
    """A tiny study of an algorithm on views, with four sites of both kinds."""
    made = tiny(name)
    for key, value in {**MULTIVIEW, **changes}.items():
        made = made.replace(key.replace("__", "."), value)
    return made


def huge(*starts: str) -> Callable[[State], State]:
    """A broadcast in which everything with such a name makes the work that reads it fail."""
    return lambda state: {
        name: torch.full_like(value, 1e6) if name.startswith(starts) else value
        for name, value in state.items()
    }


def zeros(*starts: str) -> Callable[[State], State]:
    """The same with zeros."""
    return lambda state: {
        name: torch.zeros_like(value) if name.startswith(starts) else value for name, value in state.items()
    }


def far_from_the_other_view(state: State) -> State:
    best = state["best"].clone()
    best[:, 4:] = 1e6  # only sites with all views read it
    drawn_at = torch.Generator().manual_seed(1)
    best[:, :4] = torch.randn(best[:, :4].shape, generator=drawn_at, dtype=best.dtype)
    return {**state, "best": best, "scale": torch.full_like(state["scale"], 1e-30)}


def all_in_one_cluster(state: State) -> State:
    """Sites with all views count their records in the first cluster, a single view its own in others."""
    centres = state["centres"].clone()
    centres[:] = 100.0
    centres[0, 0] = 0.0
    centres[1] = torch.randn(
        centres[1].shape, generator=torch.Generator().manual_seed(1), dtype=centres.dtype
    )
    centres[1, 0] = 100.0
    return {**state, "centres": centres}


class Attack(NamedTuple):
    """Where it takes place, what is made up (there, or before), and which kind adds nothing then."""

    study: Callable[[], Study]
    number: int
    name: str
    broken: object  # the kind that reads what is made up
    target: object
    make_up: Callable[[State], State] = lambda state: state
    earlier: str | None = None  # whose broadcast to the broken kind is made up, not this one's
    field: str = ""  # what stands alone in the sum: fields with such a name
    but_first: bool = False  # where the broken kind adds to the first row


ATTACKS = {
    "fedcola, attention": Attack(
        lambda: fedcola_case.study(**MASKED, algorithm__participation=1.0),
        *(1, "attention-image", "image", "pairs", zeros(""), "own-image", "update/"),
    ),
    "creamfl, representations": Attack(
        lambda: fedcola_case.study(fedcola_case.CREAM, **MASKED, algorithm__participation=1.0),
        *(1, "public-image", "image", "pairs", zeros(""), "own-image", "public/representation"),
    ),
    "fmcsc, pre-training": Attack(
        lambda: fmcsc_case.study(**MULTIVIEW),
        *(1, "pretrain", None, 0, huge("full/enc.1.", "full/dec.1."), None, "update/"),
    ),
    "fmcsc, a view's model": Attack(
        lambda: fmcsc_case.study(
            **MULTIVIEW, algorithm__pretrain_rounds=0, algorithm__weights="equal", study__rounds=2
        ),
        *(2, "train-view-1", None, 0, huge("full/"), "train-full", "update/"),
    ),
    "fmcsc, the table": Attack(
        lambda: fmcsc_case.study(**MULTIVIEW, algorithm__pretrain_rounds=0, study__rounds=1),
        *(2, "score-table", None, 0, all_in_one_cluster, None, "table", True),
    ),
    "feddmvc, training": Attack(
        lambda: feddmvc_case.study(**MULTIVIEW, algorithm__pretrain_rounds=1, study__rounds=2),
        *(2, "train-view-1", None, 0, far_from_the_other_view, None, "update/"),
    ),
    "canonical, k-means": Attack(
        lambda: views("canonical"), *(1, "kmeans-01", 0, None, zeros("projection/0"), None, "sums")
    ),
    "view-kmeans": Attack(
        lambda: views("view-kmeans"), *(1, "kmeans-01", None, 0, zeros("projection/all"), None, "sums")
    ),
}


class Scene:
    """Real sites before the exchange of an attack; the sums before are honest ones."""

    def __init__(self, made: Attack) -> None:
        self.attack, self.hospitals = made, Hospitals(made.study())
        hospitals = self.hospitals
        for one in range(1, made.number):
            hospitals.honest(one)
        kind_of = kinds_of(hospitals.algorithm)
        self.broken = [site for site in hospitals.sites if kind_of[site] == made.broken]
        self.target = next(site for site in hospitals.sites if kind_of[site] == made.target)
        self.names = [exchange.name for exchange in hospitals.algorithm.exchanges(made.number)]

    def lead_up(self, made_up: bool = False) -> bytes:
        """Everything before, in honest sums but for what is made up; and the broadcast of the exchange."""
        made, hospitals, sent = self.attack, self.hospitals, {}
        exchanges = hospitals.algorithm.exchanges(made.number)
        for at, name in enumerate(self.names[: self.names.index(made.name)]):
            members = hospitals.algorithm.members(made.number, exchanges[at], tuple(hospitals.sites))
            if made_up and name == made.earlier:
                sent[name] = encode_state(made.make_up(decode_state(hospitals.broadcast(made.number, at))))
                hospitals.task(made.number, at, members, sent[name])
            else:
                summed = hospitals.sum_over(made.number, at, members)
                hospitals.server.absorb(made.number, exchanges[at], summed.totals)
        links, state = split(decode_state(hospitals.broadcast(made.number, self.names.index(made.name))))
        if made_up and made.earlier is None:
            state = made.make_up(state)
        digests = {**links, **{name: state_digest(one) for name, one in sent.items() if name in links}}
        named = {
            LINK + name: torch.frombuffer(bytearray(one), dtype=torch.uint8) for name, one in digests.items()
        }
        return encode_state({**state, **named})

    def sum_over(self, cohort: list[str], state: bytes) -> Any:
        made, hospitals = self.attack, self.hospitals
        at = self.names.index(made.name)
        ready = hospitals.task(made.number, at, cohort, state)
        assert ready == cohort, hospitals.refusals
        exchange = hospitals.algorithm.exchanges(made.number)[at]
        return sum_securely(made.number, at, exchange, state, ready, hospitals.rules, hospitals.ask).totals


@pytest.fixture(params=ATTACKS)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    made = Scene(ATTACKS[request.param])
    yield made
    made.hospitals.close()


def test_one_site_beside_a_kind_that_adds_nothing_is_refused(scene: Scene) -> None:
    cohort = sorted([*scene.broken, scene.target], key=list(scene.hospitals.sites).index)
    state = scene.lead_up(made_up=True)
    scene.hospitals.refusals.clear()
    with pytest.raises(RoundAborted, match="nothing was revealed"):
        scene.sum_over(cohort, state)
    said = {(stage, site, why.split(":")[0]) for stage, site, why in scene.hospitals.refusals}
    number = f"refusal {Refusal.TOO_FEW_CONTRIBUTORS.number}"
    assert said == {("advertise", site, number) for site in cohort}


def test_without_the_parts_the_sum_would_be_the_one_site_s(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the attacks above would prove nothing."""
    monkeypatch.setattr(PlannedStages, "contributors", lambda *_: ())
    program, made = scene.hospitals.programs[scene.target], scene.attack
    whole, added = program.contribute, []

    def watched(*given: Any) -> Summands:
        added.append(whole(*given))
        return added[-1]

    cohort = sorted([*scene.broken, scene.target], key=list(scene.hospitals.sites).index)
    state = scene.lead_up(made_up=True)
    program.contribute = watched  # type: ignore[method-assign]
    totals = scene.sum_over(cohort, state)
    [own] = added
    fields = [name for name in own if name.startswith(made.field) and name in totals]
    assert fields
    largest = 0.0
    for name in fields:
        mine, found = (torch.as_tensor(one[name], dtype=torch.float64) for one in (own, totals))
        if made.but_first:
            mine, found = mine[1:], found[1:]
        assert torch.allclose(found, mine, atol=1e-6), name
        largest = max(largest, float(mine.abs().max()))
    assert largest > 1e-4


def test_counts_of_two_views_do_not_tell_one_site_that_adds_to_one_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who has all views adds the same count to both, so nothing need be made up."""
    scene = Scene(Attack(lambda: views("canonical"), 1, "moments", None, 0))
    cohort, hospitals = [*scene.broken[:3], scene.target], scene.hospitals
    state = scene.lead_up()
    with pytest.raises(RoundAborted, match="nothing was revealed"):
        scene.sum_over(cohort, state)
    assert {why.split(":")[0] for _, _, why in hospitals.refusals} == {
        f"refusal {Refusal.TOO_FEW_CONTRIBUTORS.number}"
    }
    hospitals.close()
    monkeypatch.setattr(PlannedStages, "contributors", lambda *_: ())
    scene = Scene(scene.attack)
    state, program = scene.lead_up(), scene.hospitals.programs[scene.target]
    exchange = scene.hospitals.algorithm.exchanges(1)[scene.names.index("moments")]
    own = program.contribute(1, exchange, split(decode_state(state))[1])
    totals = scene.sum_over(cohort, state)
    told = totals.scalar("view-1/records") - totals.scalar("view-2/records")
    assert told == pytest.approx(float(own["view-1/records"]))
    assert told > 0
    scene.hospitals.close()


@pytest.mark.parametrize(
    "name", [name for name in ATTACKS if "fedcola" not in name and "creamfl" not in name]
)
def test_an_honest_sum_is_one_also_without_one_site_of_every_kind(name: str) -> None:
    made = Scene(ATTACKS[name])
    state = made.lead_up()
    hospitals = made.hospitals
    exchange = hospitals.algorithm.exchanges(made.attack.number)[made.names.index(made.attack.name)]
    members = hospitals.algorithm.members(made.attack.number, exchange, tuple(hospitals.sites))
    kinds = by_kind(kinds_of(hospitals.algorithm), members)
    assert [len(kind) for kind in kinds] == [4, 4]
    cohort = [site for site in members if site not in {kind[0] for kind in kinds}]
    assert set(made.sum_over(cohort, state).survivors) == set(cohort)
    assert not hospitals.refusals
    hospitals.close()


def test_whole_rounds_of_a_group_with_one_site_missing() -> None:
    """The tiny study has four image sites, and three of the other kinds."""
    hospitals = Hospitals(fedcola_case.study(**MASKED, algorithm__participation=1.0))
    hospitals.silent = {"hospital-1": "train"}
    hospitals.honest(1)
    hospitals.silent = {}
    hospitals.honest(2)
    assert not hospitals.refusals
    hospitals.close()
