"""What the aggregator makes of letters, without sockets and without Flower."""

from __future__ import annotations

import pytest

from secfed.crypto.identity import Identity, Roster
from secfed.deploy.transport.chunking import ChunkedFrame, wrap_all
from secfed.deploy.transport.flower import envelope
from secfed.deploy.transport.flower.dispatcher import FlowerDispatcher, PendingRequest
from secfed.deploy.transport.flower.envelope import EnvelopeHeader
from secfed.deploy.transport.messages import HelloRequest, RefusalMessage
from secfed.deploy.transport.study_server import Offer, Refused, SiteReply

STUDY = "breast-cancer-0123"
SITE = "hospital-1"
NODE = 7


class Centre:
    """A post with one hospital behind one node; its clock is a number."""

    def __init__(self) -> None:
        aggregator, self.hospital = Identity.generate("aggregator"), Identity.generate(SITE)
        roster = Roster.of(aggregator, [self.hospital, *(Identity.generate(f"other-{n}") for n in (1, 2))])
        self.dispatcher = FlowerDispatcher(
            aggregator, dict(roster.members), Offer(STUDY, b"[study]\n", 1 << 20)
        )
        self.now_s = 0.0

    def next_order(self) -> PendingRequest:
        self.now_s += 1000.0
        (order,) = self.dispatcher.orders([NODE], self.now_s)
        return order

    def ask(self, text: bytes) -> None:
        self.dispatcher.ask(wrap_all(STUDY, bytes([len(text)]) * 16, {SITE: text}))

    def answer(self, order: PendingRequest, kind: int, frame: bytes) -> SiteReply | Refused | None:
        request_id = EnvelopeHeader.decode(order.head).header.request_id
        head = EnvelopeHeader.sign(self.hospital, kind, SITE, ChunkedFrame.wrap(STUDY, request_id, frame))
        self.dispatcher.check(order.tag, head, len(frame))
        return self.dispatcher.take(order.tag, head, memoryview(frame), lambda: None)

    def here(self) -> None:
        order = self.next_order()
        assert EnvelopeHeader.decode(order.head).kind == envelope.OFFER
        assert self.answer(order, envelope.HERE, HelloRequest(STUDY, "test").encode()) is None


@pytest.mark.parametrize(("kind", "counts"), [("PolicyRefused", False), ("RangeError", True)])
def test_a_hospital_whose_policy_refuses_work_is_not_counted_on_until_it_takes_an_offer(kind, counts):
    """Were it counted as there, rounds would fail in vain, and the others' budgets pay for each of them."""
    centre = Centre()
    centre.here()
    centre.ask(b"go")
    said = RefusalMessage(STUDY, b"", kind, "not on Sundays").encode()
    refused = centre.answer(centre.next_order(), envelope.REFUSED, said)
    assert isinstance(refused, Refused)
    assert (centre.dispatcher.sites[SITE].declined is None) == counts
    centre.ask(b"again")
    if not counts:
        centre.here()  # an offer comes first
    order = centre.next_order()
    assert (EnvelopeHeader.decode(order.head).kind, bytes(order.frame)) == (envelope.REQUEST, b"again")
    assert isinstance(centre.answer(order, envelope.REPLY, b"done"), SiteReply)
