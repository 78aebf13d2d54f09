"""Plays scripts against this implementation, from the file alone: what another implementation would do."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secfed.crypto import labels, sealing, shamir
from secfed.crypto.attempt import Entropy, SiteContribution, SiteLimits
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity, Roster, verify
from secfed.crypto.keystream import StreamCipher
from secfed.crypto.lanes import Run, VectorShape
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.masked.graph import SparseGraph
from secfed.crypto.masked.graph_messages import AdvertDigests, NeighbourSharing, SeedEnvelope
from secfed.crypto.masked.key_derivation import envelope_context, share_digest
from secfed.crypto.masked.server import MaskedServer
from secfed.crypto.messages import Adverts, Envelope, Sharing, Specification, peek_type
from secfed.errors import ProtocolError, RoundAborted, SecfedError
from secfed.site.journal import Journal
from tests.vectors.primitives import Json
from tests.vectors.scripts.book import put_together, steps_of
from tests.vectors.scripts.world import integers


class Differs(AssertionError):
    """The party did not do what the script says."""


def refusal_number(error: SecfedError) -> int | None:
    """The number that a refusal states."""
    word, _, rest = error.message.partition(" ")
    number = rest.partition(":")[0]
    return int(number) if word == "refusal" and number.isdigit() else None


def shape_of(party: Json) -> VectorShape:
    """The vector that a party sums."""
    return VectorShape(tuple(Run(*run) for run in party["runs"]), bytes.fromhex(party["layout_digest"]))


def graph_of(party: Json) -> SparseGraph | None:
    """The graph of masks; None for the complete one."""
    return SparseGraph(**party["graph"]) if party.get("graph") else None


@dataclass
class Heard:
    """What envelopes of the running attempt are bound to, by the messages that were answered."""

    spec_digest: bytes = b""
    adverts_digest: bytes = b""

    def note(self, message: bytes) -> None:
        """One message that a site answered."""
        kind = peek_type(message)
        if kind == Specification.TYPE:
            self.spec_digest = Specification.decode(message).digest
        elif kind == Adverts.TYPE:
            self.adverts_digest = Adverts.decode(message).digest
        elif kind == AdvertDigests.TYPE:
            self.adverts_digest = AdvertDigests.decode(message).digest


class Recorded(Entropy):
    """Draws as they are written down; sealing is random."""

    def __init__(self, draws: Json) -> None:
        self._tokens = {
            "mask secret": bytes.fromhex(draws["mask_secret"]),
            "self-mask seed": bytes.fromhex(draws["self_mask_seed"]),
        }
        self._key, self._left = draws["seal_key"], iter(draws["coefficients"])
        self._picks = iter(draws.get("picks", ()))

    def token(self, purpose: str) -> bytes:
        """The recorded secret."""
        return self._tokens[purpose]

    def below(self, limit: int) -> int:
        """The recorded coefficient; where a holder is drawn, its place among those that are left."""
        return int(next(self._left, ""), 16) if limit == shamir.PRIME else next(self._picks) % limit

    def seal_key(self) -> sealing.SealKey:
        """The recorded key pair."""
        return key_pair(self._key)


def key_pair(recorded: Json) -> sealing.SealKey:
    """A key pair of the file."""
    return sealing.SealKey.from_seeds(
        *(bytes.fromhex(recorded[name]) for name in ("mlkem_seed", "x25519_private"))
    )


class SitePlayer:
    """One site, its journal and its sessions."""

    def __init__(self, folder: Path | None = None) -> None:
        self._path = None if folder is None else folder / "journal.sqlite"
        self._journal = Journal(self._path)
        self._sessions: dict[str, MaskedSite] = {}
        self._label = ""
        self._party: dict[str, Json] = {}

    def open(self, label: str, party: Json, draws: Json) -> None:
        """A new session."""
        roster = Roster.decode(bytes.fromhex(party["roster"]))
        planned, limits = party["planned"], party["limits"]
        given = SiteContribution(
            identity=Identity.from_seed(party["site"], bytes.fromhex(party["identity_seed"])),
            roster=roster,
            study=party["study"],
            round=party["round"],
            exchange=party["exchange"],
            exchange_index=party["exchange_index"],
            shape=shape_of(party),
            broadcast_digest=bytes.fromhex(party["broadcast_digest"]),
            source=integers(party["lanes"]),
            journal=self._journal,
            limits=SiteLimits(**limits),
            planned=None if planned is None else frozenset(planned),
            contributors=tuple((frozenset(part), least) for part, least in party["contributors"]),
            privacy_applied=party["privacy_applied"],
            entropy=Recorded(draws),
            group_key=bytes.fromhex(party["group_key"]) if "group_key" in party else None,
            cipher=StreamCipher(party.get("keystream", StreamCipher.CHACHA20)),
        )
        session = MaskedSite(given, graph_of(party))
        self._sessions[label], self._label, self._party[label] = session, label, party

    def to(self, label: str) -> None:
        """Speak to another session."""
        self._label = label

    def send(self, message: bytes) -> bytes:
        """What the session answers; a refusal is raised."""
        return bytes(self._sessions[self._label].handle(message))

    def journal(self, what: str) -> None:
        """Keep a copy of the journal, or put it back."""
        if self._path is None:
            raise Differs("a script with a journal file needs a folder")
        copy = self._path.with_suffix(".copy")
        if what == "keep":
            shutil.copyfile(self._path, copy)
        elif what == "replace":
            os.replace(copy, self._path)
        else:
            shutil.copyfile(copy, self._path)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()


@contextmanager
def site_player(steps: list[Json]) -> Iterator[SitePlayer]:
    """A player with what these steps need."""
    with tempfile.TemporaryDirectory() as folder:
        player = SitePlayer(Path(folder) if any("journal" in step for step in steps) else None)
        try:
            yield player
        finally:
            player.close()


def is_sharing(reply: bytes) -> bool:
    """Whether a reply holds envelopes, whose sealing is random."""
    return bool(reply) and peek_type(reply) in (Sharing.TYPE, NeighbourSharing.TYPE)


def opened(reply: bytes, heard: Heard, party: Json, keys: Json) -> list[Json]:
    """What a site sealed, once everything about its envelopes is known to be right."""
    public = Roster.decode(bytes.fromhex(party["roster"])).public(party["site"])

    def one(envelope: Envelope | SeedEnvelope) -> Json:
        context = heard.spec_digest, heard.adverts_digest
        verify(public, envelope.signature, envelope.LABEL, *context, envelope.body(), who="")
        context = envelope_context(*context, envelope.sender, envelope.recipient)
        mask_key, seal_key = (key_pair(keys[envelope.recipient][name]) for name in ("mask_key", "seal_key"))
        content = {
            "sender": envelope.sender,
            "recipient": envelope.recipient,
            "seed": mask_key.open(envelope.sealed_seed, labels.SEAL_PAIR_SEED, *context).hex(),
        }
        if isinstance(envelope, SeedEnvelope):
            return content
        shares = seal_key.open(envelope.sealed_shares, labels.SEAL_SHARES, *context)
        stated = envelope.mask_secret_share_digest, envelope.self_mask_share_digest
        kinds = zip(
            (labels.MASK_SECRET_SHARE, labels.SELF_MASK_SHARE), (shares[:33], shares[33:]), strict=True
        )
        if stated != tuple(share_digest(kind, context, share) for kind, share in kinds):
            raise Differs("an envelope states digests of other shares than it holds")
        return {**content, "shares": shares.hex()}

    if peek_type(reply) == Sharing.TYPE:
        return [one(envelope) for envelope in Sharing.decode(reply).envelopes]
    sharing = NeighbourSharing.decode(reply)
    return [one(envelope) for envelope in (*sharing.envelopes, *sharing.seeds)]


def play_site(script: Json, content: Json) -> None:
    """Play one script; AssertionError where the site does something else."""
    steps = steps_of(script, content)
    with site_player(steps) as player:
        heard, party = Heard(), content["party"]
        for number, step in enumerate(steps, start=1):
            where = f"{script['name']}, step {number}"
            if "open" in step:
                party = {**content["party"], **step.get("party", {})}
                player.open(step["open"], party, content["draws"][step["draws"]])
            elif "to" in step:
                player.to(step["to"])
            elif "journal" in step:
                player.journal(step["journal"])
            else:
                message = put_together(step["in"], content["bytes"])
                reply = _refused(lambda message=message: player.send(message), step, where)
                if reply is None:
                    continue
                heard.note(message)
                if "sharing" in step:
                    found = opened(reply, heard, party, content["keys"])
                    if found != content["sharings"][step["sharing"]]:
                        raise Differs(f"{where}: other envelopes than recorded")
                elif reply != put_together(step["out"], content["bytes"]):
                    raise Differs(f"{where}: another reply than the recorded one")


def _refused(send: Callable[[], Buffer], step: Json, where: str) -> bytes | None:
    """The reply; None where the message was refused as it has to be."""
    try:
        reply = bytes(send())
    except SecfedError as error:
        if "refusal" not in step or refusal_number(error) != step["refusal"]:
            raise Differs(f"{where}: {error}") from None
        return None
    if "refusal" in step:
        raise Differs(f"{where}: not refused ({step['refusal']})")
    return reply


def named(text: str, roster: Roster) -> set[str]:
    """The sites that a text names: of two names that begin alike the longer one."""
    longest_first = sorted(roster.sites, key=len, reverse=True)
    return set(re.findall("|".join(map(re.escape, longest_first)), text))


class ServerPlayer:
    """A server, driven by recorded replies."""

    def __init__(self, party: Json, specification: bytes) -> None:
        self.roster = Roster.decode(bytes.fromhex(party["roster"]))
        spec = Specification.decode(specification)
        self.server = MaskedServer(spec, self.roster, shape_of(party), graph=graph_of(party))

    def take(self, site: str, reply: bytes) -> bool:
        """Whether a reply is taken."""
        try:
            self.server.receive(site, reply)
        except ProtocolError:
            return False
        return True

    def advance(self) -> Any:
        """The next requests; or disputes and what was said, where the attempt is over."""
        try:
            return {site: bytes(request) for site, request in self.server.advance().items()}
        except RoundAborted as error:
            return [list(pair) for pair in self.server.disputes], error.message

    def sums(self) -> Json:
        """What was summed."""
        return {
            "survivors": list(self.server.survivors),
            "sums": [[int(lane) for lane in run] for run in self.server.sums],
        }


def play_server(script: Json, content: Json) -> None:
    """Play one script; AssertionError where the server does something else."""
    entries = content["bytes"]
    party = {**content["party"], **script.get("party", {})}
    player = ServerPlayer(party, put_together(party["specification"], entries))

    def requests(recorded: Json) -> Json:
        return {site: put_together(parts, entries) for site, parts in recorded.items()}

    for number, step in enumerate(steps_of(script, content), start=1):
        where = f"{script['name']}, step {number}"
        if "begin" in step:
            good = {site: bytes(one) for site, one in player.server.begin().items()} == requests(
                step["begin"]
            )
        elif "from" in step:
            taken = player.take(step["from"], put_together(step["in"], entries))
            good = taken != step.get("refused", False)
        elif step.get("advance") == "aborted":
            found = player.advance()
            good = isinstance(found, tuple) and found[0] == step["disputes"]
            good = good and named(found[1], player.roster) == set(step["names"])
        elif "advance" in step:
            good = player.advance() == requests(step["advance"])
        else:
            good = player.sums() == step
        if not good:
            raise Differs(f"{where}: the server did something else")
