"""What a person reads of a study before approving it."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from secfed.deploy.admission import kept_offers
from secfed.deploy.admission.kept_offers import KeptOffer
from secfed.site.terms import Terms
from secfed.study.study import Study
from tests.conftest import ROOT

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
    kept_offers.keep(tmp_path, terms(STUDY))
    assert kept_offers.kept(tmp_path, digest) is None
    monkeypatch.undo()
    kept_offers.keep(tmp_path, terms(STUDY))
    assert kept_offers.kept(tmp_path, digest) == KeptOffer.of(terms(STUDY))
    kept_offers.forget(tmp_path, digest)
    assert kept_offers.kept(tmp_path, digest) is None
