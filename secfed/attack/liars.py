"""Hospitals that do not follow the masked protocol, under an aggregator that does: exchanges with retries.

Every lie has an exchange of its own. It brings something if there is no sum, or a wrong one, if it costs more
than the liar and one other hospital, or if somebody honest is named as at fault by itself. (A complaint about
garbage leaves two that may have lied; such a pair is named as a pair.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from secfed.attack import scene
from secfed.attack.attack import AttackSetting, attack
from secfed.attack.evidence import Count
from secfed.crypto import labels, thresholds
from secfed.crypto.codec import Buffer
from secfed.crypto.fixedpoint import FixedPoint
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.messages import Advert, Confirmation, Message, Shares, Sharing, Specification, peek_type
from secfed.errors import SecfedError, WrongState
from secfed.protection.registry import MASKED
from secfed.server.round import RoundSum, Rules, sum_securely
from secfed.wire.frames import Step, decode
from secfed.wire.layout import Exchange, Field, Layout, state_digest
from secfed.wire.transport import OnReply

STATE: Final = b"the broadcast"
BOUND: Final = 1.0
_LEAST: Final = 5  # a dispute leaves out two; three are needed for a sum
_MOST: Final = 8  # a lie is told to single hospitals, however many there are


@dataclass(frozen=True)
class Liar:
    """What one site does wrong, in every attempt from ``since`` on."""

    since: int = 0
    silent: str | None = None  # stage from which on it does not answer
    twin_keys: bool = False  # its seal key is its mask key
    copies: str | None = None  # another site whose advertised seal key it advertises, too, once it is known
    # bad_seeds, bad_shares: peers whose envelope holds no pair seed, or another share than it states
    bad_seeds: tuple[str, ...] = ()
    bad_shares: tuple[str, ...] = ()
    false_commitment: bool = False  # what it advertises of its self-mask seed belongs to another seed
    accuses: tuple[str, ...] = ()  # senders of whom it complains
    hides: bool = False  # it complains of nobody, and goes on whatever its envelopes held
    false_shares: tuple[str, ...] = ()  # peers whose share it returns wrongly


class LyingExchange:
    """One exchange of ``sites`` hospitals, some of which lie; replies arrive in ``order`` or the roster's."""

    def __init__(
        self,
        sites: int,
        liars: Mapping[str, Liar],
        *,
        order: tuple[str, ...] = (),
        seed: int = 0,
        consortium: Callable[..., scene.SimulatedConsortium] = scene.SimulatedConsortium,
    ) -> None:
        self.layout = Layout((Field("x", (3,), BOUND, 32), Field("n", (), BOUND, 64)), sites)
        self.liars = liars
        self.consortium = consortium(sites, runs=self.layout.shape.runs, seed=seed)
        self.consortium.shape = self.layout.shape
        self.consortium.broadcast_digest = state_digest(STATE)
        self.names = self.consortium.names
        self.honest = tuple(name for name in self.names if name not in liars)
        self.colluders = thresholds.default_colluders(sites)
        self.asked: list[tuple[str, int, tuple[str, ...]]] = []  # stage, attempt, sites of all that was sent
        self._order = order or self.names
        self._sessions: dict[str, MaskedSite] = {}
        self._specs: dict[str, Specification] = {}
        self._adverts: dict[tuple[int, str], Advert] = {}

    def run(self, max_attempts: int = 3) -> RoundSum:
        """The finished exchange; RoundAborted if it was given up."""
        rules = Rules(
            "study",
            self.consortium.aggregator,
            self.consortium.roster,
            MASKED,
            lambda cohort: thresholds.default_threshold(cohort, self.colluders),
            min_cohort=max(3, self.colluders + 2),
            max_attempts=max_attempts,
        )
        exchange = Exchange("update", "all", self.layout)
        return sum_securely(1, 0, exchange, STATE, list(self.names), rules, self._ask)

    def is_right(self, summed: RoundSum) -> bool:
        """Whether the totals are those of the survivors, exactly."""
        steps = [FixedPoint.choose(bound=BOUND, bits=bits, sites=self.layout.sites).step for bits in (32, 64)]
        updates = [self.consortium.updates[name] for name in summed.result.survivors]
        for name, step, *runs in zip(("x", "n"), steps, *updates, strict=True):
            signed = np.sum(runs, axis=0, dtype=runs[0].dtype).view(np.dtype(f"i{runs[0].dtype.itemsize}"))
            if summed.totals[name].reshape(-1).tolist() != [int(lane) * step for lane in signed]:
                return False
        return True

    def _ask(self, stage: str, requests: Mapping[str, Buffer], on_reply: OnReply) -> None:
        attempts = set()
        for site in sorted(requests, key=self._order.index):
            step = decode(requests[site])
            if not isinstance(step, Step):
                raise WrongState("nothing but attempts is played")
            attempts.add(step.attempt)
            liar = self.liars.get(site, Liar())
            liar = Liar() if step.attempt < liar.since else liar
            if liar.silent is not None and scene.STAGES.index(liar.silent) <= scene.STAGES.index(stage):
                continue
            if peek_type(step.message) == Specification.TYPE:
                self._sessions[site] = MaskedSite(self.consortium.contribution(site))
                self._specs[site] = Specification.decode(step.message)
            before = self._sessions[site].state
            try:
                reply = self._sessions[site].handle(step.message)
            except SecfedError:
                if site not in self.liars:
                    raise
                continue
            if site in self.liars:
                reply = self._falsified(stage, site, liar, reply, before)
            if stage == "advertise":
                self._adverts[step.attempt, site] = Advert.decode(reply)
            on_reply(site, reply)
        (attempt,) = attempts
        self.asked.append((stage, attempt, tuple(requests)))

    def _falsified(self, stage: str, site: str, liar: Liar, reply: Buffer, state: Any) -> Buffer:
        lies: dict[str, Callable[..., Message]] = {
            "advertise": self._advert,
            "share": self._sharing,
            "confirm": self._confirmation,
            "unmask": self._shares,
        }
        return lies[stage](site, liar, reply, state).encode() if stage in lies else reply

    def _sign(self, site: str, label: bytes, *parts: Buffer) -> bytes:
        return self.consortium.identities[site].sign(label, self._specs[site].digest, *parts)

    def _advert(self, site: str, liar: Liar, reply: Buffer, _: Any) -> Message:
        advert = Advert.decode(reply)
        if liar.twin_keys:
            advert = replace(advert, seal_key=advert.mask_key)
        other = self._adverts.get((self._specs[site].attempt, liar.copies or ""))
        if other is not None:
            advert = replace(advert, seal_key=other.seal_key)
        if liar.false_commitment:
            advert = replace(advert, commitment=bytes(32))
        advert = replace(advert, signature=self._sign(site, labels.SIGN_ADVERT, advert.body()))
        session = self._sessions[site]
        session.state = replace(session.state, advert=advert)  # type: ignore[type-var]
        return advert

    def _sharing(self, site: str, liar: Liar, reply: Buffer, _: Any) -> Message:
        envelopes = []
        adverts_digest = self._sessions[site].state.dealer.adverts_digest  # type: ignore[attr-defined]
        for envelope in Sharing.decode(reply).envelopes:
            if envelope.recipient in liar.bad_seeds:
                envelope = replace(envelope, sealed_seed=bytes(len(envelope.sealed_seed)))
            if envelope.recipient in liar.bad_shares:
                envelope = replace(envelope, self_mask_share_digest=bytes(32))
            signature = self._sign(site, labels.SIGN_ENVELOPE, adverts_digest, envelope.body())
            envelopes.append(replace(envelope, signature=signature))
        return Sharing(tuple(envelopes))

    def _confirmation(self, site: str, liar: Liar, reply: Buffer, state: Any) -> Message:
        answer = Confirmation.decode(reply)
        cohort = self._specs[site].cohort
        true = () if liar.hides else answer.complaints
        accused = tuple(name for name in cohort if name in {*liar.accuses, *true})
        answer = replace(answer, complaints=accused)
        signature = self._sign(site, labels.SIGN_CONFIRMATION, state.dealer.adverts_digest, answer.body())
        return replace(answer, signature=signature)

    def _shares(self, site: str, liar: Liar, reply: Buffer, _: Any) -> Message:
        shares = []
        for share in Shares.decode(reply).shares:
            if share.peer in liar.false_shares:
                share = replace(share, share=share.share[:-1] + bytes([share.share[-1] ^ 1]))
            shares.append(share)
        unsigned = Shares(tuple(shares))
        return replace(unsigned, signature=self._sign(site, labels.SIGN_UNMASK, unsigned.body()))


@attack(
    "framing",
    "lies about keys, envelopes and shares, so that there is no sum or another hospital is blamed",
    who="one hospital",
    defence="left out",
)
def framing(setting: AttackSetting) -> Count:
    """Every lie in an exchange of its own."""
    hospitals = setting.between(_LEAST, _MOST)
    first, second, *_, last = LyingExchange(hospitals, {}).names
    lies = (
        Liar(bad_seeds=(first, second)),
        Liar(bad_shares=(first,)),
        Liar(bad_seeds=(first,), silent="confirm"),
        Liar(accuses=(first,)),
        Liar(twin_keys=True),
        Liar(copies=first),
        Liar(false_shares=(first, second)),
    )
    exchanges = [LyingExchange(hospitals, {last: lie}, seed=setting.seed) for lie in lies]
    return Count(sum(map(_brings_something, exchanges)), len(lies), "lies")


def _brings_something(exchange: LyingExchange) -> bool:
    try:
        summed = exchange.run()
    except SecfedError:  # given up, or an honest hospital refuses
        return True
    lost = set(exchange.honest) - set(summed.result.survivors)
    framed = any(_names_honest_only(exchange, fault) for fault in summed.faults)
    return framed or len(lost) > len(exchange.liars) or not exchange.is_right(summed)


def _names_honest_only(exchange: LyingExchange, fault: str) -> bool:
    """Whether a sentence of the transcript is about hospitals that did not lie."""
    named = {name for name in exchange.names if name in fault}
    return bool(named) and not named & set(exchange.liars)
