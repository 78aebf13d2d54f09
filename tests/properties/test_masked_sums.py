"""Random consortia, thresholds, layouts, values and dropouts: the sum is exact, or there is none."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from secfed.crypto.attempt import SiteLimits
from secfed.crypto.fixedpoint import FixedPoint
from secfed.crypto.keystream import RoundingStream
from secfed.crypto.lanes import Run
from secfed.errors import RoundAborted
from secfed.protection.plain import PlainServer, PlainSite
from secfed.wire.layout import Field, Layout
from tests.ring import as_integers
from tests.simulator import STAGES, Attempt, Consortium

SITES = st.integers(3, 12)
WIDTHS = st.one_of(st.integers(8, 32), st.sampled_from([8, 31, 32, 64, 64]))
RUNS = st.tuples(
    st.lists(st.builds(Run, WIDTHS, st.integers(0, 40)), max_size=3),
    st.builds(Run, WIDTHS, st.integers(1, 40)),
).map(lambda drawn: [*drawn[0], drawn[1]])
# Mostly never: with uniform stages nearly every attempt would abort.
WHEN = st.one_of(st.none(), st.none(), st.none(), st.sampled_from(STAGES))


@settings(max_examples=10)
@given(data=st.data(), sites=SITES, runs=RUNS, seed=st.integers(0, 2**32))
def test_the_sum_is_exact_or_the_attempt_aborts(
    data: st.DataObject, sites: int, runs: list[Run], seed: int
) -> None:
    threshold = data.draw(st.integers(max(3, sites // 2 + 1), sites), label="threshold")
    consortium = Consortium(sites, runs=runs, threshold=threshold, limits=SiteLimits(colluders=0), seed=seed)
    drawn = data.draw(st.fixed_dictionaries(dict.fromkeys(consortium.names, WHEN)), label="silent from")
    silent = {site: stage for site, stage in drawn.items() if stage is not None}
    answering = {
        stage: [s for s in consortium.names if STAGES.index(silent.get(s, "result")) > at or s not in silent]
        for at, stage in enumerate(STAGES[:-1])
    }
    attempt = consortium.attempt(silent=silent)
    try:
        attempt.run()
    except RoundAborted:
        event("aborted")
        assert min(len(answered) for answered in answering.values()) < threshold
    else:
        event("summed")
        assert min(len(answered) for answered in answering.values()) >= threshold
        assert attempt.server.survivors == tuple(answering["mask"])
        assert as_integers(attempt.server.sums) == consortium.expected(answering["mask"])
    assert not attempt.refusals  # dropping is no offence


BOUNDS = st.sampled_from([2.0**-20, 0.1, 1.0, 3.0, 1e6])


@st.composite
def layouts(draw: st.DrawFn, sites: int) -> Layout:
    """Fields of mixed widths and shapes, odd counts, scalars, an empty field."""
    count = draw(st.integers(1, 4))
    fields = [
        Field(
            f"field {index}",
            draw(st.sampled_from([(), (1,), (7,), (3, 5), (0,), (2, 1, 9)])),
            draw(BOUNDS),
            draw(WIDTHS),
        )
        for index in range(count)
    ]
    return Layout((*fields, Field("loss", (), 10.0, 64)), sites)


def _tensor(field: Field, generator: np.random.Generator) -> torch.Tensor:
    values = generator.uniform(-field.bound, field.bound, field.shape)
    extremes = np.array([field.bound, -field.bound, 0.0, 1e300, -1e300, 5e-324])
    pick = generator.integers(0, 2 * len(extremes), field.shape)
    return torch.from_numpy(np.where(pick < len(extremes), extremes[pick % len(extremes)], values))


@settings(max_examples=8)
@given(data=st.data(), sites=st.integers(3, 6), seed=st.integers(0, 2**32), drop=st.booleans())
def test_masked_totals_are_the_plain_totals_bit_for_bit(
    data: st.DataObject, sites: int, seed: int, drop: bool
) -> None:
    layout = data.draw(layouts(sites))
    generator = np.random.default_rng(seed)
    consortium = Consortium(sites, seed=seed, threshold=3, limits=SiteLimits(colluders=0))
    consortium.shape = layout.shape
    summands = {
        name: {field.name: _tensor(field, generator) for field in layout.fields} for name in consortium.names
    }

    def changes(name: str) -> dict[str, object]:
        stream = RoundingStream(hashlib.sha256(name.encode()).digest())
        return {"source": layout.encoder(summands[name], stream), "shape": layout.shape}

    survivors = consortium.names[:-1] if drop and sites > 3 else consortium.names
    masked = Attempt(
        consortium,
        consortium.specification(threshold=3 if sites < 6 else 4),
        contributions={name: changes(name) for name in consortium.names},
        silent={name: "mask" for name in consortium.names if name not in survivors},
    ).run()
    # The same updates again as another exchange, in the clear.
    spec = consortium.specification(threshold=3, exchange_index=1)
    plain = PlainServer(spec, consortium.roster, layout.shape)
    for name in plain.begin():
        if name in survivors:
            site = PlainSite(consortium.contribution(name, exchange_index=1, **changes(name)))
            plain.receive(name, site.handle(spec.encode()))
    plain.advance()
    for masked_run, plain_run in zip(masked.server.sums, plain.sums, strict=True):
        assert masked_run.tobytes() == plain_run.tobytes()
    totals = layout.decode(masked.server.sums, survivors)
    for field in layout.fields:
        rule = FixedPoint.choose(bound=field.bound, bits=field.bits, sites=sites)
        true = sum(summands[name][field.name].clamp(-field.bound, field.bound) for name in survivors)
        tolerance = len(survivors) * (rule.step + 1e-15 * field.bound)  # of rounding, and of float64
        assert torch.all((totals[field.name] - true).abs() <= tolerance)
