"""A hospital at the end of an encrypted study: its key goes, its model stays and is named once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from secfed.records.chain_file import verify_file
from secfed.records.transcript import MODEL, TRANSCRIPT
from secfed.runs.run_folder import TRANSCRIPT_FILE
from secfed.site import runtime
from tests.secfed.durable_case import VICTIM, Consortium, Hospital, Killed, study


def _models_of(hospital: Hospital) -> list[Mapping[str, Any]]:
    assert hospital.open is not None
    path = hospital.open.folder / TRANSCRIPT_FILE
    entries = verify_file(path, hospital.identity.public_bytes, TRANSCRIPT)
    return [entry.body for entry in entries if entry.kind == MODEL]


def test_the_study_key_goes_with_the_study(tmp_path: Path) -> None:
    pytest.importorskip("tenseal")
    consortium = Consortium(study("encrypted", None), tmp_path / "x")
    consortium.run()
    hospital = consortium.hospitals[VICTIM]
    assert "study-key" in hospital.files
    assert hospital.open is not None
    hospital.open.finish()
    assert (hospital.open.folder / "model.safetensors").is_file()
    assert hospital.files == ["position"]
    consortium.close()


def test_a_study_that_is_finished_twice_keeps_its_model(tmp_path: Path) -> None:
    """The agent finishes again where a crash came between; the state is gone by then, and begins anew."""
    pytest.importorskip("tenseal")
    consortium = Consortium(study("encrypted", None), tmp_path / "x")
    consortium.run()
    hospital = consortium.hospitals[VICTIM]
    hospital.start().finish()
    assert hospital.open is not None
    model = (hospital.open.folder / "model.safetensors").read_bytes()
    hospital.start().finish()
    assert (hospital.open.folder / "model.safetensors").read_bytes() == model
    (hospital.open.folder / "model.safetensors").unlink()
    hospital.start().finish()  # what it could write now is an untrained one
    assert not (hospital.open.folder / "model.safetensors").exists()
    assert len(_models_of(hospital)) == 1
    consortium.close()


@pytest.mark.parametrize("point", ["before model written", "after model written", "after model recorded"])
def test_a_site_that_is_killed_at_the_end_names_its_model_once(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tenseal")
    consortium = Consortium(study("encrypted", None), tmp_path / "x")
    consortium.run()
    hospital = consortium.hospitals[VICTIM]
    assert hospital.open is not None

    def killed(name: str) -> None:
        if name == f"site: {point}":
            raise Killed(name)

    with monkeypatch.context() as patch:
        patch.setattr(runtime, "failpoint", killed)
        with pytest.raises(Killed):
            hospital.open.finish()
    hospital.start().finish()
    data = (hospital.open.folder / "model.safetensors").read_bytes()
    (named,) = _models_of(hospital)
    assert named["sha256"] == hashlib.sha256(data).hexdigest()
    assert (named["round"], named["sums"], named["bytes"]) == (1, 2, len(data))
    assert len(named["metrics"]) == 64
    consortium.close()
