"""The Algorithm interface: what a research algorithm writes, and all it can see.

An algorithm is two programs and a plan. The plan (:meth:`Algorithm.exchanges`) says which sums a round
consists of and is computed by the aggregator and by every site from the study alone, so nobody can be
talked into a different one. The site program runs inside a hospital and turns a broadcast into
summands. The server program turns totals into the next broadcast; there is no type through which it
could receive one site's values.

Both programs are plain objects over values: no files, no clock, no network. Given equal inputs the
server program must do exactly the same everywhere, because under encrypted protection every site
replays it.

Abstract methods must be written; all others are hooks whose defaults suit an algorithm that has no use for
them. :class:`~secfed.algorithms.federated_averaging.weighted_mean.WeightedMean` implements everything for
weighted means. The least by hand, a sum of one number, and one hook::

    class Count(Algorithm):
        def __init__(self, setting, options):
            layout = Layout((Field("records", (), 1e6, 64),), sites=len(setting.sites))
            self.setting, self.exchange = setting, Exchange("count", "all", layout)

        def exchanges(self, round_number):
            return (self.exchange,)

        def server(self):
            return CountServer()

        def site(self, site_id):
            return CountSite(len(self.setting.labelled().site(site_id).train_y))

        def check_broadcast(self, round_number, exchange, broadcast):
            check_shapes(broadcast, {})  # nothing is broadcast: refuse whatever arrives, before any payment
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

from secfed.errors import ConfigError, MalformedMessage, WrongState
from secfed.wire.layout import Exchange, State, Summands, Totals

if TYPE_CHECKING:
    from secfed.config.schema import Options
    from secfed.dp.settings import PrivacySection
    from secfed.dp.training.local_privacy import LocalPrivacy
    from secfed.dp.training.unit_sums import UnitSums

SiteId = str
Metrics = Mapping[str, float]

LOSS_BOUND: Final = 2.0**20  # of a mean training loss of one site, in a sum
PARAMETERS: Final = "parameters"
# What an algorithm writes to say what sites make of their records.
_AT_SITES: Final = frozenset(("site", "site_program", "local_update", "difference", "evaluate"))


@dataclass(frozen=True)
class UnitBound:
    """What one unit of ``[privacy]`` adds, at most, to a site's part of an exchange that is a sum over units.

    Security: the algorithm owes it, whatever the records, the broadcast and the arithmetic are. Noise is
    chosen from it.

    Attributes:
        norm: L2 norm over all fields together, each divided by its scale; without any record, all are zero.
        share: of the study's privacy, for all releases of this exchange together, relative to the others':
            noise of variance norm^2 * releases / share. Publicly known.
        scales: what one unit of the norm means in a field; 1 where it is not named.
    """

    norm: float
    share: float = 1.0
    scales: Mapping[str, float] = field(default_factory=dict)


class SiteProgram(ABC):
    """Runs inside one hospital; may keep state between rounds (:meth:`save`)."""

    @abstractmethod
    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """Local work for one exchange: what this site adds to the sum.

        Tensors and scalars, already multiplied by the site's own weight. Called once per exchange and
        round, whatever happens to the attempts that carry the result.
        """

    def settled(self, round_number: int, exchange: Exchange) -> Summands:
        """Weights and counts, by field name, that this site adds whatever its values do.

        Looks at how many records there are, at no record. Where the work fails, these are added all the same:
        a total weight that falls by one hospital's count would name it. The rest of what failed adds zeros
        (:mod:`secfed.site.containment`).
        """
        del round_number, exchange
        return {}

    def use_privacy(self, privacy: LocalPrivacy) -> None:
        """Plan the study's private local work, and use ``privacy`` for every step from now on.

        Raises:
            ConfigError: a program that cannot train under privacy, or no noise reaches the study's epsilon.
        """
        del privacy
        raise ConfigError(
            "privacy.unit: this algorithm's site program cannot train under privacy",
            remedy="write its method use_privacy; see secfed.algorithms.framework.base",
        )

    def use_unit_sums(self, sums: UnitSums) -> None:
        """Under ``noise = "sum"``: check the number of records, and clip units with ``sums`` from now on.

        Raises:
            ConfigError: a program that has no sums over units, or records that the unit does not fit.
        """
        del sums
        raise ConfigError(
            "privacy.noise: this algorithm's site program cannot bound what one record adds to its sums",
            remedy="write its method use_unit_sums; see secfed.algorithms.framework.base",
        )

    def save(self) -> State:
        """What this site keeps for later rounds; saved with every contribution, and never leaves the site."""
        return {}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`, after a restart; called only if that was not empty.

        Raises:
            MalformedMessage: a state of another study.
        """
        if state:
            raise MalformedMessage(
                "this algorithm keeps nothing at a site, but the site has a saved state",
                remedy="resume with the study file that wrote it, or start the study anew",
            )


class ForwardingProgram(SiteProgram):
    """Another program; subclasses change a part of it."""

    def __init__(self, program: SiteProgram) -> None:
        self._program = program

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """As the program's."""
        return self._program.contribute(round_number, exchange, broadcast)

    def settled(self, round_number: int, exchange: Exchange) -> Summands:
        """As the program's."""
        return self._program.settled(round_number, exchange)

    def use_privacy(self, privacy: LocalPrivacy) -> None:
        """As the program's."""
        self._program.use_privacy(privacy)

    def use_unit_sums(self, sums: UnitSums) -> None:
        """As the program's."""
        self._program.use_unit_sums(sums)

    def save(self) -> State:
        """As the program's."""
        return self._program.save()

    def load(self, state: State) -> None:
        """As the program's."""
        self._program.load(state)


class ServerProgram(ABC):
    """Sees totals only. Deterministic."""

    @abstractmethod
    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """What every member of this exchange gets before it; changes nothing."""

    @abstractmethod
    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Take the totals of one exchange into the server's state."""

    @abstractmethod
    def model(self) -> State:
        """The trained parameters, by name."""

    @abstractmethod
    def metrics(self) -> Mapping[int, Metrics]:
        """Metrics known so far, by model version: 0 is the initial model, r the model after round r."""

    @abstractmethod
    def save(self) -> State:
        """Everything needed to continue later (checkpoint)."""

    @abstractmethod
    def load(self, state: State) -> None:
        """Continue from a checkpoint."""

    @property
    def stopped(self) -> int | None:
        """The round after which training ended early; None where it goes on to the last one."""
        return None

    def kept(self, rounds: int) -> int:
        """The round after which :meth:`model` was the model; 0 for the initial one."""
        return rounds

    def begin(self, model: State) -> None:
        """Begin with this model of the study's names and shapes instead of the seed's; before round 1."""
        del model
        message = "model.start: this algorithm's server program cannot begin with a model from a file"
        raise ConfigError(message, remedy="write its method begin; see secfed.algorithms.framework.base")


class Algorithm(ABC):
    """One research algorithm, bound to one study; made with (setting, options), of ``options_type``.

    Without that type a user's own is made with the setting and the keys of the ``[algorithm]`` table. Of the
    units of ``[privacy]``, ``record`` and ``group`` need site programs with :meth:`SiteProgram.use_privacy`,
    or :meth:`unit_bound` and :meth:`SiteProgram.use_unit_sums` where the noise is in the sum; for ``site``,
    noise covers a whole exchange.

    Security: with ``samples_sites``, :meth:`members` asks ``Setting.cohort`` who is drawn. What a site adds
    in every round alike, or nearly (weights and other counts of records, numbers of steps, losses, statistics
    of records), must be in no sum over a round's cohort: after about as many rounds as sites it could be
    solved for. Sum it over ``Setting.cohort(FIXED_COHORT, sites)``, in an exchange of its own, or not at all.
    """

    options_type: ClassVar[type[Options] | None] = None
    private_units: ClassVar[tuple[str, ...]] = ("site",)
    summed_units: ClassVar[tuple[str, ...]] = ()  # under noise = "sum": those that unit_bound holds for
    warm_start: ClassVar[bool] = False  # from a file; model_in and ServerProgram.begin are then its own
    samples_sites: ClassVar[bool] = False  # supports protection.sites_per_round; see Security above
    # With noise in local steps: fields (or what stands before their first "/") that only private steps made,
    # or that no record changes. Any other is reported as unprotected. A class that changes what sites make of
    # records declares its own: it inherits none.
    noised_fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "noised_fields" not in vars(cls) and not _AT_SITES.isdisjoint(vars(cls)):
            cls.noised_fields = ()

    @abstractmethod
    def exchanges(self, round_number: int) -> Sequence[Exchange]:
        """The sums of one round, in order. Round ``rounds + 1`` is the closing evaluation."""

    def builds_on(self, round_number: int, exchange: Exchange) -> Sequence[str]:
        """Names of the earlier exchanges of the round whose work sites use again in this one.

        Security: name each of which a site program keeps anything for this exchange. A site then refuses the
        task unless it took theirs, from the broadcasts that all others had: what it would add without them
        (zeros, or something of another model) would leave another site's summand alone in the sum.
        """
        del round_number, exchange
        return ()

    @abstractmethod
    def server(self) -> ServerProgram:
        """A fresh server program, the same on every machine."""

    @abstractmethod
    def site(self, site_id: SiteId) -> SiteProgram:
        """The program of one site, bound to that site's data; DataError if they cannot be used."""

    def members(self, round_number: int, exchange: Exchange, sites: Sequence[SiteId]) -> Sequence[SiteId]:
        """The cohort: which of the enrolled sites are asked for this exchange; all by default."""
        del round_number, exchange
        return tuple(sites)

    def contributors(self, round_number: int, exchange: Exchange) -> Sequence[tuple[Collection[SiteId], int]]:
        """For parts of a sum to which some members add only zeros: who may add more, and the fewest of them.

        Sites refuse a cohort, or survivors, with fewer, but not with none of them. Empty: everybody adds to
        everything.

        Security: sites that read what others do not can be made to add zeros. So where members of several
        public kinds read different inputs, each kind is a part: :mod:`secfed.algorithms.framework.kinds`.
        """
        del round_number, exchange
        return ()

    def check_broadcast(self, round_number: int, exchange: Exchange, broadcast: State) -> None:
        """Refuse a broadcast whose names or shapes are not those of the study; looks at no record.

        Sites call it before they note or pay anything. Without it the site program finds out, after the
        payment of site-level privacy.

        Raises:
            MalformedMessage: it is not one of this study and exchange.
        """
        del round_number, exchange, broadcast

    def unprotected(self, exchange: Exchange) -> Sequence[str]:
        """Fields that leave without noise under ``[privacy]``, by the study's explicit choice."""
        del exchange
        return ()

    def left_out(self) -> Sequence[SiteId]:
        """Sites that are in no sum with other kinds, because there are too few of theirs; for reports."""
        return ()

    def field_words(self) -> Mapping[str, str]:
        """What fields (or those with one beginning, up to ``/``) hold, for reports; others show their names.

        ``PARAMETERS`` for those of the model.
        """
        return {}

    def unit_bound(self, exchange: Exchange) -> UnitBound | None:
        """What one unit adds to a sum at most, for ``noise = "sum"``; None where that is not bounded."""
        del exchange
        return None

    def device_bytes(self) -> int | None:
        """An estimate of what one site's training takes of a GPU's memory; None where there is none."""
        return None

    def model_in(self, broadcast: State) -> State:
        """The whole model in a site's first broadcast of round 1, compared there with ``model.start``."""
        return broadcast

    def per_site(self, model: State) -> Mapping[SiteId, Metrics]:
        """Metrics of one model at every site. Simulation only: in a study nobody has two sites' records."""
        del model
        return {}


def without_noise(algorithm: Algorithm, exchange: Exchange, privacy: PrivacySection) -> tuple[str, ...]:
    """Fields of an exchange that leave without noise: by the study's choice, or undeclared.

    Where the sum carries the noise, it covers whole exchanges, whatever is in them.
    """
    said = set(algorithm.unprotected(exchange))
    names = [one.name for one in exchange.layout.fields]
    if privacy.in_local_steps:
        declared = algorithm.noised_fields
        said |= {name for name in names if name not in declared and name.partition("/")[0] not in declared}
    return tuple(name for name in names if name in said)


class PlannedExchange(Protocol):
    """An exchange with what an algorithm knows about it."""

    @property
    def exchange(self) -> Exchange:
        """The sum."""


_Planned = TypeVar("_Planned", bound=PlannedExchange)


def planned_for(exchange: Exchange, round_number: int, stages: Iterable[_Planned]) -> _Planned:
    """The stage of a round that an exchange from the other side belongs to; a WrongState if none does."""
    for stage in stages:
        if stage.exchange == exchange:
            return stage
    raise no_exchange(round_number, exchange)


def fitting(exchange: Exchange, values: Summands) -> Summands:
    """Those of the values that an exchange has fields for, in the layout's order."""
    return {field.name: values[field.name] for field in exchange.layout.fields if field.name in values}


def no_exchange(round_number: int, exchange: Exchange) -> WrongState:
    """The error of an exchange that a round does not have."""
    message = f"round {round_number} has no exchange {exchange.name!r} of this layout"
    return WrongState(message, remedy="the aggregator must run the same study file")


def check_round(round_number: int, rounds: int) -> None:
    """Refuse, with WrongState, a round that a study of ``rounds`` training rounds does not have."""
    if not 1 <= round_number <= rounds + 1:
        raise WrongState(
            f"the study has no round {round_number}",
            remedy=f"its rounds are 1 to {rounds}, and {rounds + 1} is the closing evaluation",
        )
