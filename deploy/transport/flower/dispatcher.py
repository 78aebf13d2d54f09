"""What the aggregator sends through Flower, to which node, and what an answer means. Sans-I/O, one thread.

An offer goes to every node, and the site behind it answers under its own signature: a node cannot pass for a
site whose agent it does not reach. Where two nodes reach one site, the first is used as long as it is there.
An envelope whose courier got lost is sent again, with the same request id, until it is answered or withdrawn.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from secfed.crypto.identity import Identity
from secfed.deploy.transport.chunking import ChunkedFrame
from secfed.deploy.transport.flower import envelope
from secfed.deploy.transport.flower.envelope import EnvelopeHeader
from secfed.deploy.transport.messages import REQUEST_ID_BYTES, HelloRequest, RefusalMessage
from secfed.deploy.transport.progress import Waits
from secfed.deploy.transport.study_server import Offer, Refused, SiteReply, SiteState, printable
from secfed.errors import MalformedMessage, PolicyRefused, ProtocolError, RosterError
from secfed.protection.interface import SiteId

log = logging.getLogger("secfed.wire.transport")

_OFFER_AGAIN_S: Final = 10.0  # to a node behind which nobody serves the study yet
_DOUBLE_AGAIN_S: Final = 60.0  # to a node that leads to a site that another node leads to, or to a stranger
_MAX_REFUSAL_BYTES: Final = 4096


@dataclass(frozen=True)
class PendingRequest:
    """An envelope to be sent."""

    tag: int
    node: int
    head: bytes = field(repr=False)
    frame: memoryview = field(repr=False)


@dataclass(eq=False)
class FlowerSite(SiteState):
    """One site."""

    serving: bool = True  # Flower does not tell a site that opens the study from one that serves it
    node: int | None = None  # where it is found
    tag: int | None = None  # of the envelope that asks it, while that is under way

    @property
    def calling(self) -> bool:
        """It is there while the node that leads to it is."""
        return self.node is not None


@dataclass
class _Node:
    site: SiteId | None = None
    tag: int | None = None  # of an offer under way
    next_s: float = 0.0  # no offer before


@dataclass(frozen=True)
class _Sent:
    node: int
    kind: int
    site: SiteId  # empty for an offer
    request_id: bytes
    finished: bool = False


class FlowerDispatcher:
    """The envelopes of one study: the requests of a ``StudyServer``; ``members`` are sites and their keys."""

    def __init__(self, identity: Identity, members: Mapping[SiteId, bytes], offer: Offer) -> None:
        self._identity, self._members, self._offer = identity, members, offer
        self.sites: dict[SiteId, FlowerSite] = {site: FlowerSite() for site in members}
        self.informed: set[SiteId] = set()
        self.waits = Waits()
        self.finished = False
        self._nodes: dict[int, _Node] = {}
        self._sent: dict[int, _Sent] = {}
        self._dropped: list[int] = []
        self._tags = 0
        self._logged: set[tuple[int, str]] = set()

    def ask(self, frames: Mapping[SiteId, ChunkedFrame]) -> None:
        """Ask these sites."""
        for site, frame in frames.items():
            self._withdraw(self.sites[site])
            self.sites[site].request = frame

    def withdraw(self) -> None:
        """Wait for nobody any more."""
        for state in self.sites.values():
            self._withdraw(state)

    def finish(self, last: Mapping[SiteId, ChunkedFrame]) -> None:
        """The study is over, but for these last requests."""
        self.withdraw()
        self.finished = True
        self.ask(last)
        for node in self._nodes.values():
            node.next_s = 0.0

    def _withdraw(self, state: FlowerSite) -> None:
        state.request = None
        if state.tag is not None:
            self._sent.pop(state.tag, None)
            self._dropped.append(state.tag)
            state.tag = None

    def orders(self, nodes: Collection[int], now_s: float) -> list[PendingRequest]:
        """What to send now that these nodes are there."""
        for gone in self._nodes.keys() - set(nodes):
            self._unbind(gone)
            del self._nodes[gone]
        found: list[PendingRequest] = []
        for number in nodes:
            node = self._nodes.setdefault(number, _Node())
            state = None if node.site is None else self.sites[node.site]
            if state is not None:
                state.seen_s = now_s
            request = None
            if state is not None and state.tag is None and state.declined is None:
                request = state.request
            if state is not None and node.site is not None and request is not None:
                found.append(self._order(number, envelope.REQUEST, node.site, request))
                state.tag = found[-1].tag
                state.bytes_down += request.header.total_bytes
            elif node.tag is None and now_s >= node.next_s and self._wants_offer(node, state):
                found.append(self._order_offer(number, state))
                node.tag, node.next_s = found[-1].tag, now_s + _OFFER_AGAIN_S
        return found

    def dropped(self) -> list[int]:
        """Envelopes, since this was last asked, to which no answer is wanted any more."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def lost(self, tag: int) -> None:
        """An envelope came to nobody, or its answer is none."""
        sent = self._sent.pop(tag, None)
        if sent is None:
            return
        node = self._nodes.get(sent.node)
        if node is not None and node.tag == tag:
            node.tag = None
        elif node is not None:
            node.next_s = 0.0  # ask who is there, before the request is sent again
        if sent.site and self.sites[sent.site].tag == tag:
            self.sites[sent.site].tag = None
        self._unbind(sent.node)

    def disconnected(self) -> None:
        """Whoever carried envelopes is gone, and all that were under way with it."""
        for number in list(self._nodes):
            self._unbind(number)
        self._nodes.clear()
        self._sent.clear()
        self._dropped.clear()
        for state in self.sites.values():
            state.tag = None

    def check(self, tag: int, head: EnvelopeHeader, size_bytes: int) -> None:
        """Check an answer before its frame is read."""
        sent = self._sent.get(tag)
        if sent is None:
            raise MalformedMessage("an answer for which nobody waits")
        if head.kind not in envelope.ANSWERS_TO[sent.kind] or sent.site not in ("", head.site):
            raise MalformedMessage("an answer of another kind, or of another site than was asked")
        if (head.header.study, head.header.request_id) != (self._offer.study, sent.request_id):
            raise MalformedMessage("an answer to another envelope")
        try:
            if head.site not in self._members:
                raise RosterError(f"site {head.site!r} is no member of this study")
            head.check(self._members[head.site], head.site)
        except ProtocolError as error:
            self._note(sent.node, f"a node of the federation does not speak for a site: {error.message}")
            if sent.node in self._nodes:
                self._nodes[sent.node].next_s += _DOUBLE_AGAIN_S
            raise
        is_reply = head.kind == envelope.REPLY
        head.check_size(size_bytes, self._offer.max_answer_bytes if is_reply else _MAX_REFUSAL_BYTES)

    def take(
        self, tag: int, head: EnvelopeHeader, frame: memoryview, release: Callable[[], None]
    ) -> SiteReply | Refused | None:
        """Take an answer that :meth:`check` let pass; what the round is told, if anything."""
        sent = self._sent.get(tag)
        if sent is None:
            return None  # withdrawn while it was read
        state, site = self.sites[head.site], head.site
        if head.kind in (envelope.HERE, envelope.DECLINED):
            self._hear(tag, sent, head, frame)
            return None
        refusal = RefusalMessage.decode(frame) if head.kind == envelope.REFUSED else None
        del self._sent[tag]
        state.tag = state.request = None
        state.bytes_up += len(frame)
        if refusal is None:
            return SiteReply(site, sent.request_id, frame, release)
        refused = replace(Refused.of(site, refusal), request_id=sent.request_id)
        if refused.kind == PolicyRefused.__name__:
            state.declined = refused  # until it takes an offer again: nobody counts on it
        return refused

    def _hear(self, tag: int, sent: _Sent, head: EnvelopeHeader, frame: memoryview) -> None:
        """A site says where it stands."""
        state = self.sites[head.site]
        declined: Refused | None = None
        software = state.software
        if head.kind == envelope.DECLINED:
            declined = Refused.of(head.site, RefusalMessage.decode(frame))
        else:
            software = printable(HelloRequest.decode(frame).software)
        del self._sent[tag]
        node = self._nodes.get(sent.node)
        if sent.kind == envelope.REQUEST:
            state.tag = None
        elif node is not None:
            node.tag = None
        if node is None:
            return
        if state.node is not None and state.node != sent.node:
            self._note(sent.node, f"site {head.site} is reached by two nodes; node {state.node} is used")
            node.next_s += _DOUBLE_AGAIN_S
            return
        if node.site not in (None, head.site):
            self._unbind(sent.node)
        node.site, state.node, state.declined, state.software = head.site, sent.node, declined, software
        if sent.finished:
            self.informed.add(head.site)

    def _wants_offer(self, node: _Node, state: FlowerSite | None) -> bool:
        if state is None or state.declined is not None:
            return not self.finished or node.site not in self.informed
        return self.finished and state.request is None and node.site not in self.informed

    def _order_offer(self, number: int, state: FlowerSite | None) -> PendingRequest:
        over = self.finished and (
            state.request is None or state.gives_up
            if state is not None
            else not any(other.request for other in self.sites.values() if other.node is None)
        )
        served = self._offer.said(finished=over, waits=self.waits)
        request_id = secrets.token_bytes(REQUEST_ID_BYTES)
        chunked = ChunkedFrame.wrap(self._offer.study, request_id, served.encode())
        return self._order(number, envelope.OFFER, "", chunked, finished=over)

    def _order(
        self, number: int, kind: int, site: SiteId, chunked: ChunkedFrame, *, finished: bool = False
    ) -> PendingRequest:
        self._tags += 1
        self._sent[self._tags] = _Sent(number, kind, site, chunked.header.request_id, finished)
        head = EnvelopeHeader.sign(self._identity, kind, site, chunked).encode()
        return PendingRequest(self._tags, number, head, chunked.frame)

    def _unbind(self, number: int) -> None:
        node = self._nodes.get(number)
        if node is None or node.site is None:
            return
        self.sites[node.site].node = None
        node.site = None
        for other in self._nodes.values():  # one of them may lead to the same site
            if other.site is None:
                other.next_s = 0.0

    def _note(self, node: int, text: str) -> None:
        if (node, text) not in self._logged:  # once: anybody who is let into the federation can cause it
            self._logged.add((node, text))
            log.warning("%s", text, extra={"facts": {"node": node}})
