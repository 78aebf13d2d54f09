"""One line in the test of an algorithm of one's own: ``check_algorithm(MyAlgorithm)``.

Plays tiny studies of hospitals with labelled records, without protocol, and raises :class:`AlgorithmFault`
with what is wrong:

    sums          for every field a finite value of its shape; fixed-point sums give the model of exact ones
    bounds        no value is above its field's bound
    pooled mean   the server steps from the pooled mean; neither numbers nor sizes of hospitals change it
    state         a server that continues from its checkpoint after every exchange comes to the same model
    restart       a hospital that is restarted goes on alike, and does interrupted work again alike
    links         what a hospital adds does not vanish without earlier work of the round, or builds_on says so
    dropout       whoever is not in a sum leaves no trace in it; the rest goes on
    privacy plan  under each unit that it names: paid within epsilon, and nothing leaves without noise unsaid
    unit sums     under each unit of noise in the sum: no sum without a bound, none that a unit moves by more

A loss is the mean over a batch here: the pooled mean is checked for algorithms of weighted means only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast

import torch
from torch import nn

from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.federated_averaging.weighted_mean import WeightedMean
from secfed.algorithms.framework.base import Algorithm
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.parameters import write_parameters
from secfed.algorithms.framework.server_state import copies, part_of
from secfed.config.schema import checked
from secfed.dp.accounting.events import Event
from secfed.dp.accounting.interface import accountant, statement
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.settings import PrivacySection
from secfed.dp.training.local_privacy import LocalPrivacy
from secfed.errors import SecfedError
from secfed.pipeline.noised_algorithm import with_privacy
from secfed.study.build import build_data
from secfed.study.study import Study
from secfed.testing.case import (
    MORE,
    PRIVACY,
    ROUNDS,
    Case,
    add_fixed_point,
    apart,
    compare_work,
    made_up,
    network,
    play,
)
from secfed.testing.links import check_links
from secfed.testing.units import check_unit_sums
from secfed.wire.layout import Exchange, State, Summands

_ROUNDING: Final = 1e-3  # of parameters, from fixed point; adaptive servers enlarge it
_EQUAL: Final = 1e-4
_Released = dict[tuple[int, str], torch.Tensor]  # by round and field


def check_algorithm(
    algorithm: type[Algorithm],
    *,
    model: Callable[[], nn.Module] | None = None,
    study: Study | None = None,
    **options: object,
) -> None:
    """Check an algorithm for labelled records; see the module for how.

    ``model`` makes the model, for records of shape (6,) and two classes, the same every time; ``options`` are
    keys of the ``[algorithm]`` table. For other records give the whole ``study``; of privacy only
    noise in the sum is checked then, unless the algorithm refuses it for this study.

    Raises:
        AlgorithmFault: names the check, what is wrong and the remedy.
        SecfedError: options or a model that the algorithm refuses.
    """
    case = Case(algorithm, options, model or network)
    if study is not None:
        case = replace(case, own=study, records=dict.fromkeys(build_data(study).sites))
    _check_sums(case)
    if issubclass(algorithm, WeightedMean):
        _check_pooled_mean(case)
    _check_state(case)
    check_links(case)
    _check_dropout(case)
    for unit in algorithm.private_units if study is None else ():
        _check_privacy(case, unit)
    for unit in algorithm.summed_units:
        check_unit_sums(case, unit)


def _check_sums(case: Case) -> None:
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

    exact = play(case, watch=look)
    if apart(exact, play(case, add=add_fixed_point)) > _ROUNDING:
        what = "the model from fixed-point sums is another than that from exact sums"
        raise case.fault("sums", what, "sum values that are not much smaller than their bound")


def _check_pooled_mean(case: Case) -> None:
    algorithm, means = cast("WeightedMean", case.algorithm()), {}
    step = algorithm.server_step

    def spy(model: State, mean: Any, state: dict[str, torch.Tensor]) -> State:
        means.update({one.name: mean[one.name] for one in algorithm.fields()})
        return step(model, mean, state)

    cast("Any", algorithm).server_step = spy
    play(case, rounds=1, shared=algorithm)
    pooled = _pooled(case)
    for name, value in means.items():
        if not torch.allclose(value, pooled[name], atol=_EQUAL, rtol=_EQUAL):
            what = f"the server's mean of {name!r} is not the pooled mean of what local_update returns"
            raise case.fault("pooled mean", what, "leave the weights to WeightedMean")
    two, four = (replace(case, records={f"h{i}": made_up(1) for i in range(n)}) for n in (2, 4))
    one = play(two, rounds=1)
    if apart(one, play(four, rounds=1)) > _EQUAL:
        what = "two and four hospitals of the same records come to different models"
        raise case.fault("pooled mean", what, "make server_step from the means it is given")
    sizes = replace(case, records={"h0": made_up(1), "h1": made_up(1, twice=True)})
    if apart(one, play(sizes, rounds=1)) > _EQUAL:
        what = "a hospital whose records are all there twice pulls the mean elsewhere"
        raise case.fault("pooled mean", what, "return means over records from local_update, not weighted")


def _pooled(case: Case) -> dict[str, torch.Tensor]:
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


def _check_state(case: Case) -> None:
    work: list[Summands] = []
    expected = play(case, watch=lambda _site, _exchange, given: work.append(given))
    if apart(expected, play(case, restart_server=True)):
        what = "a server that continues from its checkpoint comes to another model"
        raise case.fault("state", what, "keep all that steps need in server_state or save")
    uninterrupted = iter(work)
    play(case, restart_sites=True, watch=lambda *given: compare_work(case, next(uninterrupted), given[-1]))


def _check_dropout(case: Case) -> None:
    last = list(case.records)[-1]
    lost = [(last, 1)]
    server = play(case, lost=lost)
    if not all(bool(torch.isfinite(value).all()) for value in server.model().values()):
        raise case.fault("dropout", "a lost contribution makes the model NaN or Inf", "check server_step")
    if apart(server, play(case, lost=lost, shared=case.algorithm())):
        what = "programs of one algorithm object come to another model than programs of their own machines"
        raise case.fault("dropout", what, "pass values through sums and broadcasts only, never through self")
    if issubclass(case.type, WeightedMean):
        same = replace(case, records={f"h{i}": made_up(1) for i in range(4)})
        if apart(play(same, rounds=1), play(same, rounds=1, lost=[("h3", 1)])) > _EQUAL:
            what = "with one hospital fewer of the same records the model moves otherwise"
            raise case.fault("dropout", what, "divide by the survivors, not by all hospitals")


def _check_privacy(case: Case, unit: str) -> None:
    name = f"privacy plan ({unit})"
    if unit not in MORE:
        raise case.fault(name, "there is no such unit", f"private_units are of {', '.join(MORE)}")
    private = replace(
        case, privacy=checked(PrivacySection, {"unit": unit, **PRIVACY, **MORE[unit]}, "privacy")
    )
    try:
        with_privacy(private.study, private.algorithm(), tuple(case.records))
        if unit != "site":
            _check_releases(private, name)
    except SecfedError as error:
        raise case.fault(
            name, f"refused: {error}", "support the unit, or leave it out of private_units"
        ) from error


def _check_releases(case: Case, name: str) -> None:
    site = next(iter(case.records))
    settings = cast("PrivacySection", case.privacy)
    (first, paid), (other_noise, _) = (_release(case, site, secret) for secret in (b"1", b"2"))
    changed = {**case.records, site: made_up(99, len(case.records[site].train_y))}
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


def _release(case: Case, site: SiteId, secret: bytes) -> tuple[_Released, list[Event]]:
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
    for number in range(1, ROUNDS + 1):
        for exchange in algorithm.exchanges(number):
            privacy.enter(number, exchange.name)
            given = program.contribute(number, exchange, server.broadcast(number, exchange))
            said = {*algorithm.unprotected(exchange), *program.settled(number, exchange)}
            for key, value in given.items():
                if key not in said:
                    found[number, key] = torch.as_tensor(value, dtype=torch.float64)
    return found, paid
