"""What a study is promised is what it pays: known before the first payment, for every algorithm and unit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secfed.dp.accounting.events import Event, compose
from secfed.dp.ledger.ledger import spent_of, verify
from secfed.dp.training.local_privacy import LocalPrivacy
from secfed.pipeline.noised_algorithm import noise_payments, with_privacy
from secfed.records.roster_file import ROSTER_FILE, read_roster
from secfed.runs.run_folder import site_folder
from secfed.study.build import build, build_data
from secfed.study.study import Study
from tests.algorithms.fedcola.test_simulate import GROUPS
from tests.algorithms.fedcola.test_simulate import private as fedcola
from tests.algorithms.fmcsc.test_privacy import private as fmcsc
from tests.algorithms.vision_language.test_privacy import private as vision_language
from tests.algorithms.whole import run
from tests.secfed.privacy_case import study as fedavg

ROBUST = {"algorithm__rho": 0.1, "study__rounds": 2}
LOCAL: dict[str, Callable[[], Study]] = {
    "fedavg": lambda: fedavg("record", privacy='metrics = "private"'),
    "fedavg-groups": lambda: fedavg("group", privacy="group_size = 4\nclip_quantile = 0.5"),
    "fmcsc": lambda: fmcsc("group"),
    "fedcola": lambda: fedcola("group", GROUPS),
    "feddra": lambda: vision_language("group", **ROBUST),
}
IN_SUM: dict[str, Callable[[], Study]] = {
    "fedavg": lambda: fedavg("site"),
    "fmcsc": lambda: fmcsc("site"),
    "fedcola": lambda: fedcola("site"),
    "feddra": lambda: vision_language("site"),
    "some hospitals in each round": lambda: fmcsc("site", algorithm__participation=0.75),
}


def slowly(cases: dict[str, Any], quick: str) -> list[Any]:
    return [pytest.param(name, marks=[] if name == quick else pytest.mark.slow) for name in cases]


def paid(out: Path, site: str) -> tuple[Event, ...]:
    """All that one hospital paid in a run."""
    (path,) = site_folder(out, site).glob("ledger-*.jsonl")
    with path.open("rb") as lines:
        entries = verify(lines, read_roster(out / ROSTER_FILE).public(site), owner=site)
    return compose(one.event for one in spent_of(entries))


@pytest.mark.parametrize("name", slowly(LOCAL, "feddra"))
def test_of_private_local_steps(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: set[tuple[Event, ...]] = set()
    really = LocalPrivacy.plan

    def plan(self: LocalPrivacy, *phases: Any, **more: Any) -> None:
        really(self, *phases, **more)
        planned.add(compose(self.planned))

    monkeypatch.setattr(LocalPrivacy, "plan", plan)
    report = run(LOCAL[name](), tmp_path)
    assert report.privacy is not None
    assert not any(entry.aborted for entry in report.rounds)
    found = {paid(tmp_path, one.site) for one in report.privacy.sites}
    assert found
    assert found == planned


@pytest.mark.parametrize("name", slowly(IN_SUM, "fedavg"))
def test_of_noise_in_the_sum(name: str, tmp_path: Path) -> None:
    made = IN_SUM[name]()
    report = run(made, tmp_path)
    assert report.privacy is not None
    assert not any(entry.aborted for entry in report.rounds)
    sites = read_roster(tmp_path / ROSTER_FILE).sites
    algorithm = with_privacy(made, build(made), tuple(sorted(build_data(made).sites)))
    for site in sites:
        assert noise_payments(algorithm, made.rounds, site, tuple(sites)) == (paid(tmp_path, site))
