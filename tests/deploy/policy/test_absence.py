"""Held, paused, waiting, refused, failed and removed: one word each, read alike on both sides."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.agent import control
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.policy.absence import HELD_TEXT, PAUSED_TEXT, REMOVED_TEXT, WAITING_TEXT, Absence
from secfed.deploy.policy.policy import Policy
from secfed.deploy.transport.client import refusal_message
from secfed.deploy.transport.study_server import Refused, SiteState
from secfed.errors import ConfigError, PolicyRefused, SecfedError
from secfed.study.study import Study
from tests.deploy.agent_case import POLICY, TOML

DIGEST = bytes(32)


def policy(folder: Path, more: str = "") -> Policy:
    path = folder / "policy.toml"
    path.write_text(POLICY.format(approve="automatic") + more, encoding="utf-8")
    return Policy.load(path)


def held(folder: Path) -> None:
    Approvals(folder / "approvals.json").require("tiny", DIGEST, utc_now(), manual=True)


def paused(folder: Path) -> None:
    control.pause(folder / "state")
    control.check_not_paused(folder / "state")


def waiting(folder: Path) -> None:
    hours = '[[hours]]\ndays = ["mon"]\nstart = "20:00"\nend = "21:00"\n'
    policy(folder, hours).enforce(Study.parse(TOML), datetime(2026, 11, 24, 12, tzinfo=UTC), sites=3)


def refused_by_policy(folder: Path) -> None:
    study = Study.parse(TOML.replace("learning_rate = 0.1", "learning_rate = 5.0"))
    policy(folder).enforce(study, utc_now(), sites=3)


def refused_by_a_person(folder: Path) -> None:
    approvals = Approvals(folder / "approvals.json")
    approvals.refuse_what("tiny", utc_now())
    approvals.require("tiny", DIGEST, utc_now(), manual=False)


def failed(_: Path) -> None:
    raise ConfigError("the disk is full")


@pytest.mark.parametrize(
    ("happens", "state"),
    [
        (held, Absence.HELD),
        (paused, Absence.PAUSED),
        (waiting, Absence.WAITING),
        (refused_by_policy, Absence.REFUSED),
        (refused_by_a_person, Absence.REFUSED),
        (failed, Absence.FAILED),
    ],
)
def test_a_hospital_and_the_study_centre_use_the_same_word(
    tmp_path: Path, happens: Callable[[Path], None], state: Absence
) -> None:
    with pytest.raises(SecfedError) as caught:
        happens(tmp_path)
    assert Absence.of(type(caught.value).__name__, caught.value.message) is state
    sent = refusal_message("tiny", b"", caught.value)
    seen = SiteState(declined=Refused.of("hospital-1", sent)).presence()
    assert seen.absence is state


def test_who_takes_part_is_not_absent() -> None:
    assert SiteState().presence().absence is None


@pytest.mark.parametrize("words", [HELD_TEXT, PAUSED_TEXT, WAITING_TEXT, REMOVED_TEXT])
def test_a_study_cannot_say_these_words_itself(tmp_path: Path, words: str) -> None:
    """Else a refusal would be shown as a pause, and told to nobody."""
    with pytest.raises(PolicyRefused) as caught:
        refused_by_policy(tmp_path)
    text = f"{caught.value.message}; data.label_column: the study has {words!r}; permitted here: 'num'"
    assert Absence.of("PolicyRefused", text) is Absence.REFUSED
