"""The Algorithm interface: what a research algorithm writes, and all it can see.

An algorithm is two programs and a plan. The plan (:meth:`Algorithm.exchanges`) says which sums a round
consists of and is computed by the aggregator and by every site from the study alone, so nobody can be
talked into a different one. The site program runs inside a hospital and turns a broadcast into
summands. The server program turns totals into the next broadcast; there is no type through which it
could receive one site's values.

Both programs are plain objects over values: no files, no clock, no network. Given equal inputs the
server program must do exactly the same everywhere, because under encrypted protection every site
replays it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from secfed.errors import WrongState
from secfed.wire.layout import Exchange, State, Summands, Totals

SiteId = str
Metrics = Mapping[str, float]

LOSS_BOUND: Final = 2.0**20  # of a mean training loss of one site, in a sum


class SiteProgram(Protocol):
    """Runs inside one hospital; may keep state between rounds.

    One more method counts, if a program has it: ``settled(round_number, exchange)``, the weights and counts
    that it adds whatever its values do, by field name. It looks at how many records there are, at no record.
    Where the work fails, these are added all the same: a total weight that falls by one hospital's count
    would name it. The rest of what failed adds zeros (:mod:`secfed.site.containment`).
    """

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """Local work for one exchange: what this site adds to the sum.

        Tensors and scalars, already multiplied by the site's own weight. Called once per exchange and
        round, whatever happens to the attempts that carry the result.
        """
        ...


class ServerProgram(Protocol):
    """Sees totals only. Deterministic."""

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """What every member of this exchange gets before it; changes nothing."""
        ...

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Take the totals of one exchange into the server's state."""
        ...

    def model(self) -> State:
        """The trained parameters, by name."""
        ...

    def metrics(self) -> Mapping[int, Metrics]:
        """Metrics known so far, by model version: 0 is the initial model, r the model after round r."""
        ...

    def save(self) -> State:
        """Everything needed to continue later (checkpoint)."""
        ...

    def load(self, state: State) -> None:
        """Continue from a checkpoint."""
        ...


class StartingServer(ServerProgram, Protocol):
    """A server program that can begin with any model of the study's names and shapes."""

    def begin(self, model: State) -> None:
        """Begin with this model instead of the seed's; before round 1."""
        ...


class Algorithm(Protocol):
    """One research algorithm, bound to one study.

    Under ``[privacy]`` two more members count, if an algorithm has them: ``private_units``, the units
    (``record``, ``group``) its site programs train under, and ``unprotected(exchange)``, the fields of an
    exchange that leave without noise by the study's explicit choice. Without them only the whole site
    can be the unit, and every field carries noise.

    One more keeps a broadcast that does not fit the study from costing a payment: ``check_broadcast(round,
    exchange, broadcast)`` raises :class:`~secfed.errors.MalformedMessage` where names or shapes are not those
    of the study. It looks at no record, and sites call it before they note or pay anything. Without it the
    site program finds out, after the payment of site-level privacy.

    Where some members add nothing but zeros to a part of a sum, one more counts: ``contributors(round,
    exchange)``, for every such part the sites that may add more, and the fewest of them that may be summed.
    Sites refuse a cohort, or survivors, with fewer.

    Under ``[model] start`` one more: ``model_in(broadcast)``, the whole model in the first broadcast of a
    study, by name, which every site compares with what the study names. The server program is then a
    :class:`StartingServer`. Without it such a study is refused.
    """

    def exchanges(self, round_number: int) -> Sequence[Exchange]:
        """The sums of one round, in order. Round ``rounds + 1`` is the closing evaluation."""
        ...

    def members(self, round_number: int, exchange: Exchange, sites: Sequence[SiteId]) -> Sequence[SiteId]:
        """The cohort: which of the enrolled sites are asked for this exchange."""
        ...

    def server(self) -> ServerProgram:
        """A fresh server program, the same on every machine."""
        ...

    def site(self, site_id: SiteId) -> SiteProgram:
        """The program of one site, bound to that site's data."""
        ...


class PlannedExchange(Protocol):
    """An exchange with what an algorithm knows about it."""

    @property
    def exchange(self) -> Exchange:
        """The sum."""
        ...


_Planned = TypeVar("_Planned", bound=PlannedExchange)


def planned_for(exchange: Exchange, round_number: int, stages: Iterable[_Planned]) -> _Planned:
    """The stage of a round that an exchange belongs to.

    Args:
        exchange: from the other side.
        round_number: for the error.
        stages: of that round.

    Raises:
        WrongState: the round has no exchange of this name and layout.
    """
    for stage in stages:
        if stage.exchange == exchange:
            return stage
    raise WrongState(
        f"round {round_number} has no exchange {exchange.name!r} of this layout",
        remedy="the aggregator must run the same study file",
    )


def check_round(round_number: int, rounds: int) -> None:
    """Refuse a round that a study does not have.

    Args:
        round_number: counted from 1; ``rounds + 1`` is the closing evaluation.
        rounds: training rounds of the study.

    Raises:
        WrongState: the study has no such round.
    """
    if not 1 <= round_number <= rounds + 1:
        raise WrongState(
            f"the study has no round {round_number}",
            remedy=f"its rounds are 1 to {rounds}, and {rounds + 1} is the closing evaluation",
        )


def contributors(
    algorithm: Algorithm, round_number: int, exchange: Exchange
) -> Sequence[tuple[Collection[SiteId], int]]:
    """Who may add more than zeros to each part of a sum, and the fewest of them; empty: everybody to all."""
    named = getattr(algorithm, "contributors", None)
    return () if named is None else tuple(named(round_number, exchange))


def check_broadcast(algorithm: Algorithm, round_number: int, exchange: Exchange, broadcast: State) -> None:
    """Compare the names and shapes of a broadcast with the study's, if the algorithm says what they are.

    Raises:
        MalformedMessage: the broadcast is not one of this study and exchange.
    """
    check = getattr(algorithm, "check_broadcast", None)
    if check is not None:
        check(round_number, exchange, broadcast)


def settled(program: SiteProgram, round_number: int, exchange: Exchange) -> Summands:
    """Weights and counts of this exchange: what this site adds whatever its values do; {} if it has none."""
    named = getattr(program, "settled", None)
    return {} if named is None else dict(named(round_number, exchange))


def model_in(algorithm: Algorithm, broadcast: State) -> State:
    """The whole model in the first broadcast of a study; the algorithm must have ``model_in``."""
    found: State = algorithm.model_in(broadcast)  # type: ignore[attr-defined]  # checked when it was built
    return found


def unprotected_fields(algorithm: Algorithm, exchange: Exchange) -> Sequence[str]:
    """Fields of an exchange that leave without noise although the study has ``[privacy]``."""
    named = getattr(algorithm, "unprotected", None)
    return () if named is None else tuple(named(exchange))
