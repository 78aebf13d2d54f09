"""Real sites of a study under an aggregator that broadcasts what it likes, and everything that it sees.

What differs between two plays in which one record differs, tells about that record. Compared is what does
not differ by chance: kinds and lengths of replies, codes of refusals, entries of transcripts and ledgers
without signatures, digests and times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from secfed.algorithms.framework.base import Metrics, ServerProgram
from secfed.attack.attack import attack_folder
from secfed.crypto import labels
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.messages import Specification, peek_type
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.interface import accountant
from secfed.dp.ledger.ledger import Ledger, verify
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.errors import MalformedMessage, SecfedError
from secfed.pipeline.noised_algorithm import with_privacy
from secfed.protection.registry import make_protection
from secfed.server.coordinator import Coordinator
from secfed.server.round import Rules, specify
from secfed.site.attempt_store import NullStore
from secfed.site.build import build_site
from secfed.site.containment import Failure
from secfed.site.journal import Journal
from secfed.site.parts import Draws, Member, Services
from secfed.site.terms import Terms
from secfed.study.build import build
from secfed.study.limits import limits_of
from secfed.study.study import Study
from secfed.wire.frames import READY, encode_state
from secfed.wire.layout import Exchange, State, Totals, state_digest
from secfed.wire.refusal_codes import outgoing
from secfed.wire.transport import OnReply

Craft = Callable[[int, Exchange, State], State]
"""(round, exchange, what an honest aggregator would broadcast) -> what is broadcast."""

Answer = tuple[int, str, str, str, int]
"""Round, stage, site, what it answered, and how many bytes."""

NOW: Final = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
_POLICY: Final = """
approve = "automatic"
[studies]
names = ["attacked"]
{rules}
[algorithms.fedavg]
local_epochs = "any"
batch_size = "any"
learning_rate = "any"
weighting = "any"
[models.mlp]
hidden = "any"
[[data]]
name = "wards"
source = "secfed.attack.wards:wards"
options = "any"
{budget}
"""
_LONGEST_WORD: Final = 40  # characters: a longer text is a digest or a signature


def hospital_with_policy(folder: Path, name: str, rules: str, budget: str = "") -> SiteFolder:
    """A hospital's folder whose policy permits the study over wards under these rules, as TOML."""
    hospital = SiteFolder.create(folder / "policy", name, now=NOW)
    hospital.policy_path.write_text(_POLICY.format(rules=rules, budget=budget), encoding="utf-8")
    return hospital


class Log:
    """A transcript in memory."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Any]] = []

    def append(self, kind: str, body: Mapping[str, object]) -> None:
        """Add one entry, without what is random in it."""
        self.entries.append((kind, without_chance(body)))


def without_chance(value: Any) -> Any:
    """An entry without what is random in it: of long texts their length, and no times."""
    if isinstance(value, Mapping):
        return {key: without_chance(one) for key, one in value.items() if not key.startswith("time")}
    if isinstance(value, list | tuple):
        return [without_chance(one) for one in value]
    return len(value) if isinstance(value, str) and len(value) > _LONGEST_WORD else value


class Federation:
    """One aggregator with the study's ``algorithm``, noise included, and ``sites`` that answer its frames."""

    def __init__(
        self,
        study: Study,
        algorithm: Any,
        roster: Roster,
        aggregator: Identity,
        sites: Mapping[str, Callable[[Buffer], Buffer]],
    ) -> None:
        self._sites = sites
        self.answers: list[Answer] = []  # everything that the aggregator got
        self.refused: list[SecfedError] = []
        self.log = Log()
        self._round = 0
        protection = make_protection(study.protection, algorithm, study.rounds, roster.sites)
        asked = tuple(name for name in roster.sites if name in sites)
        self.rules = Rules.of(study, aggregator, roster, protection, asked)
        self._coordinator = Coordinator(algorithm, study.rounds, self.rules, self.ask, self.log)

    def run(self, craft: Craft | None = None) -> ServerProgram:
        """All rounds of the study; ``craft`` makes every broadcast, without it the aggregator is honest."""
        if craft is not None:

            def crafted(number: int, exchange: Exchange, honest: State) -> State:
                self._round = number
                return craft(number, exchange, honest)

            self._coordinator.server = _Crafting(self._coordinator.server, crafted)
        self._coordinator.run(lambda _outcome: None)
        return self._coordinator.server

    def view(self, site: str, number: int) -> list[tuple[str, str, int]]:
        """What the aggregator saw of one site in one round."""
        answers = (answer for answer in self.answers if answer[0] == number and answer[2] == site)
        return [(stage, what, size) for _, stage, _, what, size in answers]

    def ask(self, stage: str, requests: Mapping[str, Buffer], on_reply: OnReply) -> None:
        """Carry one step; see :data:`secfed.server.round.Ask`."""
        for site, frame in requests.items():
            try:
                reply = bytes(self._sites[site](frame))
            except SecfedError as error:
                kind, reason = outgoing(error)
                self.answers.append((self._round, stage, site, f"{kind}: {reason}", 0))
                self.refused.append(error)
                continue
            self.answers.append((self._round, stage, site, _kind(reply), len(reply)))
            on_reply(site, reply)


def _kind(reply: bytes) -> str:
    try:
        return "ready" if reply == READY else f"message {peek_type(reply)}"
    except MalformedMessage:
        return "bytes" if reply else "nothing"


class _Crafting(ServerProgram):
    """A server program whose broadcasts are made up, and that ignores totals and keeps nothing."""

    def __init__(self, honest: ServerProgram, craft: Craft) -> None:
        self._honest, self._craft = honest, craft

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        return self._craft(round_number, exchange, self._honest.broadcast(round_number, exchange))

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Forget a sum."""

    def model(self) -> State:
        return self._honest.model()

    def metrics(self) -> Mapping[int, Metrics]:
        return {}

    def save(self) -> State:
        return {}

    def load(self, state: State) -> None:
        """Nothing to go on from."""


class Hospitals:
    """Real sites in this process, with journals and transcripts in memory and ledgers in a folder; a context.

    ``study`` is over :func:`secfed.attack.wards.wards`; ``planted`` gives a hospital the value of the first
    feature of a ``share`` of its records, of one record if that is 0.
    """

    def __init__(self, study: Study, planted: Mapping[str, float] | None = None, share: float = 0.0) -> None:
        built: Any = build(study)
        if planted:
            built.data.planted, built.data.share = planted, share
        self.names = tuple(built.data.sites)
        self._study, self._stack = study, ExitStack()
        self._folder: Path = self._stack.enter_context(attack_folder())
        self.algorithm = with_privacy(study, built, self.names)
        self._aggregator = Identity.generate("aggregator")
        self._identities = {name: Identity.generate(name) for name in self.names}
        self.roster = Roster.of(self._aggregator, list(self._identities.values()))
        self._logs = {name: Log() for name in self.names}
        self._journals = {name: Journal() for name in self.names}
        for journal in self._journals.values():
            self._stack.callback(journal.close)
        self.alarms: list[Failure] = []  # what hospitals heard of their own failed work
        sites = {name: self.site(name) for name in self.names}
        self.federation = Federation(study, self.algorithm, self.roster, self._aggregator, sites)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def site(self, name: str) -> Callable[[Buffer], Buffer]:
        """A new site, over its journal and ledger."""
        study, terms = self._study, Terms(self._study, self.algorithm, tuple(self._identities))
        site = build_site(
            terms,
            Member(self._identities[name], self.roster),
            self.algorithm.site(name),
            limits=limits_of(study, len(self.roster.sites)),
            draws=replace(
                Draws.seeded(3, name), noise_key=lambda _number, _exchange: SecureRandom().words(4).tobytes()
            ),
            store=NullStore(self._journals[name], terms.study_id),
            services=Services(self._logs[name], self.alarms.append),
            ledger=self._open_ledger(name),
        )
        return site.handle

    @property
    def state(self) -> bytes:
        """The first broadcast of an honest aggregator."""
        return encode_state(self.algorithm.server().broadcast(1, self.algorithm.exchanges(1)[0]))

    def specification(self, **changes: Any) -> Specification:
        """Of the first attempt, signed by the aggregator; ``changes`` replace its fields."""
        exchange, digest = self.algorithm.exchanges(1)[0], state_digest(self.state)
        honest = specify(1, 0, exchange, 0, self.roster.sites, digest, self.federation.rules)
        unsigned = replace(honest, **changes, signature=b"")
        signature = self._aggregator.sign(labels.SIGN_SPEC, unsigned.body())
        return replace(unsigned, signature=signature)

    def _open_ledger(self, name: str) -> Ledger | None:
        settings = self._study.privacy
        if settings is None:
            return None
        return Ledger(
            self._ledger(name),
            self._identities[name],
            "wards",
            [Budget(settings.epsilon, settings.delta, protects=settings.budgeted)],
            accountant=accountant(settings.accountant),
        )

    def _ledger(self, name: str) -> Path:
        return self._folder / f"{name}.jsonl"

    def everything_seen(self) -> tuple[Any, ...]:
        """What should not depend on a record: answers, transcripts and payments."""
        payments = []
        for name, identity in self._identities.items() if self._study.privacy is not None else ():
            lines = self._ledger(name).read_bytes().splitlines(keepends=True)
            entries = verify(lines, identity.public_bytes)
            payments.append([(entry.kind, without_chance(entry.body)) for entry in entries])
        logs = [self.federation.log, *self._logs.values()]
        return self.federation.answers, [log.entries for log in logs], payments
