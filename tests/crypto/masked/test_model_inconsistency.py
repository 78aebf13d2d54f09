"""A server isolates one site by sending it another model: the sites refuse, and otherwise it gains noise.

The attack (Pasquini, Francati, Ateniese, CCS 2022): every other site gets a model whose update is zero, so
that the "sum" is the update of the one site that got the real model.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from secfed.crypto import specification
from secfed.crypto.codec import Buffer
from secfed.crypto.lanes import Run, VectorShape
from secfed.crypto.masked import client as masked_site
from secfed.crypto.masked import dealing, states
from secfed.crypto.masked.server_sum import Attempt as ServerAttempt
from secfed.crypto.messages import Advert, Confirmation
from secfed.crypto.refusals import Refusal
from tests.simulator import Attempt, Consortium

TARGET = "hospital-2"
LANES = 4096


def dead_consortium() -> Consortium:
    """Every update is zero but the target's, which is small and smooth, as updates are."""
    consortium = Consortium(5, runs=[Run(32, LANES), Run(16, LANES)])
    wave = 1000 * np.sin(np.arange(LANES) / 50)
    for name in consortium.names:
        values = wave if name == TARGET else 0 * wave
        consortium.updates[name] = (
            values.astype(np.int32).view(np.uint32),
            values.astype(np.int16).view(np.uint16).astype(np.uint32),
        )
    return consortium


def another_broadcast(consortium: Consortium) -> bytes:
    return bytes(reversed(consortium.broadcast_digest))


def isolated(consortium: Consortium) -> dict[str, dict[str, object]]:
    """The target trained on another broadcast than the rest."""
    return {TARGET: {"broadcast_digest": another_broadcast(consortium)}}


def test_without_the_attack_this_consortium_would_show_the_target() -> None:
    """The control: with equal digests everywhere, the sum of these updates is the target's."""
    consortium = dead_consortium()
    attempt = consortium.attempt().run()
    for total, update in zip(attempt.server.sums, consortium.updates[TARGET], strict=True):
        np.testing.assert_array_equal(total, update)


def test_the_target_refuses_a_specification_for_the_others_broadcast() -> None:
    consortium = dead_consortium()
    attempt = consortium.attempt(contributions=isolated(consortium))
    attempt.refused(TARGET, attempt.requests[TARGET], Refusal.BROADCAST_UNKNOWN)


def _two_specifications(consortium: Consortium) -> Attempt:
    """The aggregator signs a second specification, just for the target."""
    theirs = consortium.specification(broadcast_digest=another_broadcast(consortium)).encode()

    def down(stage: str, site: str, message: Buffer) -> Buffer:
        return theirs if (stage, site) == ("advertise", TARGET) else message

    attempt = consortium.attempt(contributions=isolated(consortium), down=down)

    def look_away(site: str, reply: Buffer) -> None:
        attempt.server._state.adverts[site] = Advert.decode(reply)  # type: ignore[attr-defined]

    attempt.server.receive = look_away  # type: ignore[method-assign]
    attempt.step()
    del attempt.server.receive  # type: ignore[method-assign]
    return attempt


def test_two_signed_specifications_void_each_others_keys() -> None:
    attempt = _two_specifications(dead_consortium())
    for site in list(attempt.requests):
        attempt.refused(site, attempt.requests[site], Refusal.ADVERT_SIGNATURE)


def test_without_signatures_the_envelopes_still_do_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defence in depth: an envelope is sealed under the specification its sender was shown."""
    for module in (dealing, states, specification):
        monkeypatch.setattr(module, "verified", lambda *_args, **_kwargs: None)
    monkeypatch.setattr(ServerAttempt, "check_signature", lambda *_args: None)
    consortium = dead_consortium()
    attempt = _two_specifications(consortium).run(until="confirm")
    others = tuple(name for name in consortium.names if name != TARGET)
    for site in consortium.names:
        answer = Confirmation.decode(attempt.deliver(site, attempt.requests[site]))
        assert answer.complaints == (others if site == TARGET else (TARGET,))


def test_without_any_check_the_sum_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defence in depth: masks are derived from the broadcast, so those of the target do not cancel."""
    consortium = dead_consortium()
    monkeypatch.setattr(masked_site, "check_specification", lambda *_args, **_kwargs: None)
    attempt = consortium.attempt(contributions=isolated(consortium)).run()
    assert attempt.server.survivors == consortium.names
    assert not attempt.refusals
    for run, total, update in zip(
        consortium.shape.runs, attempt.server.sums, consortium.updates[TARGET], strict=True
    ):
        _assert_noise(total, run.bits)
        _assert_noise(total - update, run.bits)
        as_signed = update.astype(f"u{run.bits // 8}").view(f"i{run.bits // 8}")
        total_signed = total.astype(f"u{run.bits // 8}").view(f"i{run.bits // 8}")
        # The standard deviation of a correlation by chance is 1/64.
        assert abs(float(np.corrcoef(as_signed, total_signed)[0, 1])) < 0.1


def _assert_noise(lanes: NDArray[np.uint32], bits: int) -> None:
    """Each bit position is set in about half of the lanes; a value hardly ever repeats."""
    for bit in range(bits):
        share = float(np.mean((lanes >> np.uint32(bit)) & np.uint32(1)))
        assert abs(share - 0.5) < 0.05  # six standard deviations
    assert np.unique(lanes).size > 0.9 * LANES


def test_a_target_with_another_layout_gains_noise_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds for the layout: the same bytes under another meaning do not cancel."""
    consortium = dead_consortium()
    monkeypatch.setattr(masked_site, "check_specification", lambda *_args, **_kwargs: None)
    other = VectorShape(consortium.shape.runs, bytes(32))
    attempt = consortium.attempt(contributions={TARGET: {"shape": other}}).run()
    for run, total in zip(consortium.shape.runs, attempt.server.sums, strict=True):
        _assert_noise(total, run.bits)
