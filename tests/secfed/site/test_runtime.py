"""Opening a study at a hospital where something fails, and writing its model at the end."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from secfed.crypto.attempt import SiteLimits
from secfed.crypto.identity import Identity, Roster
from secfed.errors import ConfigError, TranscriptError
from secfed.records.transcript import CLOSED, MODEL
from secfed.runs.run_folder import MODEL_FILE
from secfed.site import runtime
from secfed.site.journal import Journal
from secfed.site.parts import Member
from secfed.site.runtime import SiteStudy, open_site_study
from secfed.site.terms import Terms
from tests.secfed.durable_case import NAMES, study

PEOPLE = [Identity.from_seed(name, hashlib.sha256(name.encode()).digest()) for name in NAMES]
ROSTER = Roster.of(Identity.from_seed("aggregator", bytes(32)), PEOPLE)


def open_at(state: Path) -> SiteStudy:
    terms = Terms.of(study("masked", None), ROSTER, NAMES[0])
    return open_site_study(
        terms,
        Member(PEOPLE[0], ROSTER),
        state,
        program=lambda terms, _store, _ledger: terms.algorithm.site(NAMES[0]),
        limits=SiteLimits(),
        dataset="wards",
        budgets=(),
        simulated=True,
    )


@pytest.mark.parametrize("what", ["SignedFiles", "DurableStore", "Transcript", "IdempotentLog"])
def test_what_was_opened_is_closed_where_the_rest_fails(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    class Noted(Journal):
        def close(self) -> None:
            closed.append("journal")
            super().close()

    def fails(*_: Any, **__: Any) -> Any:
        raise TranscriptError("a file was changed")

    monkeypatch.setattr(runtime, "Journal", Noted)
    with monkeypatch.context() as patch:
        patch.setattr(runtime, what, fails)
        with pytest.raises(TranscriptError, match="was changed"):
            open_at(tmp_path)
    assert closed == ["journal"]
    opened = open_at(tmp_path)  # nothing is locked
    assert closed == ["journal"]
    opened.close()
    assert closed == ["journal"] * 2


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "studies").write_text("a file")
    with pytest.raises(ConfigError, match=r"studies/tiny-[0-9a-f]{16}: ") as caught:
        open_at(tmp_path)
    assert caught.value.remedy


def test_a_model_whose_layers_share_a_tensor_is_written(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    replica = SimpleNamespace(
        model=lambda: {"in": weight, "out": weight, "turned": weight.T},
        metrics=dict[int, Any],
        kept=lambda rounds: rounds,
    )
    forgotten: list[bool] = []
    store: Any = SimpleNamespace(forget=lambda: forgotten.append(True))
    named: list[Any] = []
    log: Any = SimpleNamespace(append=lambda kind, body: named.append((kind, body.get("sha256"))))
    site: Any = SimpleNamespace(replica=replica, sums=1)
    terms: Any = SimpleNamespace(study=SimpleNamespace(rounds=1), study_id="study")
    nothing: Any = None
    transcript: Any = SimpleNamespace(closing=lambda: {"sums": 1})
    SiteStudy(site, terms, store, tmp_path, transcript, nothing, log, tuple).finish()
    found = load_file(tmp_path / MODEL_FILE)
    assert torch.equal(found["in"], weight)
    assert torch.equal(found["out"], weight)
    assert torch.equal(found["turned"], weight.T)
    assert forgotten == [True]
    digest = hashlib.sha256((tmp_path / MODEL_FILE).read_bytes()).hexdigest()
    assert named == [(MODEL, digest), (CLOSED, None)]
