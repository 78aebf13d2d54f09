"""Algorithms of one page against computations of their own, with one full-batch step or plain loops."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from secfed.algorithms.data.memory import SiteTables
from secfed.algorithms.federated_averaging.fednova import FedNova
from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.local_privacy import LocalPrivacy
from secfed.engine.trainer import Trainer
from secfed.engine.wire import Job
from secfed.errors import ConfigError
from secfed.pipeline.noised_algorithm import with_privacy
from secfed.site.containment import PART, Failure, contained
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.layout import Summands
from secfed.wire.parts import is_finite
from tests.algorithms.loop import add, simulate
from tests.properties.readiness_studies import CLASSIFIER

HERE = "tests.algorithms.federated_averaging.test_pages"
SITES = ("a", "b", "c")
ROUNDS, RATE = 3, 0.3
Rows = dict[str, tuple[torch.Tensor, torch.Tensor]]


def clinics(equal: bool = False) -> SiteTables:
    rng = np.random.default_rng(4)
    sites = {}
    for number, site in enumerate(SITES):
        count = 16 if equal else 10 + 6 * number
        x = rng.normal(size=(count, 3)).astype(np.float32)
        sites[site] = (x, (x[:, number] + 0.2 * rng.normal(size=count) > 0).astype(int))
    return SiteTables(sites, classes=2, test_fraction=0.25, standardize=False)


def net(input_shape: tuple[int, ...], classes: int, norm: bool = False) -> nn.Module:
    hidden = [nn.Linear(input_shape[0], 4), *([nn.BatchNorm1d(4)] if norm else []), nn.Tanh()]
    return nn.Sequential(*hidden, nn.Linear(4, classes))


def study(name: str, *, norm: bool = False, **options: Any) -> Study:
    chosen = Study.parse(f"""
        study = {{ name = "page", rounds = {ROUNDS}, seed = 2 }}
        algorithm = {{ name = "fedavg" }}
        model = {{ name = "{HERE}:net", norm = {str(norm).lower()} }}
        data = {{ name = "{HERE}:clinics" }}
        protection = {{ name = "plain", min_cohort = 2 }}
        """)
    return chosen.replace("algorithm", {"name": name, "learning_rate": RATE, "batch_size": 100, **options})


def rows(algorithm: Any) -> Rows:
    found = {site: algorithm.site_data(site) for site in SITES}
    return {site: (data.train_x, data.train_y) for site, data in found.items()}


def flat(state: Any, names: Any) -> torch.Tensor:
    return torch.cat([state[name].reshape(-1).double() for name in names])


class Alone:
    """The model as one flat vector, and its gradient on some records."""

    def __init__(self, algorithm: Any) -> None:
        self.network, self.names = algorithm.setting.model(), list(algorithm.initial)
        self.start = flat(algorithm.initial, self.names)

    def gradient(self, at: torch.Tensor, records: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        torch.nn.utils.vector_to_parameters(at.float(), self.network.parameters())
        self.network.zero_grad()
        nn.functional.cross_entropy(self.network(records[0]), records[1]).backward()
        return torch.cat([p.grad.reshape(-1) for p in self.network.parameters()]).double()

    def descend(
        self, at: torch.Tensor, records: Any, steps: int, more: Callable[[torch.Tensor], Any] = lambda _: 0.0
    ) -> torch.Tensor:
        for _ in range(steps):
            at = at - RATE * (self.gradient(at, records) + more(at))
        return at


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_adaptive_servers_take_the_steps_of_the_paper(name: str) -> None:
    more = {} if name == "fedadagrad" else {"beta2": 0.9}
    chosen = study(name, weighting="equal", tau=0.01, **more)
    algorithm = build(chosen)
    alone, data = Alone(algorithm), rows(algorithm)
    x, m, v = alone.start, torch.zeros_like(alone.start), torch.full_like(alone.start, 0.01**2)
    for _ in range(ROUNDS):
        delta = torch.stack([alone.descend(x, data[site], 1) - x for site in SITES]).mean(dim=0)
        m = 0.9 * m + 0.1 * delta
        v = {
            "fedadam": 0.9 * v + 0.1 * delta**2,
            "fedyogi": v - 0.1 * delta**2 * (v - delta**2).sign(),
            "fedadagrad": v + delta**2,
        }[name]
        x = x + 0.1 * m / (v.sqrt() + 0.01)
    assert torch.allclose(flat(simulate(chosen).model(), alone.names), x, atol=1e-4)


def test_server_momentum_keeps_earlier_mean_updates() -> None:
    chosen = study("fedavgm", weighting="equal", server_learning_rate=0.5, server_momentum=0.7)
    algorithm = build(chosen)
    alone, data = Alone(algorithm), rows(algorithm)
    x, m = alone.start, torch.zeros_like(alone.start)
    for _ in range(ROUNDS):
        m = 0.7 * m + torch.stack([alone.descend(x, data[site], 1) - x for site in SITES]).mean(dim=0)
        x = x + 0.5 * m
    assert torch.allclose(flat(simulate(chosen).model(), alone.names), x, atol=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fednova_averages_directions_and_steps(momentum: float) -> None:
    chosen = study("fednova", momentum=momentum, batch_size=5, local_epochs=2, weight_cap=25)
    algorithm = build(chosen)
    names, data = list(algorithm.initial), rows(algorithm)
    [update], server = algorithm.exchanges(1), algorithm.server()
    plain = build(study("fedavg", momentum=momentum, batch_size=5, local_epochs=2, weight_cap=25))
    moved, shares, norms = [], [], []
    for site in SITES:
        given = plain.site(site).contribute(1, plain.exchanges(1)[0], plain.server().broadcast(1, update))
        weight = float(given["weight"])
        moved.append(flat({n: given[f"update/{n}"] for n in names}, names) / weight)
        shares.append(weight)
        steps = 2 * math.ceil(len(data[site][1]) / 5)
        norms.append(
            sum(sum(momentum**k for k in range(j)) for j in range(1, steps + 1))
        )  # as the paper adds
    p = torch.tensor(shares) / sum(shares)
    direction = sum(p[i] * moved[i] / norms[i] for i in range(3))
    expected = flat(algorithm.initial, names) + float(sum(p[i] * norms[i] for i in range(3))) * direction
    state = server.broadcast(1, update)
    server.absorb(1, update, add(update, {s: algorithm.site(s).contribute(1, update, state) for s in SITES}))
    assert len(set(norms)) > 1
    assert torch.allclose(flat(server.model(), names), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("norm", "records", "steps"), [("pooled", 33, 1), ("pooled", 34, 2), (None, 33, 2), (None, 1, 1)]
)
def test_fednova_counts_no_step_that_is_not_taken(norm: str | None, records: int, steps: int) -> None:
    options = SimpleNamespace(local_epochs=1, momentum=0.0, batch_size=32, batch_norm=norm)
    found = FedNova._divisor(SimpleNamespace(options=options), SimpleNamespace(train_y=range(records)))  # type: ignore[arg-type]
    assert found == steps


def test_fednova_counts_steps_where_training_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = build(study("fednova", batch_size=5))
    [update], program = algorithm.exchanges(1), algorithm.site("b")
    state = algorithm.server().broadcast(1, update)
    given = program.contribute(1, update, state)
    assert program.settled(1, update)["steps"] == given["steps"]

    def fails(*_: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr(LocalContext, "train", fails)
    failed = program.contribute(1, update, state)
    assert "update/0.weight" not in failed
    assert (failed["steps"], failed["weight"]) == (given["steps"], given["weight"])


@pytest.mark.parametrize("lost", [(), ((2, "b"),)], ids=["all", "one-lost"])
def test_scaffold_is_that_of_the_paper_and_a_lost_contribution_leaves_no_trace(lost: Any) -> None:
    algorithm = build(study("scaffold", local_epochs=2, server_learning_rate=0.8))
    alone, data = Alone(algorithm), rows(algorithm)
    programs, server = {site: algorithm.site(site) for site in SITES}, algorithm.server()
    [update] = algorithm.exchanges(1)
    x, c = alone.start, torch.zeros_like(alone.start)
    own = {site: torch.zeros_like(x) for site in SITES}
    for number in range(1, ROUNDS + 1):
        state = server.broadcast(number, update)
        given = {site: programs[site].contribute(number, update, state) for site in SITES}
        summed = [site for site in SITES if (number, site) not in lost]
        server.absorb(number, update, add(update, {site: given[site] for site in summed}))
        y = {site: alone.descend(x, data[site], 2, lambda _, by=c - own[site]: by) for site in summed}
        new = {site: own[site] - c + (x - y[site]) / (2 * RATE) for site in summed}
        x = x + 0.8 * torch.stack([y[site] - x for site in summed]).mean(dim=0)
        c = c + torch.stack([new[site] - own[site] for site in summed]).sum(dim=0) / len(SITES)
        own |= new
        assert torch.allclose(flat(server.model(), alone.names), x, atol=1e-5)
        after = server.broadcast(number + 1, update)
        controls = flat({n: after[f"state/control/{n}"] for n in alone.names}, alone.names)
        assert torch.allclose(controls, c, atol=1e-4)
        assert torch.allclose(controls, sum(own.values()) / 3, atol=1e-4)  # whatever was lost


def test_scaffold_remembers_what_was_summed_before_its_process_died() -> None:
    algorithm = build(study("scaffold"))
    programs, server = {site: algorithm.site(site) for site in SITES}, algorithm.server()
    [update], kept = algorithm.exchanges(1), programs["b"].save()
    for number in (1, 2, 3):
        state = server.broadcast(number, update)
        given = {site: programs[site].contribute(number, update, state) for site in SITES}
        if number == 2:  # a process died: zeros with the weight, and the next one has what was kept before
            zeros = {name: torch.zeros_like(torch.as_tensor(one)) for name, one in given["b"].items()}
            given["b"] = {**zeros, **programs["b"].settled(number, update)}
            programs["b"] = algorithm.site("b")
            programs["b"].load(kept)
        kept = programs["b"].save()
        server.absorb(number, update, add(update, given))
    after = server.broadcast(4, update)
    for name in algorithm.trained:
        own = [site.save()[f"control/{name}"] + site.save()[f"pending/{name}"] for site in programs.values()]
        assert torch.allclose(after[f"state/control/{name}"], sum(own) / 3, atol=1e-4)


def test_scaffold_counts_the_private_steps() -> None:
    table = {"unit": "record", "epsilon": 8.0, "delta": 1e-4, "accountant": "rdp"}
    chosen = study("scaffold", batch_size=4, local_epochs=2).replace("privacy", table)
    algorithm: Any = build(chosen)
    assert chosen.privacy is not None
    free: Any = SimpleNamespace(spender=lambda **_: lambda _event: None)
    random = lambda *place: SecureRandom.for_simulation(1, *map(str, place))  # noqa: E731
    privacy = LocalPrivacy(chosen.privacy, free, study="s", seed=1, random=random)
    program, [update] = algorithm.site("a"), algorithm.exchanges(1)
    program.use_privacy(privacy)
    privacy.enter(1, update.name)
    given = program.contribute(1, update, algorithm.server().broadcast(1, update))
    steps = 2 * privacy.mechanism().steps_per_pass
    assert steps > 2
    for name in algorithm.trained:
        assert torch.allclose(given[f"control/{name}"], -given[f"update/{name}"] / (steps * RATE), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "more"), [("scaffold", ""), ("ditto", ""), ("fedbn", 'local_layers = ["1"]')]
)
def test_what_a_site_keeps_outlives_its_training_process(name: str, more: str) -> None:
    text = CLASSIFIER.format(algorithm=name, weighting="equal", more=more)
    job = Job(site="hospital-1", settings=text, own_code=("tests.properties.readiness_case:tables",))
    server = build(Study.parse(text)).server()
    unused: Any = None
    one, given, kept = Trainer(job, unused, {}), [], {}
    for number in (1, 2):
        algorithm = build(Study.parse(text))
        [exchange] = algorithm.exchanges(number)
        broadcast, head = server.broadcast(number, exchange), {"round": number, "exchange": exchange.name}
        restarted, _, _ = Trainer(job, unused, kept).contribute(head, broadcast)
        summands, kept, failed = one.contribute(head, broadcast)
        assert not failed
        assert all(torch.equal(summands[field], restarted[field]) for field in summands)
        given.append(summands)
        server.absorb(number, exchange, add(exchange, {"hospital-1": summands}))
    assert kept
    fresh, _, _ = Trainer(job, unused, {}).contribute(head, broadcast)
    assert any(not torch.equal(fresh[field], given[1][field]) for field in fresh)  # or it kept nothing of use


@pytest.mark.parametrize(
    ("name", "more"), [("scaffold", {}), ("ditto", {}), ("fedbn", {"local_layers": ["0"]})]
)
def test_a_site_hears_that_what_it_would_keep_is_not_finite_and_keeps_what_it_had(
    name: str, more: dict[str, Any]
) -> None:
    algorithm = build(study(name, **more))
    program, server = algorithm.site("a"), algorithm.server()
    [update], heard, kept = algorithm.exchanges(1), [], {}

    def contribute(site: Any, number: int) -> Summands:
        work = partial(site.contribute, number, update, server.broadcast(number, update))
        return contained(number, update, work, partial(site.settled, number, update), heard.append)

    for number in (1, 2):
        given = contribute(program, number)
        server.absorb(number, update, add(update, {"a": given}))
        kept = program.save()
    assert not heard
    healthy = algorithm.site("a")
    healthy.load(kept)
    records = program._data.train_x
    copy = records.clone()
    records.fill_(math.nan)
    contribute(program, 3)
    assert Failure(3, "update", (PART,), "RangeError") in heard
    assert is_finite(program.save())
    records.copy_(copy)
    expected, again = contribute(healthy, 3), contribute(program, 3)
    assert all(torch.equal(expected[field], again[field]) for field in expected)


def alike(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        OrderedDict(head=nn.Linear(*input_shape, 4), head2=nn.Linear(4, 4), head_b=nn.Linear(4, classes))
    )


def test_a_local_layer_is_not_taken_for_one_whose_name_begins_alike() -> None:
    algorithm = build(study("fedbn", local_layers=["head"]).replace("model", {"name": f"{HERE}:alike"}))
    assert {name.partition(".")[0] for name in algorithm.trained} == {"head2", "head_b"}
    assert set(algorithm.site("a").save()) == {"head.weight", "head.bias"}


def test_local_layers_stay_where_they_are_with_their_statistics() -> None:
    chosen = study("fedbn", norm=True, local_layers=["1"], local_epochs=2)
    algorithm = build(chosen)
    [update], server = algorithm.exchanges(1), algorithm.server()
    names = {field.name for field in update.layout.fields if field.name.startswith("update/")}
    assert names == {f"update/{name}" for name in ("0.weight", "0.bias", "3.weight", "3.bias")}
    programs = {site: algorithm.site(site) for site in SITES}
    for number in (1, 2):
        state = server.broadcast(number, update)
        server.absorb(
            number, update, add(update, {s: programs[s].contribute(number, update, state) for s in SITES})
        )
    kept = [programs[site].save() for site in SITES]
    assert set(kept[0]) == {
        f"1.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }
    assert not torch.equal(kept[0]["1.running_mean"], kept[1]["1.running_mean"])
    assert all(torch.equal(server.model()[f"1.{n}"], algorithm.initial[f"1.{n}"]) for n in ("weight", "bias"))
    with pytest.raises(ConfigError, match="batch normalisation"):
        build(study("fedbn", norm=True, local_layers=["0"]))
    with pytest.raises(ConfigError, match="has no layer 'head'"):
        build(study("fedbn", local_layers=["head"]))
    with pytest.raises(ConfigError, match="has no layer ''"):
        build(study("fedbn", local_layers=[""]))
    with pytest.raises(ConfigError, match="no trainable parameters"):
        build(study("fedbn", local_layers=["0", "2"]))


def test_ditto_averages_as_fedavg_and_trains_personal_models_towards_it() -> None:
    chosen = study("ditto", mu=0.7, personal_epochs=2, weighting="equal")
    algorithm = build(chosen)
    alone, data = Alone(algorithm), rows(algorithm)
    programs, server = {site: algorithm.site(site) for site in SITES}, algorithm.server()
    [update] = algorithm.exchanges(1)
    own, accuracy = dict.fromkeys(SITES, alone.start), 0.0
    for number in range(1, ROUNDS + 1):
        received = flat(server.model(), alone.names)
        own = {
            site: alone.descend(v, data[site], 2, lambda at, r=received: 0.7 * (at - r))
            for site, v in own.items()
        }
        state = server.broadcast(number, update)
        given = {site: programs[site].contribute(number, update, state) for site in SITES}
        server.absorb(number, update, add(update, given))
    for site in SITES:
        assert torch.allclose(flat(programs[site].save(), alone.names), own[site], atol=1e-5)
        torch.nn.utils.vector_to_parameters(own[site].float(), alone.network.parameters())
        held_out = algorithm.site_data(site)
        accuracy += float((alone.network(held_out.test_x).argmax(dim=1) == held_out.test_y).sum())
    averaging = simulate(study("fedavg", weighting="equal"))
    assert all(torch.equal(server.model()[n], averaging.model()[n]) for n in alone.names)
    [evaluate] = algorithm.exchanges(ROUNDS + 1)
    state = server.broadcast(ROUNDS + 1, evaluate)
    totals = add(evaluate, {s: programs[s].contribute(ROUNDS + 1, evaluate, state) for s in SITES})
    assert float(totals["eval/class_correct"].sum()) == accuracy


@pytest.mark.parametrize(
    ("name", "unit", "supported"),
    [
        ("fedadam", "site", True),
        ("fednova", "record", False),
        ("fednova", "site", False),
        ("scaffold", "record", True),
        ("scaffold", "site", False),
        ("fedbn", "record", True),
        ("ditto", "group", True),
    ],
)
def test_what_each_can_protect(name: str, unit: str, supported: bool) -> None:
    more: dict[str, Any] = {"fedbn": {"local_layers": ["0"]}}.get(name, {})
    table: dict[str, Any] = {"unit": unit, "epsilon": 8.0, "delta": 1e-4, "accountant": "rdp"}
    if unit == "group":
        table["group_size"] = 2
    chosen = study(name, weighting="equal", **more).replace("privacy", table)
    if supported:
        with_privacy(chosen, build(chosen), SITES)
    else:
        with pytest.raises(ConfigError, match=f"privacy.unit: {name} does not train with the {unit} as unit"):
            with_privacy(chosen, build(chosen), SITES)
