"""What leaves a hospital when it refuses, and what the aggregator takes of it."""

from __future__ import annotations

import inspect

import pytest

from secfed import errors
from secfed.crypto.refusals import Refusal
from secfed.errors import BudgetExceeded, MalformedMessage, PolicyRefused, SecfedError
from secfed.wire.refusal_codes import OTHER, outgoing, recognised

SECRET = "patient 4711 weighs 81.3 kg"
CLASSES = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, SecfedError)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda one: one.__name__)
def test_no_words_of_an_error_leave(kind: type[SecfedError]) -> None:
    said = outgoing(kind(SECRET, remedy=SECRET))
    assert SECRET not in " ".join(said)
    assert said == outgoing(kind("something else"))
    assert recognised(*said) == said


def test_errors_of_local_work_cannot_be_told_apart() -> None:
    local = (errors.RangeError, errors.DataError, errors.ConfigError, errors.RoundAborted, errors.LinkError)
    assert {outgoing(kind(SECRET)) for kind in (*local, SecfedError)} == {OTHER}

    class Own(errors.DataError):
        """Of a user's own code."""

    assert outgoing(Own(SECRET)) == OTHER


@pytest.mark.parametrize("refusal", Refusal, ids=lambda one: f"R{one.number}")
def test_a_numbered_refusal_leaves_as_its_number_and_text(refusal: Refusal) -> None:
    text = f"refusal {refusal.number}: {refusal.text}"
    assert outgoing(refusal.refuse()) == (refusal.error.__name__, text)
    assert outgoing(refusal.refuse(SECRET + "\n\x1b")) == (refusal.error.__name__, text)
    assert recognised(refusal.error.__name__, text) == (refusal.error.__name__, text)


def test_it_names_sites_and_counts_unless_its_detail_is_in_words() -> None:
    assert outgoing(Refusal.ENVELOPE_SEALED.refuse("hospital-3"))[1].endswith("it states (hospital-3)")
    assert outgoing(Refusal.TOO_FEW_SURVIVORS.refuse("2 of 3"))[1].endswith("threshold (2 of 3)")
    for refusal in (Refusal.MALFORMED, Refusal.BROADCAST_RANGE, Refusal.BROADCAST_SHAPE):
        assert "weighs" not in outgoing(refusal.refuse("patient weighs 81"))[1]


def test_a_policy_names_its_keys_and_a_budget_nothing() -> None:
    refused = PolicyRefused(SECRET, keys=("privacy.epsilon", "roster", "no key: 81.3"))
    assert outgoing(refused) == ("PolicyRefused", "this site does not take part (privacy.epsilon, roster)")
    assert recognised(*outgoing(refused)) == outgoing(refused)
    assert outgoing(BudgetExceeded(SECRET)) == ("BudgetExceeded", "a privacy budget does not cover this")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("MalformedMessage", SECRET),
        ("DataError", ""),
        ("", ""),
        ("PolicyRefused", "this site does not take part (patient 4711: 81.3 kg!)"),
        ("BudgetExceeded", "a privacy budget does not cover this, nor that"),
        ("WrongState", outgoing(MalformedMessage(""))[1]),
        ("BadSignature", "refusal 3: the specification"),
    ],
)
def test_the_aggregator_takes_no_other_words(kind: str, reason: str) -> None:
    assert recognised(kind, reason) == OTHER
