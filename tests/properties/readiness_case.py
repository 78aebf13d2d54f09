"""One hospital and an aggregator that broadcasts what it likes: a site that plays a tiny study.

answers = play(tiny("fedavg", "record"), LARGE, folder, with_extreme_record)

plays all exchanges of a study that ask the first hospital, with its data changed so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from secfed.algorithms.data.image_text.base import ImageTextSite
from secfed.algorithms.data.memory import SiteTables
from secfed.algorithms.data.multiview.base import MultiviewSite
from secfed.algorithms.data.tabular.columns import Table
from secfed.algorithms.data.transfer.base import TransferSite
from secfed.algorithms.framework.datasets import SiteData
from secfed.algorithms.framework.links import LINK
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.identity import Identity, Roster
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.interface import accountant
from secfed.dp.ledger.ledger import Ledger, verify
from secfed.errors import SecfedError
from secfed.pipeline.noised_algorithm import inner_exchange, with_privacy
from secfed.site.attempt_store import NullStore
from secfed.site.build import build_site
from secfed.site.containment import Failure
from secfed.site.journal import Journal
from secfed.site.parts import Draws, Member, Services
from secfed.site.terms import Terms
from secfed.study.build import build
from secfed.study.limits import study_id
from secfed.study.study import Study
from secfed.wire.frames import READY, Task, encode_state
from secfed.wire.layout import State, state_digest
from secfed.wire.refusal_codes import outgoing

torch.set_num_threads(1)

EXTREME = 3e37  # of a record's features: finite in float32, and times a large parameter not
RECORDS = 12

SITES = tuple(f"hospital-{number}" for number in range(1, 6))


def tables() -> SiteTables:
    """Two overlapping classes at five hospitals."""
    rng = np.random.default_rng(3)
    sites = {}
    for site in SITES:
        labels = np.arange(RECORDS) % 2
        sites[site] = ((rng.normal(size=(RECORDS, 3)) + labels[:, None]).astype(np.float32), labels)
    return SiteTables(sites, classes=2, test_fraction=0.25, standardize=False)


def with_extreme_record(data: Any) -> Any:
    """The same records, of which the first, to train on and to hold out, has features beyond all others."""

    def changed(values: torch.Tensor) -> torch.Tensor:
        values = values.clone()
        values[0] = EXTREME
        return values

    if isinstance(data, SiteData):
        return replace(data, train_x=changed(data.train_x), test_x=changed(data.test_x))
    if isinstance(data, MultiviewSite):
        return replace(data, views=tuple(None if view is None else changed(view) for view in data.views))
    if isinstance(data, ImageTextSite | TransferSite):
        parts = {name: getattr(data, name) for name in ("train", "test")}
        return replace(
            data, **{name: replace(part, images=changed(part.images)) for name, part in parts.items()}
        )
    if isinstance(data, Table):
        values = {name: np.where(np.arange(len(one)) == 0, EXTREME, one) for name, one in data.values.items()}
        return replace(data, values=values)
    raise TypeError(type(data).__name__)


def without_first_record(data: SiteData) -> SiteData:
    """The same records, without the first to train on: one fewer, which weights may show."""
    return replace(data, train_x=data.train_x[1:], train_y=data.train_y[1:])


@dataclass(frozen=True)
class Broadcast:
    """What the aggregator does to every broadcast.

    Attributes:
        name: for test names.
        change: of one tensor.
    """

    name: str
    change: Callable[[torch.Tensor], torch.Tensor]

    def of(self, state: State) -> dict[str, torch.Tensor]:
        """The whole broadcast; what belongs to robust weights and to clusters' bookkeeping stays."""
        return {
            name: self.change(value) if value.is_floating_point() and not name.startswith("dro/") else value
            for name, value in state.items()
        }


def _signs(value: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(value.numel()).reshape(value.shape) % 2 == 0, 1.0, -1.0)


def _filled(number: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda value: torch.full_like(value, number)


HONEST = Broadcast("honest", lambda value: value)
LARGE = Broadcast("large", lambda value: (_signs(value) * 1e6).to(value.dtype))
# A chain of large weights: a record of usual size passes each layer, the extreme one overflows in the second.
TRAP = Broadcast("trap", lambda value: value * 0.5 + 9e2 * (value != 0).to(value.dtype))
BROADCASTS = (
    HONEST,
    Broadcast("nan", _filled(float("nan"))),
    Broadcast("inf", _filled(float("inf"))),
    Broadcast("1e38", _filled(1e38)),
    Broadcast("denormal", _filled(1e-45)),
    LARGE,
    TRAP,
)


@dataclass
class Answers:
    """What one hospital did.

    Attributes:
        replies: by exchange: READY, or the code of a refusal, and what was settled.
        written: kinds and bodies of its transcript.
        paid: the entries of its ledger, without times.
        failures: its own alarms.
        finite: whether all that it would upload is finite and fits its layout.
    """

    replies: list[tuple[Any, ...]]
    written: list[tuple[str, dict[str, object]]]
    paid: list[Any]
    failures: list[Failure]
    finite: bool


class _Written:
    def __init__(self) -> None:
        self.entries: list[tuple[str, dict[str, object]]] = []

    def append(self, kind: str, body: Any) -> None:
        self.entries.append((kind, dict(body)))


def play(
    study: Study,
    broadcast: Broadcast,
    folder: Path,
    change: Callable[[Any], Any] = lambda data: data,
    *,
    kind: str = "",
) -> Answers:
    """All exchanges of a study that ask one hospital, with these broadcasts of a model that never learns.

    Args:
        study: from :func:`tiny`.
        broadcast: what the aggregator makes of every broadcast.
        folder: for a ledger.
        change: of the hospital's data.
        kind: what it holds, where hospitals hold different things; by default the first hospital is played.
    """
    if study.privacy is None or study.privacy.noise != "sum":
        study = study.replace("protection.name", "plain")
    inner = build(study)
    names = tuple(inner.setting.sites)
    name = next(one for one in names if not kind or inner.data.kind_of[one] == kind)
    whole = inner.site_data
    inner.site_data = lambda wanted: change(whole(wanted))
    algorithm = with_privacy(study, inner, names)
    aggregator, identities = Identity.generate("aggregator"), [Identity.generate(one) for one in names]
    identity = identities[names.index(name)]
    ledger = None
    if study.privacy is not None:
        folder.mkdir(parents=True, exist_ok=True)
        budget = Budget(study.privacy.epsilon, study.privacy.delta, protects=study.privacy.budgeted)
        ledger = Ledger(folder / "ledger.jsonl", identity, "set", [budget], accountant=accountant("rdp"))
    log, failures, replies, finite = _Written(), [], [], True
    program = algorithm.site(name)
    member = build_site(
        Terms(study, algorithm, names),
        Member(identity, Roster.of(aggregator, identities)),
        program,
        limits=SiteLimits(),
        draws=replace(Draws.seeded(5, name), noise_key=lambda _number, _exchange: bytes(32)),
        store=NullStore(Journal(), study_id(study)),
        services=Services(log, failures.append),
        ledger=ledger,
    )
    server = algorithm.server()
    for number in range(1, study.rounds + 2):
        sent: dict[str, torch.Tensor] = {}  # digests of what this hospital was given in the round
        for index, exchange in enumerate(algorithm.exchanges(number)):
            if name not in algorithm.members(number, exchange, names):
                continue
            none = torch.zeros(32, dtype=torch.uint8)
            links = {LINK + one: sent.get(one, none) for one in algorithm.builds_on(number, exchange)}
            state = encode_state({**broadcast.of(server.broadcast(number, exchange)), **links})
            sent[exchange.name] = torch.frombuffer(bytearray(state_digest(state)), dtype=torch.uint8)
            task = Task(study_id(study), number, index, exchange.name, state)
            own = inner_exchange(algorithm, exchange)
            known = {
                key: torch.as_tensor(one, dtype=torch.float64).tolist()
                for key, one in program.settled(number, own).items()
            }
            try:
                reply: Any = member.handle(task.encode()) == READY
            except SecfedError as error:
                reply = outgoing(error)
            replies.append((number, exchange.name, reply, known))
            if reply is True:
                left = member._local.pending.summands
                finite &= all(bool(torch.isfinite(torch.as_tensor(one)).all()) for one in left.values())
                for key, value in known.items():
                    finite &= torch.as_tensor(left[key]).tolist() == value
    paid: list[Any] = []
    if ledger is not None:
        lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
        for entry in verify(lines, identity.public_bytes):
            body = {key: value for key, value in entry.body.items() if not key.startswith("time")}
            paid.append((entry.kind, body))
    return Answers(replies, log.entries, paid, failures, finite)
