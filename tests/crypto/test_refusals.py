"""Every refusal has a test in which a malicious server tries exactly that; what refusals promise."""

from __future__ import annotations

import gc
import importlib
import weakref

import pytest

from secfed.crypto.messages import UnmaskRequest
from secfed.crypto.refusals import Refusal
from secfed.errors import SecfedError
from tests.ring import as_integers
from tests.simulator import Consortium

MODULES = (
    "masked.test_refusals_specification",
    "masked.test_refusals_keys",
    "masked.test_refusals_unmasking",
    "masked.test_refusals_model",
    "masked.test_sparse",
    "encrypted.test_sum_checks",
)


def _provoked() -> list[Refusal]:
    pytest.importorskip("tenseal", reason="one of the modules is about encrypted sums")
    modules = [importlib.import_module(f"tests.crypto.{name}") for name in MODULES]
    tests = [value for module in modules for name, value in vars(module).items() if name.startswith("test_")]
    return [refusal for test in tests for refusal in getattr(test, "provokes", ())]


def test_every_refusal_is_provoked_by_one_registered_test() -> None:
    assert sorted(refusal.number for refusal in _provoked()) == sorted(r.number for r in Refusal)


def test_numbers_ascend_and_are_never_reused() -> None:
    numbers = [refusal.number for refusal in Refusal]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 1


@pytest.mark.parametrize("refusal", Refusal)
def test_an_error_names_its_number_and_gives_a_remedy(refusal: Refusal) -> None:
    error = refusal.refuse("hospital-3")
    assert type(error) is refusal.error
    assert str(error).startswith(f"refusal {refusal.number}: ")
    assert "hospital-3" in str(error)
    assert error.remedy


def test_a_refusal_drops_the_secrets_of_the_attempt() -> None:
    """Once the error has been handled, nothing keeps the closed session's state alive."""
    attempt = Consortium().attempt().run(until="unmask")
    site = "hospital-0"
    states = [weakref.ref(state) for state in attempt.states.pop(site)]
    assert states[-1]() is attempt.sites[site].state
    try:
        attempt.sites[site].handle(attempt.pending(site, UnmaskRequest, views=()))
    except SecfedError as error:
        assert "refusal 32" in error.message  # noqa: PT017 - the handled error must go, traceback and all
    gc.collect()
    assert [state() for state in states] == [None] * len(states)


def test_a_refusal_at_one_site_leaves_the_others_their_sum() -> None:
    consortium = Consortium()

    def down(stage: str, site: str, message: bytes) -> bytes:
        return b"nonsense" if (stage, site) == ("mask", "hospital-3") else message

    attempt = consortium.attempt(down=down).run()
    assert list(attempt.refusals) == ["hospital-3"]
    assert attempt.server.survivors == ("hospital-0", "hospital-1", "hospital-2", "hospital-4")
    assert as_integers(attempt.server.sums) == consortium.expected(attempt.server.survivors)
