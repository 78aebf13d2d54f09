"""Writes scripts for a site while it plays them, so that every expectation has been met once."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from secfed.crypto import shamir
from secfed.crypto.messages import Message
from secfed.crypto.refusals import Refusal
from secfed.errors import SecfedError
from tests.vectors.attempt import VectorEntropy
from tests.vectors.primitives import Json
from tests.vectors.scripts.book import Book, shortened
from tests.vectors.scripts.play import Heard, SitePlayer, is_sharing, opened, refusal_number, site_player
from tests.vectors.scripts.world import BROADCAST, LIMITS, ME, SHAPE, STUDY, Honest, World, lanes_of


def draws_of(entropy: VectorEntropy) -> Json:
    """The draws of one site in one attempt, as the file has them."""
    made: Json = {
        "mask_secret": entropy.tokens["mask secret"],
        "self_mask_seed": entropy.tokens["self-mask seed"],
        "seal_key": {"mlkem_seed": entropy.mlkem_seed.hex(), "x25519_private": entropy.x25519_private.hex()},
        "coefficients": [value for value, limit in entropy.drawn if limit == shamir.PRIME],
    }
    picks = [int(value, 16) for value, limit in entropy.drawn if limit < shamir.PRIME]
    return {**made, "picks": picks} if picks else made


def party_of(world: World) -> Json:
    """What the site knows by itself."""
    return {
        "roster": world.roster.encode().hex(),
        "site": ME,
        "identity_seed": world.people[ME].private_bytes().hex(),
        "study": STUDY,
        "round": 3,
        "exchange_index": 1,
        "exchange": "update",
        "layout_digest": SHAPE.digest.hex(),
        "runs": [[run.bits, run.count] for run in SHAPE.runs],
        "broadcast_digest": BROADCAST.hex(),
        "lanes": lanes_of(ME),
        "limits": {name: value for name, value in asdict(LIMITS).items() if name != "max_dropouts"},
        "planned": None,
        "contributors": [],
        "privacy_applied": False,
    }


@dataclass
class Scripts:
    """All scripts of one file, and what they share."""

    world: World
    honest: Honest
    about: str = "one hospital of seven; six are asked, one falls silent; README.md has the format"
    prefix: str = "site"
    draw_names: tuple[str, ...] = ("first", "second")
    more: Json = field(default_factory=dict)  # what the party knows beside the usual
    book: Book = field(default_factory=Book)
    scripts: list[Json] = field(default_factory=list)
    sharings: dict[str, list[Json]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.party = {**party_of(self.world), **self.more}
        entropies = self.world.entropies
        self.draws = {draw: draws_of(entropies[(ME, draw)]) for draw in self.draw_names}
        others = (name for name in self.honest.spec.cohort if name != ME)
        self.keys = {name: self.keys_of(entropies[(name, self.draw_names[0])]) for name in others}
        for stage, requests in self.honest.requests.items():
            self.book.add(stage, requests[ME])

    @staticmethod
    def keys_of(entropy: VectorEntropy) -> Json:
        """The private keys of another site."""
        from secfed.crypto import labels
        from secfed.crypto.keystream import derive

        secret = bytes.fromhex(entropy.tokens["mask secret"])
        mlkem_seed = derive(secret, labels.DERIVE_MASK_KEY_MLKEM, size_bytes=64)
        private = derive(secret, labels.DERIVE_MASK_KEY_X25519)
        return {
            "mask_key": {"mlkem_seed": mlkem_seed.hex(), "x25519_private": private.hex()},
            "seal_key": draws_of(entropy)["seal_key"],
        }

    def content(self) -> Json:
        """The file."""
        return {
            "about": self.about,
            "party": self.party,
            "draws": self.draws,
            "keys": self.keys,
            "bytes": self.book.content(),
            "sharings": self.sharings,
            "scripts": shortened(self.scripts),
        }

    def begin(self, name: str, *, file: bool = False, **party: Any) -> Script:
        """A new script, with its first session open; ``file`` where it touches the journal's file."""
        made: Json = {"name": f"{self.prefix}_{name}", "steps": [{"journal": "keep"}] if file else []}
        self.scripts.append(made)
        script = Script(self, made)
        made["steps"].clear()
        return script.open("a", **party)


class Script:
    """One script. Every method plays its step and notes it."""

    def __init__(self, scripts: Scripts, made: Json) -> None:
        self._all, self._steps = scripts, made["steps"]
        self._closing = ExitStack()
        self._player: SitePlayer = self._closing.enter_context(site_player(made["steps"]))
        self._party: Json = {}
        self._heard = Heard()

    def open(self, label: str, draws: str = "", **party: Any) -> Script:
        """A new session; ``party`` replaces what the site knows."""
        draws = draws or self._all.draw_names[0]
        if "limits" in party:
            party["limits"] = {**self._all.party["limits"], **party["limits"]}
        self._party = {**self._all.party, **party}
        step: Json = {"open": label, "draws": draws, **({"party": party} if party else {})}
        self._steps.append(step)
        self._player.open(label, self._party, self._all.draws[draws])
        return self

    def to(self, label: str) -> Script:
        """Another session."""
        self._steps.append({"to": label})
        self._player.to(label)
        return self

    def journal(self, what: str) -> Script:
        """Keep, replace or restore the journal's file."""
        self._steps.append({"journal": what})
        self._player.journal(what)
        return self

    def send(self, message: Message | bytes) -> Script:
        """A message that is answered."""
        data = message if isinstance(message, bytes) else message.encode()
        reply = self._player.send(data)
        step: Json = {"in": self._all.book.parts(data)}
        self._heard.note(data)
        if is_sharing(reply):
            found = opened(reply, self._heard, self._party, self._all.keys)
            known = [name for name, one in self._all.sharings.items() if one == found]
            name = known[0] if known else f"sharing {len(self._all.sharings)}"
            self._all.sharings[name] = found
            step["sharing"] = name
        else:
            step["out"] = self._all.book.parts(reply)
        self._steps.append(step)
        return self

    def honest(self, *stages: str) -> Script:
        """The honest requests of these stages."""
        for stage in stages:
            self.send(self._all.honest.requests[stage][ME])
        return self

    def until(self, stage: str) -> Script:
        """The honest requests of all stages before this one."""
        every = list(self._all.honest.requests)
        return self.honest(*every[: every.index(stage)])

    def refuses(self, message: Message | bytes, refusal: Refusal) -> Script:
        """A message that is refused; the session then takes not even the honest one."""
        data = message if isinstance(message, bytes) else message.encode()
        self._refused(data, refusal)
        stage = next(
            (s for s, sent in self._all.honest.requests.items() if self._fits(sent[ME])), "advertise"
        )
        self._refused(self._all.honest.requests[stage][ME], Refusal.OUT_OF_ORDER)
        return self

    def _fits(self, message: bytes) -> bool:
        sent = [step["in"] for step in self._steps if "out" in step or "sharing" in step]
        return self._all.book.parts(message) not in sent

    def _refused(self, data: bytes, refusal: Refusal) -> None:
        try:
            self._player.send(data)
        except SecfedError as error:
            if refusal_number(error) != refusal.number:
                raise AssertionError(f"{self._steps}: {error}, not {refusal}") from error
        else:
            raise AssertionError(f"{refusal}: not refused")
        self._steps.append({"in": self._all.book.parts(data), "refusal": refusal.number})

    def end(self) -> None:
        """Close the player."""
        self._closing.close()
