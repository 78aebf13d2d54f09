"""What a hospital answers, writes and pays never depends on its records, whatever it is sent."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.weighted_mean import WeightedMeanServer
from secfed.crypto.codec import Buffer
from secfed.crypto.messages import peek_type
from secfed.errors import SecfedError
from secfed.runs.run_report import SilentObserver
from secfed.simulation.simulate import simulate
from secfed.site.session import Site
from secfed.study.registry import ALGORITHMS
from secfed.wire.frames import READY
from secfed.wire.refusal_codes import outgoing
from tests.properties.readiness_case import (
    BROADCASTS,
    HONEST,
    LARGE,
    SITES,
    TRAP,
    Broadcast,
    play,
    with_extreme_record,
    without_first_record,
)
from tests.properties.readiness_studies import BUILT_IN, OF_MEANS, OF_PAIRS, tiny

CASES = [
    *((name, "", unit) for name, (_, units) in OF_MEANS.items() for unit in units),
    ("fedavg", "private-metrics", "record"),
    *(("fedavg", engine, "record") for engine in ("loop", "ghost")),  # hooks are the usual ones
    *((name, "", unit) for name in ("canonical", "canonical-alignment") for unit in ("none", "record-sum")),
    *((name, "", "none") for name in ("view-kmeans", "feddmvc")),
    *(("fmcsc", variant, unit) for variant in ("", "one-view") for unit in ("none", "group", "site")),
    *(("fedcola", variant, unit) for variant in ("", "pairs") for unit in ("none", "group", "site")),
    *(("creamfl", variant, "none") for variant in ("", "pairs")),
    *((name, "", unit) for name in OF_PAIRS for unit in ("none", "group", "site")),
    ("statistics", "", "none"),
]
# What the others add to these is played by name: their answers differ in fewer places.
QUICK = [
    (case, broadcast)
    for case in CASES
    for broadcast in BROADCASTS
    if (broadcast == LARGE and case[0] not in BUILT_IN)
    or (broadcast == TRAP and case[0] not in OF_PAIRS)
    or (case[0] == "fedavg" and case[2] in ("none", "record") and not case[1])
]
SLOW = [
    pytest.param(case, broadcast, marks=pytest.mark.slow)
    for case in CASES
    for broadcast in BROADCASTS
    if (case, broadcast) not in QUICK
]


def test_every_algorithm_is_played() -> None:
    assert {name for name, _, _ in CASES} == set(ALGORITHMS)


@pytest.mark.parametrize(
    ("case", "broadcast"),
    [*QUICK, *SLOW],
    ids=lambda part: part.name if isinstance(part, Broadcast) else "-".join(filter(None, part)),
)
def test_a_record_changes_no_answer_no_payment_and_no_entry(
    case: tuple[str, str, str], broadcast: Broadcast, tmp_path: Path
) -> None:
    algorithm, variant, unit = case
    study = tiny(algorithm, unit, variant=variant)
    kind = variant if algorithm in ("creamfl", "fedcola") else ""
    without = play(study, broadcast, tmp_path / "without", kind=kind)
    with_it = play(study, broadcast, tmp_path / "with", with_extreme_record, kind=kind)
    assert with_it.replies == without.replies
    assert with_it.written == without.written
    assert with_it.paid == without.paid
    assert with_it.finite
    assert without.finite
    ready = broadcast.name in ("honest", "denormal", "large", "trap")
    assert all(reply is True for _, _, reply, _ in with_it.replies) == ready
    assert unit == "none" or len(with_it.paid) > 0
    telling = LARGE if algorithm in (*OF_PAIRS, "canonical-alignment") else TRAP
    if algorithm in BUILT_IN:  # whole transformers overflow with large parameters, whatever the records are
        telling = HONEST
    if unit in ("none", "site") and broadcast == telling:
        # or nothing was tested; private steps just leave such a record out, and no map or cell passes it on
        assert with_it.failures or algorithm in ("canonical", "statistics", "view-kmeans")
        assert not without.failures


@pytest.mark.parametrize("broadcast", [BROADCASTS[0], BROADCASTS[1], TRAP], ids=lambda one: one.name)
@pytest.mark.parametrize("unit", ["none", "record"])
def test_a_record_that_is_there_or_not_changes_weights_and_nothing_else(
    unit: str, broadcast: Broadcast, tmp_path: Path
) -> None:
    """Numbers of records show in weights, where the study has them, and in what is paid; not in an answer."""
    study = tiny("fedavg", unit)
    there = play(study, broadcast, tmp_path / "there", with_extreme_record)
    absent = play(
        study, broadcast, tmp_path / "absent", lambda data: without_first_record(with_extreme_record(data))
    )
    assert [reply[:3] for reply in there.replies] == [reply[:3] for reply in absent.replies]
    assert [kind for kind, _ in there.written] == [kind for kind, _ in absent.written]
    assert [kind for kind, _ in there.paid] == [kind for kind, _ in absent.paid]
    assert there.finite
    assert absent.finite
    differ = (there.replies, there.paid) != (absent.replies, absent.paid)
    assert differ == (unit == "none" or broadcast.name != "nan")  # or nothing was tested; nobody pays for NaN


def _replies(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[object]]:
    """What every hospital answers from now on: kind and length of each reply, or the code of a refusal."""
    seen: dict[str, list[object]] = defaultdict(list)
    honest = Site.handle

    def handle(self: Site, frame: Buffer) -> Buffer:
        try:
            reply = honest(self, frame)
        except SecfedError as error:
            seen[self._identity.name].append(outgoing(error))
            raise
        is_message = bytes(reply) not in (READY, b"")
        seen[self._identity.name].append((peek_type(reply) if is_message else bytes(reply), len(reply)))
        return reply

    monkeypatch.setattr(Site, "handle", handle)
    return seen


@pytest.mark.parametrize("name", ["masked", "closed", "encrypted"])
def test_sums_come_about_among_the_same_hospitals(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the aggregator sees of a whole study: every reply, who is in each sum, who gave up."""
    study = tiny("fedavg").replace("protection.name", "encrypted" if name == "encrypted" else "masked")
    study = study.replace("protection.reveal", "sites") if name == "closed" else study
    honest, whole = WeightedMeanServer.broadcast, FedAvg.site_data
    replies = _replies(monkeypatch)

    def seen() -> tuple[list[tuple[object, ...]], dict[str, list[object]]]:
        replies.clear()
        report = simulate(study, out=None, drops=(), observer=SilentObserver())
        rounds = [(one.survivors, one.asked, one.attempts, one.aborted, one.gave_up) for one in report.rounds]
        return rounds, dict(replies)

    monkeypatch.setattr(WeightedMeanServer, "broadcast", lambda *given: TRAP.of(honest(*given)))
    without = seen()
    monkeypatch.setattr(
        FedAvg,
        "site_data",
        lambda self, site: with_extreme_record(whole(self, site)) if site == SITES[0] else whole(self, site),
    )
    assert seen() == without
    assert all(survivors == SITES for survivors, *_ in without[0])
    assert {site: len(given) > len(without[0]) for site, given in without[1].items()} == dict.fromkeys(
        SITES, True
    )
