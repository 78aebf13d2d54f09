"""Canonical alignment: what it computes, what one pair can add, and which studies are refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from secfed.algorithms.canonical.alignment import CanonicalAlignment
from secfed.algorithms.canonical.pair_features import PairFeatures
from secfed.algorithms.canonical.pair_scores import projected
from secfed.algorithms.canonical.projections import canonical, shortened
from secfed.algorithms.data.image_text.base import ImageTextSite, Pairs
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.framework.unfit import counted_as_defaults
from secfed.algorithms.losses.features import Features
from secfed.algorithms.metrics.retrieval import drawn_batches
from secfed.dp.training.unit_sums import ADDED_UP
from secfed.errors import ConfigError, DataError, MalformedMessage
from secfed.study.build import build
from secfed.study.study import Study
from secfed.testing import check_algorithm
from secfed.wire.layout import State
from tests.algorithms.loop import Rounds, add_in_ring, changed, same, simulate
from tests.algorithms.vlp_case import LENGTH, Toy, ToyPairs, pairs
from tests.secfed import privacy_case

EXAMPLE = Path(__file__).parents[3] / "examples" / "canonical-alignment.toml"
TINY = """
[study]
name = "alignment-tiny"
rounds = 1
seed = 5
[algorithm]
name = "canonical-alignment"
evaluation_batch = 8
[model]
name = "tests.algorithms.vlp_case:toy"
[data]
name = "tests.algorithms.vlp_case:pairs"
[protection]
name = "plain"
colluders = 1
"""
PLAIN: dict[str, Any] = {"model__name": "none", "algorithm__maps": ["l2", "sqrt-l2"]}
PRIVATE: dict[str, Any] = {
    "protection__name": "masked",
    "privacy": {"unit": "record", "noise": "sum", "epsilon": 8.0, "delta": 1e-4},
}
MODELS = [pytest.param({}, id="encoders"), pytest.param(PLAIN, id="pixels and words")]


def study(**changes: Any) -> Study:
    return changed(TINY, changes)


def on(data: Any, **changes: Any) -> CanonicalAlignment:
    made = study(**changes)
    return CanonicalAlignment(Setting(made, data, lambda: None), made.algorithm)  # type: ignore


class Spread(ToyPairs):
    """All pairs of the toy set, at hospitals with these shares of them."""

    def __init__(self, shares: Sequence[Sequence[int]]) -> None:
        super().__init__(5, 24, 16, 4.0)
        held = [super(Spread, self).site(site).train for site in self.sites]
        self._all = Pairs(
            *(torch.cat([getattr(p, n) for p in held]) for n in ("images", "tokens", "findings"))
        )
        self._shares = shares
        self.sites = tuple(f"hospital-{at + 1}" for at in range(len(shares)))

    def site(self, site_id: str) -> ImageTextSite:
        rows = torch.tensor(self._shares[self.sites.index(site_id)])
        return ImageTextSite(self._all.take(rows), self._all.take(torch.arange(20)))


def views(algorithm: CanonicalAlignment, found: Pairs) -> list[torch.Tensor]:
    program = algorithm.site(algorithm.setting.sites[0])
    program.metrics(dict(algorithm.server().broadcast(1, algorithm.exchanges(1)[0]), **blank(algorithm)))
    both = found.images, found.tokens
    return algorithm.plan.features.mapped(program._network, both, algorithm.maps, algorithm.plan.seed, 64)


def blank(algorithm: CanonicalAlignment) -> State:
    shapes = algorithm.plan.broadcast(algorithm.stages(2)[0])
    return {name: torch.ones(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("changes", MODELS)
def test_it_keeps_the_rules_of_algorithms(changes: dict[str, Any]) -> None:
    check_algorithm(CanonicalAlignment, study=study(**changes))


@pytest.mark.parametrize("changes", MODELS)
def test_projections_are_those_of_the_pooled_pairs(changes: dict[str, Any]) -> None:
    algorithm = build(study(**changes, algorithm__ridge=0.02))
    held = [algorithm.pairs.site(site).train for site in algorithm.setting.sites]
    parts = [views(algorithm, one) for one in held]
    pooled = [torch.cat([part[view] for part in parts]) for view in (0, 1)]
    means = [view.mean(dim=0) for view in pooled]
    covariances = [torch.cov(view.T, correction=0) for view in pooled]
    short = [shortened(view - mean, 0.9) for view, mean in zip(pooled, means, strict=True)]
    expected = canonical(covariances, {(0, 1): short[0].T @ short[1]}, algorithm.plan.dimensions, 0.02)
    for adder, atol in ((None, 1e-5), (add_in_ring, 1e-3)):
        model = simulate(study(), algorithm=algorithm, **({} if adder is None else {"adder": adder})).model()
        assert model.keys() == {"mean/0", "mean/1", "projection/0", "projection/1"}
        for view in (0, 1):
            assert torch.allclose(model[f"mean/{view}"].double(), means[view], atol=atol)
            assert torch.allclose(model[f"projection/{view}"].double(), expected[view], atol=atol)


@pytest.mark.parametrize("changes", MODELS)
def test_recall_is_that_of_every_text_among_the_images_of_its_batch(changes: dict[str, Any]) -> None:
    algorithm = build(study(**changes))
    server = simulate(study(), algorithm=algorithm)
    model, shares = server.model(), {1: [], 5: [], 10: []}
    for site in algorithm.setting.sites:
        test = algorithm.pairs.site(site).test
        image, text = projected(views(algorithm, test), model)
        found = []
        for rows in drawn_batches(len(test), 8):
            cosines = torch.nn.functional.cosine_similarity(text[rows, None], image[None, rows], dim=2)
            found += [1 + int((row > row[at]).sum()) for at, row in enumerate(cosines)]
        for k, share in shares.items():
            share.append(float(np.mean(np.array(found) <= k)))
    expected = {f"recall_at_{k}": np.mean(share) for k, share in shares.items()}
    assert expected["recall_at_1"] > 0.3  # an eighth by chance
    assert server.metrics() == {1: pytest.approx(expected, abs=1e-3)}
    per_site = algorithm.per_site(model)
    assert [one["recall_at_5"] for one in per_site.values()] == pytest.approx(shares[5], abs=1e-3)


def test_how_pairs_are_spread_does_not_matter() -> None:
    everything = list(range(120))
    spread = [
        [everything[:24], everything[24:60], everything[60:]],
        [everything[::-4], everything[1::4], everything[:120:4], everything[2::4]],
    ]
    one, other = (simulate(study(), algorithm=on(Spread(shares))) for shares in spread)
    assert same(one.model(), other.model(), atol=1e-6)
    assert one.metrics() == other.metrics()


@pytest.mark.parametrize("changes", MODELS)
def test_no_pair_adds_more_than_the_sensitivity_whatever_is_broadcast(changes: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    shapes = on(pairs(), **PRIVATE, **changes)._shapes
    for stage in on(pairs(), **PRIVATE, **changes).plan.summing:
        most = 0.0
        for turn in range(40):
            images = rng.normal(size=(1, 1, 4, 4)) * 10.0 ** rng.integers(-3, 4)
            if turn % 4 == 3:
                images = rng.choice([0.0, 3e38, -3e38, 1e-45, 1.0], size=(1, 1, 4, 4))
            one = Pairs(
                torch.from_numpy(images.astype(np.float32)),
                torch.from_numpy(rng.integers(1, 17, (1, LENGTH))),
                torch.zeros(1, 1, dtype=torch.int64),
            )
            data = pairs()
            data.site = lambda _, one=one: ImageTextSite(one, one.take(torch.arange(0)))  # type: ignore
            algorithm = on(data, **PRIVATE, **changes)
            size = 10.0 ** rng.integers(-6, 7)
            sent = {f"model/{name}": shapes[name] for name in algorithm._names}
            sent |= algorithm.plan.broadcast(stage)
            given = algorithm.site("hospital-1").contribute(
                1,
                stage.exchange,
                {
                    name: torch.from_numpy(rng.uniform(-size, size, shape)).float()
                    for name, shape in sent.items()
                },
            )
            fields = {field.name: field.bound for field in stage.exchange.layout.fields}
            assert given.keys() == fields.keys()
            values = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in given.items()}
            assert all(float(value.abs().max()) <= fields[name] for name, value in values.items())
            norm = float(torch.cat([value.reshape(-1) for value in values.values()]).norm())
            assert norm <= stage.sensitivity * (1 + 1e-9)
            most = max(most, norm)
        assert most >= 0.8 * stage.sensitivity  # or the noise would be wasted


def test_under_privacy_every_pair_is_encoded_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a batch the last digits of a row depend on the others, and weights can make them large."""
    seen: list[int] = []
    real = Toy.encode

    def watched(self: Toy, images: torch.Tensor, tokens: torch.Tensor) -> Features:
        seen.append(len(images))
        if float(images[0, 0, 0, 0]) == 7.0:
            raise ValueError("a record that nothing can encode")
        return real(self, images, tokens)

    monkeypatch.setattr(Toy, "encode", watched)
    algorithm = on(pairs(), **PRIVATE)
    exchange, sent = algorithm.exchanges(1)[0], algorithm.server().broadcast(1, algorithm.exchanges(1)[0])
    program = algorithm.site("hospital-1")
    seen.clear()
    whole = program.contribute(1, exchange, sent)
    assert seen == [1] * 24
    program.contribute(1, exchange, sent)
    assert seen == [1] * 24  # and once
    first = program._fixed[0][3]
    program = algorithm.site("hospital-1")
    images = program._data.views[0]
    assert images is not None
    images[3, 0, 0, 0] = 7.0
    given = program.contribute(1, exchange, sent)
    assert given["view-1/records"] == 12.0
    assert torch.allclose(given["view-1/sum"], whole["view-1/sum"] - first / 2)


def test_the_only_pair_is_added_or_removed_within_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    def added(count: int) -> tuple[list[torch.Tensor], list[float]]:
        few = ToyPairs(5, 24, 16, 4.0).site("hospital-1")
        data = ToyPairs(5, 24, 16, 4.0)
        monkeypatch.setattr(
            data, "site", lambda _: ImageTextSite(few.train.take(torch.arange(count)), few.test)
        )
        algorithm = on(data, **PRIVATE)
        exchanges, server = algorithm.exchanges(1), algorithm.server()
        with counted_as_defaults(lambda _: None):
            program = algorithm.site("hospital-1")
        given = [program.contribute(1, one, server.broadcast(1, one)) for one in exchanges]
        parts = [torch.cat([torch.as_tensor(value).reshape(-1) for value in one.values()]) for one in given]
        return parts, [bound.norm for bound in map(algorithm.unit_bound, exchanges) if bound]

    (one, norms), (none, _) = added(1), added(0)
    assert all(float((a - b).norm()) <= norm for a, b, norm in zip(one, none, norms, strict=True))
    assert not any(bool(part.any()) for part in none)


def test_other_encoders_are_taken_over() -> None:
    rounds = Rounds(study())
    sent = rounds.server.broadcast(1, rounds.exchange(1, "moments"))
    program, exchange = rounds.programs["hospital-1"], rounds.exchange(1, "moments")
    one = program.contribute(1, exchange, sent)
    other = {name: value + 1.0 if name.startswith("model/") else value for name, value in sent.items()}
    assert not torch.equal(program.contribute(1, exchange, other)["view-1/sum"], one["view-1/sum"])
    assert torch.equal(program.contribute(1, exchange, sent)["view-1/sum"], one["view-1/sum"])
    with pytest.raises(MalformedMessage):
        rounds.algorithm.check_broadcast(1, exchange, {**sent, "model/image_align.weight": torch.zeros(6, 6)})


def test_cells_divide_an_image() -> None:
    data = SimpleNamespace(image_shape=(1, 4, 4), text_length=3, vocabulary=9)
    grid = torch.arange(16.0).reshape(1, 4, 4)

    class Patches:
        def encode(self, images: torch.Tensor, tokens: torch.Tensor) -> Features:
            patches = torch.cat([torch.full((1, 1, 1), 100.0), grid.reshape(1, 16, 1)], dim=1)
            return Features(patches, torch.ones(1, 3, 2), tokens != 0)

        def parameters(self) -> Any:
            return iter([torch.zeros(())])

    network: Any = Patches()
    tokens = torch.tensor([[3, 4, 0]])
    for cells, expected in ((1, [7.5]), (2, [2.5, 4.5, 10.5, 12.5]), (4, list(range(16)))):
        features = PairFeatures.of(data, network, cells)  # type: ignore[arg-type]
        assert features.sizes == (len(expected), 2)
        assert features.described(network, grid[:, None], tokens)[0].tolist() == [expected]
    with pytest.raises(ConfigError, match=r"algorithm\.image_cells: 16 patches do not divide into 3 x 3"):
        PairFeatures.of(data, network, 3)  # type: ignore[arg-type]
    words = PairFeatures.of(data, None, 1).described(None, grid[:, None], torch.tensor([[3, 3, 0]]))[1]  # type: ignore[arg-type]
    assert words.tolist() == [[0, 0, 0, 2, 0, 0, 0, 0, 0]]


def test_a_server_goes_on_from_its_checkpoint() -> None:
    rounds = Rounds(study())
    rounds.round(1)
    again = rounds.algorithm.server()
    again.load(rounds.server.save())
    assert same(again.model(), rounds.server.model())
    rounds.server = again
    rounds.round(2)
    assert rounds.server.metrics() == simulate(study()).metrics()
    with pytest.raises(MalformedMessage):
        build(study(**PLAIN)).server().load(rounds.server.save())


@pytest.mark.parametrize("metrics", ["withheld", "unprotected"])
def test_both_sums_have_the_bound_and_the_share_of_their_stage(metrics: str) -> None:
    made = study(**{**PRIVATE, "privacy": {**PRIVATE["privacy"], "metrics": metrics}})
    algorithm = build(made)
    bounds = [algorithm.unit_bound(exchange) for exchange in algorithm.exchanges(1)]
    norms = [stage.sensitivity for stage in algorithm.plan.summing]
    assert [bound.norm for bound in bounds if bound] == [norm * ADDED_UP for norm in norms]
    assert sum(bound.share for bound in bounds if bound) == pytest.approx(1.0)
    scoring = algorithm.exchanges(2)
    assert len(scoring) == (metrics == "unprotected")
    assert all(len(algorithm.unprotected(exchange)) == 4 for exchange in scoring)
    assert not any(algorithm.unprotected(exchange) for exchange in algorithm.exchanges(1))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"study__rounds": 2}, r"study\.rounds"),
    ({"data": {"name": "breast-cancer", "sites": 4}}, r"data\.name: canonical-alignment needs image-report"),
    ({"model__name": "mlp"}, r"model\.name: canonical-alignment has no use for 'mlp'"),
    ({"model": {"name": "vision-language", "pool": "cls"}}, r"model\.pool: has no effect"),
    ({**PLAIN, "algorithm__image_cells": 2}, r"algorithm\.image_cells: has no effect"),
    ({"algorithm__maps": ["standard", "l2"]}, r'algorithm\.maps: "standard" is not offered'),
    ({"algorithm__maps": ["l2"]}, r"algorithm\.maps: has 1 entries for 2 views"),
    ({"protection__name": "encrypted"}, r"protection\.name: under encrypted"),
    ({**PRIVATE, "privacy__metrics": "private"}, r'privacy\.metrics: "private" is not offered'),
    ({**PRIVATE, "privacy__clip_norm": 2.0}, r"privacy\.clip_norm: has no effect"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED, ids=lambda part: str(part)[:40])
def test_a_study_that_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        build(study(**changes))
    assert refused.value.remedy


def test_more_pairs_than_the_study_allows_are_an_error_in_a_simulation() -> None:
    with pytest.raises(DataError, match=r"algorithm\.max_records"):
        build(study(algorithm__max_records=20)).site("hospital-1")


def test_the_example_finds_images_within_epsilon(tmp_path: Path) -> None:
    made = Study.load(EXAMPLE).replace("data.train", 400).replace("data.test", 64)
    report = privacy_case.run(made, tmp_path)
    assert report.final["recall_at_5"] > 0.2  # 0.08 by chance
    assert report.privacy is not None
    assert all(7.9 < site.epsilon <= 8 for site in report.privacy.sites)


@pytest.mark.slow
def test_the_example_finds_half_of_the_images() -> None:
    assert privacy_case.run(Study.load(EXAMPLE)).final["recall_at_1"] > 0.5
