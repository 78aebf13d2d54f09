"""What a person reads of a study before approving it."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from secfed.deploy.admission import kept_offers, persons, waiting
from secfed.deploy.admission.admission import admit
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.admission.kept_offers import KeptOffer
from secfed.deploy.admission.person import NOBODY
from secfed.deploy.enrolment.messages import utc_now
from secfed.errors import PolicyRefused
from secfed.site.terms import Terms
from secfed.storage import failpoints
from secfed.study.limits import study_id
from secfed.study.study import Study
from tests.conftest import ROOT
from tests.deploy.agent_case import NAMES, TOML, permit
from tests.deploy.centre_case import found_consortium
from tests.kill import kills_itself

STUDY = Study.load(ROOT / "examples" / "three-hospitals" / "study.toml")


def terms(study: Study) -> Terms:
    return Terms(study, MagicMock(), ("hospital-1", "hospital-2", "hospital-3"))


def test_what_is_not_protected_is_said_first() -> None:
    facts = dict(KeptOffer.of(terms(STUDY)).facts())
    assert not any(value.startswith("NONE") for value in facts.values())
    assert "epsilon 4 at delta 0.0001 for every record" in facts["Privacy"]
    assert "read by the aggregator" in facts["Protection"]
    closed = dict(KeptOffer.of(terms(STUDY.replace("protection.reveal", "sites"))).facts())
    assert "read by the hospitals only" in closed["Protection"]
    text = '[study]\nname = "open"\nrounds = 1\n[algorithm]\nname = "fedavg"\n[model]\nname = "mlp"\n'
    bare = Study.parse(text + '[data]\nname = "digits"\nsites = 3\n[protection]\nname = "plain"\n')
    facts = dict(KeptOffer.of(terms(bare)).facts())
    assert facts["Protection"].startswith("NONE: the aggregator receives this hospital's own values")
    assert facts["Privacy"].startswith("NONE")


def test_a_study_centre_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = STUDY.digest().hex()
    monkeypatch.setattr(kept_offers, "_MOST_BYTES", 100)
    with pytest.raises(PolicyRefused, match="what a person approves is 100 at most"):
        kept_offers.keep(tmp_path, terms(STUDY))
    assert kept_offers.kept(tmp_path, digest) is None
    monkeypatch.undo()
    kept_offers.keep(tmp_path, terms(STUDY))
    assert kept_offers.kept(tmp_path, digest) == KeptOffer.of(terms(STUDY))
    kept_offers.forget(tmp_path, digest)
    assert kept_offers.kept(tmp_path, digest) is None


COLUMNS = """
[study]
name = "wards"
rounds = 1
[algorithm]
name = "fedavg"
weighting = "equal"
[model]
name = "mlp"
[data]
name = "columns"
path = "hospital.duckdb"
view = "wards"
site_column = "ward"
sites = ["a", "b", "c"]
[data.columns.age]
low = 18
high = 100
unit = "years"
[data.columns.x]
source = "hiv_status"
categories = ["neg", "pos"]
[protection]
name = "masked"
[privacy]
unit = "group"
group_size = 5
epsilon = 3.0
delta = 1e-5
noise = "sum"
"""


def test_every_column_that_is_read_and_the_whole_guarantee_are_shown() -> None:
    facts = dict(KeptOffer.of(terms(Study.parse(COLUMNS))).facts())
    assert facts["Data"] == "columns, hospital.duckdb, wards"
    assert "age: from 18.0 to 100.0 years; x (read from hiv_status): neg, pos" in facts["Columns"]
    assert "ward (site column)" in facts["Columns"]
    assert "test_fraction" in dict(KeptOffer.of(terms(STUDY)).facts())["Reading"]
    assert "for every group of 5 records (replace-record); noise in the sum" in facts["Privacy"]
    privacy = dict(KeptOffer.of(terms(STUDY)).facts())["Privacy"]
    assert "(add-or-remove-record); all noise added here" in privacy


def test_what_values_are_taken_for_is_shown() -> None:
    """A value that counts as missing, or a code of another category, can leave one patient out."""
    text = COLUMNS.replace("high = 100\n", 'high = 100\nmissing = [63]\noutside = "clip"\n')
    text = text.replace('"pos"]', '"pos"]\ncodes = { neg = ["0", "9"] }\noutside = "missing"')
    columns = dict(KeptOffer.of(terms(Study.parse(text))).facts())["Columns"]
    assert "(counts as missing: 63; anything else is moved to the nearest bound)" in columns
    assert "(neg is recorded as 0, 9; anything else counts as missing)" in columns


def test_a_study_with_many_columns_is_kept(tmp_path: Path) -> None:
    """136 kB of study text are no more once the settings are written down."""
    names = ", ".join(f'"{number:x}"' for number in range(20_000))
    text = COLUMNS.partition("[data]")[0] + (
        '[data]\nname = "csv"\npath = "a.csv"\nlabel_column = "y"\nlabels = ["0", "1"]\nsite_column = "h"\n'
        f'sites = ["a", "b", "c"]\nfeature_columns = [{names}]\n'
    )
    study = Study.parse(text)
    kept_offers.keep(tmp_path, terms(study))
    found = kept_offers.kept(tmp_path, study.digest().hex())
    assert found is not None
    assert "4e1f" in dict(found.facts())["Columns"]


def test_an_infinite_setting_is_kept_as_text(tmp_path: Path) -> None:
    study = Study.parse((ROOT / "examples" / "fmcsc-digits.toml").read_text()).replace(
        "algorithm.paper_laplace_epsilon", float("inf")
    )
    kept_offers.keep(tmp_path, terms(study))
    found = kept_offers.kept(tmp_path, study.digest().hex())
    assert found == KeptOffer.of(terms(study))
    assert "paper_laplace_epsilon inf" in dict(found.facts())["Algorithm"]


def test_of_a_study_that_waits_all_is_kept_whenever_the_agent_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a person is asked to approve what cannot be shown, until the agent is started again."""
    centre, sites = found_consortium(tmp_path, NAMES)
    site, study = sites[NAMES[0]], Study.parse(TOML)
    permit(site, "manual")
    digest, approvals = study.digest(), Approvals(site.approvals_path)

    def asks() -> None:
        admit(site, centre.roster(), study_id(study), TOML.encode(), utc_now())

    with monkeypatch.context() as patch:
        patch.setattr(kept_offers, "_MOST_BYTES", 100)
        with pytest.raises(PolicyRefused, match="is not permitted"):
            asks()
    assert approvals.state(digest) is None  # nor does anybody wait for an answer that nobody can give

    monkeypatch.setenv(failpoints.VARIABLE, "agent: after an offer is kept")
    kills_itself(asks)
    monkeypatch.delenv(failpoints.VARIABLE)
    assert approvals.state(digest) is None
    assert kept_offers.kept(site.state, digest.hex()) is not None
    assert waiting.noted(site.state, digest.hex()) is not None
    with pytest.raises(PolicyRefused, match="waits for the approval"):
        asks()
    assert approvals.state(digest) is ApprovalState.HELD
    persons.approve(site, study.name, NOBODY, despite_twins=False)
    asks()
