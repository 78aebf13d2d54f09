"""One line in the test of an algorithm of one's own: ``check_algorithm(MyAlgorithm)``.

Plays tiny studies of hospitals with labelled records, without protocol, and raises :class:`AlgorithmFault`
with what is wrong:

    sums          for every field a finite value of its shape; fixed-point sums give the model of exact ones
    bounds        no value is above its field's bound
    pooled mean   the server steps from the pooled mean; neither numbers nor sizes of hospitals change it
    state         a server that continues from its checkpoint after every exchange comes to the same model
    restart       a hospital that is restarted goes on alike, and does interrupted work again alike
    dropout       whoever is not in a sum leaves no trace in it; the rest goes on
    privacy plan  under each unit that it names: paid within epsilon, and nothing leaves without noise unsaid

A loss is the mean over a batch here: the pooled mean is checked for algorithms of weighted means only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final, cast

import torch
from torch import nn

from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.federated_averaging.weighted_mean import WeightedMean
from secfed.algorithms.framework.base import Algorithm, ServerProgram, SiteProgram
from secfed.algorithms.framework.datasets import SiteData, SiteId
from secfed.algorithms.framework.parameters import write_parameters
from secfed.algorithms.framework.randomness import seeded, torch_generator
from secfed.algorithms.framework.server_state import copies, part_of
from secfed.algorithms.framework.setting import Setting
from secfed.config.schema import checked
from secfed.crypto.keystream import rounding_stream_for_simulation
from secfed.dp.accounting.events import Event
from secfed.dp.accounting.interface import accountant, statement
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.settings import PrivacySection
from secfed.dp.training.local_privacy import LocalPrivacy
from secfed.errors import SecfedError
from secfed.pipeline.noised_algorithm import with_privacy
from secfed.study.build import build, build_data
from secfed.study.study import Study
from secfed.wire.layout import Exchange, State, Summands, Totals

_FEATURES: Final = 6
_ROUNDS: Final = 2
_ROUNDING: Final = 1e-3  # of parameters, from fixed point; adaptive servers enlarge it
_EQUAL: Final = 1e-4
_STUDY: Final = f"""
study = {{ name = "check", rounds = {_ROUNDS}, seed = 3 }}
algorithm = {{ name = "fedavg" }}
model = {{ name = "logistic-regression" }}
data = {{ name = "breast-cancer", sites = 4 }}
protection = {{ name = "plain", min_cohort = 2 }}
"""
_PRIVACY: Final = {"epsilon": 8.0, "delta": 1e-4, "accountant": "rdp"}
_Released = dict[tuple[int, str], torch.Tensor]  # by round and field
_MORE: Final[Mapping[str, dict[str, object]]] = {"record": {}, "group": {"group_size": 4}, "site": {}}


class AlgorithmFault(AssertionError):
    """What an algorithm does wrong, and what to do about it."""


def check_algorithm(
    algorithm: type[Algorithm],
    *,
    model: Callable[[], nn.Module] | None = None,
    study: Study | None = None,
    **options: object,
) -> None:
    """Check an algorithm for labelled records; see the module for how.

    ``model`` makes the model, for records of shape (6,) and two classes, the same every time; ``options`` are
    keys of the ``[algorithm]`` table. For other records give the whole ``study``; its privacy is not checked.

    Raises:
        AlgorithmFault: names the check, what is wrong and the remedy.
        SecfedError: options or a model that the algorithm refuses.
    """
    case = _Case(algorithm, options, model or _network)
    if study is not None:
        case = replace(case, own=study, records=dict.fromkeys(build_data(study).sites))
    _check_sums(case)
    if issubclass(algorithm, WeightedMean):
        _check_pooled_mean(case)
    _check_state(case)
    _check_dropout(case)
    for unit in algorithm.private_units if study is None else ():
        _check_privacy(case, unit)


def _network() -> nn.Module:
    with seeded(0, "model of the check"):
        return nn.Sequential(nn.Linear(_FEATURES, 5), nn.Tanh(), nn.Linear(5, 2))


def _records(seed: int, count: int = 24, twice: bool = False) -> SiteData:
    generator = torch_generator(seed, "records of the check")
    x = torch.randn(count + 8, _FEATURES, generator=generator)
    y = (x[:, 0] + 0.3 * torch.randn(count + 8, generator=generator) > 0).long()
    train_x, train_y = x[:count], y[:count]
    if twice:
        train_x, train_y = train_x.repeat(2, 1), train_y.repeat(2)
    return SiteData(train_x, train_y, x[count:], y[count:])


def _different() -> dict[SiteId, SiteData]:
    return {f"hospital-{number}": _records(number, 16 + 4 * number) for number in range(4)}


@dataclass(frozen=True)
class _Case:
    """One algorithm on some records; every machine makes an algorithm object of its own."""

    type: type[Algorithm]
    options: Mapping[str, object]
    model: Callable[[], nn.Module]
    records: Mapping[SiteId, Any] = field(default_factory=_different)  # SiteData, but for an own study
    privacy: PrivacySection | None = None
    own: Study | None = None

    @property
    def study(self) -> Study:
        if self.own is not None:
            return self.own
        return Study.parse(_STUDY).model_copy(update={"privacy": self.privacy})

    @property
    def data(self) -> Any:
        """A data set in memory."""
        shape, site = (_FEATURES,), self.records.__getitem__
        return SimpleNamespace(sites=tuple(self.records), site=site, input_shape=shape, classes=2)

    def algorithm(self) -> Algorithm:
        if self.own is not None:
            return build(self.own)
        make, kind, study = cast("Callable[..., Algorithm]", self.type), self.type.options_type, self.study
        if kind is None:
            return make(Setting(study, self.data, self.model), **self.options)
        default: dict[str, object] = {"batch_size": 1000, "learning_rate": 0.1}  # whole passes: equal draws
        if self.privacy is not None:
            default = {"batch_size": 8, "weighting": "equal"}
        known = {key: value for key, value in default.items() if key in kind.model_fields}
        options = checked(kind, {"name": "checked", **known, **self.options}, "algorithm")
        study = study.model_copy(update={"algorithm": options})
        return make(Setting(study, self.data, self.model), options)

    def fault(self, check: str, what: str, remedy: str) -> AlgorithmFault:
        return AlgorithmFault(f"{self.type.__name__}, {check}: {what}; {remedy}")


def _restored(algorithm: Algorithm, site: SiteId, state: State) -> SiteProgram:
    program = algorithm.site(site)
    if state:
        program.load(state)
    return program


def _add(exchange: Exchange, given: Mapping[SiteId, Summands]) -> Totals:
    values = {}
    for one in exchange.layout.fields:
        parts = [torch.as_tensor(summands[one.name], dtype=torch.float64) for summands in given.values()]
        values[one.name] = torch.stack(parts).sum(dim=0)
    return Totals(values, tuple(given))


def _add_fixed_point(exchange: Exchange, given: Mapping[SiteId, Summands]) -> Totals:
    """The sums as every protection makes them."""
    layout = exchange.layout
    sums = [torch.zeros(run.count).numpy().astype(run.dtype) for run in layout.shape.runs]
    for site, summands in given.items():
        encoder = layout.encoder(summands, rounding_stream_for_simulation(1, site, exchange.name))
        for run, total in zip(layout.shape.runs, sums, strict=True):
            lanes = total.copy()
            encoder.fill(run, lanes)
            total += lanes
    return layout.decode(tuple(sums), tuple(given))


def _play(
    case: _Case,
    *,
    rounds: int | None = None,
    add: Callable[[Exchange, Mapping[SiteId, Summands]], Totals] = _add,
    lost: Collection[tuple[SiteId, int]] = (),
    restart_server: bool = False,
    restart_sites: bool = False,
    shared: Algorithm | None = None,
    watch: Callable[[SiteId, Exchange, Summands], None] = lambda *_: None,
) -> ServerProgram:
    """Rounds without protocol, by default all; a contribution that is lost was made, and is in no sum."""
    central = shared or case.algorithm()
    own = {site: shared or case.algorithm() for site in case.records}
    programs, server = {site: own[site].site(site) for site in own}, central.server()
    for number in range(1, (rounds or case.study.rounds + 1) + 1):
        for exchange in central.exchanges(number):
            given = {}
            for site in central.members(number, exchange, tuple(own)):
                broadcast, before = server.broadcast(number, exchange), copies(programs[site].save())
                given[site] = programs[site].contribute(number, exchange, broadcast)
                watch(site, exchange, given[site])
                if restart_sites:
                    again = _restored(own[site], site, before).contribute(number, exchange, broadcast)
                    _compare_work(case, given[site], again)
                    programs[site] = _restored(own[site], site, copies(programs[site].save()))
            counted = {site: one for site, one in given.items() if (site, number) not in lost}
            server.absorb(number, exchange, add(exchange, counted))
            if restart_server:
                saved, server = copies(server.save()), central.server()
                server.load(saved)
    return server


def _compare_work(case: _Case, first: Summands, again: Summands) -> None:
    for name, value in first.items():
        if not torch.equal(torch.as_tensor(value), torch.as_tensor(again[name])):
            raise case.fault(
                "restart",
                f"work from what the hospital saved gives another {name!r}",
                "draw from setting.local_seed or the context's generator, and keep what rounds need in "
                "site_memory or save",
            )


def _apart(one: ServerProgram, other: ServerProgram) -> float:
    first, second = one.model(), other.model()
    return max(float((value.double() - second[name].double()).abs().max()) for name, value in first.items())


def _check_sums(case: _Case) -> None:
    def look(site: SiteId, exchange: Exchange, given: Summands) -> None:
        del site
        fields = {one.name: one for one in exchange.layout.fields}
        for name in sorted(set(fields) ^ set(given)):
            what = f"field {name!r} of {exchange.name!r} gets no value"
            if name in given:
                what = f"a value for {name!r}, which is not a field of {exchange.name!r}"
            raise case.fault("sums", what, "let fields and what local work returns name the same")
        for name, value in given.items():
            tensor, bound = torch.as_tensor(value, dtype=torch.float64), fields[name].bound
            if tuple(tensor.shape) != fields[name].shape:
                what = f"field {name!r} has shape {fields[name].shape} and gets {tuple(tensor.shape)}"
                raise case.fault("sums", what, "declare the shape that local work returns")
            if not bool(torch.isfinite(tensor).all()):
                raise case.fault("sums", f"field {name!r} gets NaN or Inf", "check the local training")
            if float(tensor.abs().max()) > bound:
                what = f"field {name!r} gets {float(tensor.abs().max()):.3g}, above its bound {bound:g}"
                raise case.fault("bounds", what, "fixed point clips it: scale the value, or raise the bound")

    exact = _play(case, watch=look)
    if _apart(exact, _play(case, add=_add_fixed_point)) > _ROUNDING:
        what = "the model from fixed-point sums is another than that from exact sums"
        raise case.fault("sums", what, "sum values that are not much smaller than their bound")


def _check_pooled_mean(case: _Case) -> None:
    algorithm, means = cast("WeightedMean", case.algorithm()), {}
    step = algorithm.server_step

    def spy(model: State, mean: Any, state: dict[str, torch.Tensor]) -> State:
        means.update({one.name: mean[one.name] for one in algorithm.fields()})
        return step(model, mean, state)

    cast("Any", algorithm).server_step = spy
    _play(case, rounds=1, shared=algorithm)
    pooled = _pooled(case)
    for name, value in means.items():
        if not torch.allclose(value, pooled[name], atol=_EQUAL, rtol=_EQUAL):
            what = f"the server's mean of {name!r} is not the pooled mean of what local_update returns"
            raise case.fault("pooled mean", what, "leave the weights to WeightedMean")
    two, four = (replace(case, records={f"h{i}": _records(1) for i in range(n)}) for n in (2, 4))
    one = _play(two, rounds=1)
    if _apart(one, _play(four, rounds=1)) > _EQUAL:
        what = "two and four hospitals of the same records come to different models"
        raise case.fault("pooled mean", what, "make server_step from the means it is given")
    sizes = replace(case, records={"h0": _records(1), "h1": _records(1, twice=True)})
    if _apart(one, _play(sizes, rounds=1)) > _EQUAL:
        what = "a hospital whose records are all there twice pulls the mean elsewhere"
        raise case.fault("pooled mean", what, "return means over records from local_update, not weighted")


def _pooled(case: _Case) -> dict[str, torch.Tensor]:
    """What local_update returns at every hospital, pooled by the hospitals' weights."""
    sums: dict[str, torch.Tensor] = {}
    total = 0.0
    for site, data in case.records.items():
        algorithm = cast("WeightedMean", case.algorithm())
        broadcast = algorithm.server().broadcast(1, algorithm.exchanges(1)[-1])
        received, model, memory = algorithm.model_in(broadcast), case.model(), copies(algorithm.site_memory())
        write_parameters(model, received)
        seed, shared = algorithm.setting.local_seed, part_of(broadcast, "state/")
        context = LocalContext(site, 1, received, shared, memory, torch.device("cpu"), seed)
        algorithm.receive(context)
        given, weight = algorithm.local_update(model, data, context), algorithm.weight(len(data.train_y))
        for one in algorithm.fields():
            value = weight * torch.as_tensor(given[one.name], dtype=torch.float64)
            sums[one.name] = sums.get(one.name, torch.zeros(())) + value
        total += weight
    return {name: value / total for name, value in sums.items()}


def _check_state(case: _Case) -> None:
    work: list[Summands] = []
    expected = _play(case, watch=lambda _site, _exchange, given: work.append(given))
    if _apart(expected, _play(case, restart_server=True)):
        what = "a server that continues from its checkpoint comes to another model"
        raise case.fault("state", what, "keep all that steps need in server_state or save")
    uninterrupted = iter(work)
    _play(case, restart_sites=True, watch=lambda *given: _compare_work(case, next(uninterrupted), given[-1]))


def _check_dropout(case: _Case) -> None:
    last = list(case.records)[-1]
    lost = [(last, 1)]
    server = _play(case, lost=lost)
    if not all(bool(torch.isfinite(value).all()) for value in server.model().values()):
        raise case.fault("dropout", "a lost contribution makes the model NaN or Inf", "check server_step")
    if _apart(server, _play(case, lost=lost, shared=case.algorithm())):
        what = "programs of one algorithm object come to another model than programs of their own machines"
        raise case.fault("dropout", what, "pass values through sums and broadcasts only, never through self")
    if issubclass(case.type, WeightedMean):
        same = replace(case, records={f"h{i}": _records(1) for i in range(4)})
        if _apart(_play(same, rounds=1), _play(same, rounds=1, lost=[("h3", 1)])) > _EQUAL:
            what = "with one hospital fewer of the same records the model moves otherwise"
            raise case.fault("dropout", what, "divide by the survivors, not by all hospitals")


def _check_privacy(case: _Case, unit: str) -> None:
    name = f"privacy plan ({unit})"
    if unit not in _MORE:
        raise case.fault(name, "there is no such unit", f"private_units are of {', '.join(_MORE)}")
    private = replace(
        case, privacy=checked(PrivacySection, {"unit": unit, **_PRIVACY, **_MORE[unit]}, "privacy")
    )
    try:
        with_privacy(private.study, private.algorithm(), tuple(case.records))
        if unit != "site":
            _check_releases(private, name)
    except SecfedError as error:
        raise case.fault(
            name, f"refused: {error}", "support the unit, or leave it out of private_units"
        ) from error


def _check_releases(case: _Case, name: str) -> None:
    site = next(iter(case.records))
    settings = cast("PrivacySection", case.privacy)
    (first, paid), (other_noise, _) = (_release(case, site, secret) for secret in (b"1", b"2"))
    changed = {**case.records, site: _records(99, len(case.records[site].train_y))}
    other_records, _ = _release(replace(case, records=changed), site, b"1")
    if not paid:
        raise case.fault(name, "nothing is paid", "train with context.train, or with the site's privacy")
    spent = statement(paid, settings.delta, accountant(settings.accountant)).epsilon
    if spent > settings.epsilon * (1 + _EQUAL):
        what = f"the study pays epsilon {spent:.3g} of {settings.epsilon:g}"
        raise case.fault(name, what, "plan every private phase in phases")
    for (number, key), value in first.items():
        alike = torch.equal(value, other_noise[number, key])
        if alike and not torch.equal(value, other_records[number, key]):
            what = f"{key!r} depends on records and leaves without noise in round {number}"
            remedy = "make it from what private training gave, or say so in unprotected"
            raise case.fault(name, what, remedy)


def _release(case: _Case, site: SiteId, secret: bytes) -> tuple[_Released, list[Event]]:
    """What a hospital adds, by round and field, but for what is declared, and all that it pays."""
    algorithm, paid, found = case.algorithm(), list[Event](), _Released()
    ledger: Any = SimpleNamespace(spender=lambda **_: paid.append)
    privacy = LocalPrivacy(
        cast("PrivacySection", case.privacy),
        ledger,
        study="check",
        seed=1,
        random=lambda number, exchange: SecureRandom.for_simulation(secret[0], str(number), exchange),
    )
    program, server = algorithm.site(site), algorithm.server()
    program.use_privacy(privacy)
    for number in range(1, _ROUNDS + 1):
        for exchange in algorithm.exchanges(number):
            privacy.enter(number, exchange.name)
            given = program.contribute(number, exchange, server.broadcast(number, exchange))
            said = {*algorithm.unprotected(exchange), *program.settled(number, exchange)}
            for key, value in given.items():
                if key not in said:
                    found[number, key] = torch.as_tensor(value, dtype=torch.float64)
    return found, paid
