"""Values of FMCSC's losses and weights against its formulas, written out again on NumPy in float64.

Nothing here is computed by the modules under test: a network is a dictionary of its parameters.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from secfed.algorithms.fmcsc import site as fmcsc_site
from secfed.algorithms.fmcsc.losses import distillation_loss, multiview_loss, single_view_loss
from secfed.algorithms.fmcsc.options import FmcscOptions
from secfed.algorithms.models.multiview import MultiviewModelOptions, MultiviewNetwork
from tests.algorithms.fmcsc_case import until

MULTI = ("hospital-1", "hospital-2", "hospital-3")
Views = list[np.ndarray]


class Written:
    """Section 2: one autoencoder per view, one head per view, one head over all."""

    def __init__(self, parameters: dict[str, torch.Tensor]) -> None:
        self.values = {name: value.detach().double().numpy().copy() for name, value in parameters.items()}

    def layers(self, part: str, x: np.ndarray) -> np.ndarray:
        """Linear layers with ReLU between them."""
        found = sorted(
            int(name.split(".")[-2])
            for name in self.values
            if name.startswith(part + ".") and name.endswith(".weight")
        )
        for at in found:
            x = x @ self.values[f"{part}.{at}.weight"].T + self.values[f"{part}.{at}.bias"]
            x = x if at == found[-1] else np.maximum(x, 0.0)
        return x

    def z(self, views: Views) -> Views:
        return [self.layers(f"enc.{v}", x) for v, x in enumerate(views)]

    def h(self, views: Views) -> np.ndarray:
        fused = self.layers("fuse_head", np.concatenate(self.z(views), axis=1))
        return fused / np.sqrt((fused**2).sum(axis=1, keepdims=True))

    def r(self, views: Views) -> Views:
        return [self.layers(f"view_head.{v}", z) for v, z in enumerate(self.z(views))]

    def rebuilt(self, views: Views) -> Views:
        return [self.layers(f"dec.{v}", z) for v, z in enumerate(self.z(views))]


def of(net: torch.nn.Module) -> Written:
    return Written(dict(net.named_parameters()))


def only(views: Views, view: int) -> Views:
    """The other views are zeros."""
    return [x if v == view else np.zeros_like(x) for v, x in enumerate(views)]


def mse(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a - b) ** 2).mean())


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / math.sqrt((a @ a) * (b @ b)))


def looped_eq5(h: np.ndarray, r: np.ndarray, tau: float) -> float:
    """Anchors h_i; the positive pair is not in the denominator."""
    total = 0.0
    for i in range(len(h)):
        others = sum(math.exp(cosine(h[i], r[j]) / tau) for j in range(len(h)) if j != i)
        total -= math.log(math.exp(cosine(h[i], r[i]) / tau) / others)
    return total / len(h)


def looped_ntxent(h: np.ndarray, r: np.ndarray, tau: float) -> float:
    """2n anchors, dot products, all other rows in the denominator."""
    rows, total = np.concatenate([r, h]), 0.0
    for a in range(len(rows)):
        partner = (a + len(h)) % len(rows)
        all_others = sum(math.exp(rows[a] @ rows[b] / tau) for b in range(len(rows)) if b != a)
        total -= math.log(math.exp(rows[a] @ rows[partner] / tau) / all_others)
    return total / len(rows)


CONTRASTS = {"eq5": looped_eq5, "ntxent": looped_ntxent}


def looped_model_contrast(h: np.ndarray, reference: np.ndarray, z: np.ndarray, tau: float) -> float:
    total = 0.0
    for i in range(len(h)):
        near = math.exp(cosine(h[i], reference[i]) / tau)
        total -= math.log(near / (near + math.exp(cosine(h[i], z[i]) / tau)))
    return total / len(h)


def information(a: np.ndarray, b: np.ndarray) -> float:
    """Section 3.4, in bits."""
    joint = np.histogram2d(a.ravel(), b.ravel(), bins=10)[0]
    joint = joint / joint.sum()
    p, q = joint.sum(axis=1), joint.sum(axis=0)
    held = [(i, j) for i in range(10) for j in range(10) if joint[i, j] > 0]
    return sum(joint[i, j] * math.log2(joint[i, j] / (p[i] * q[j])) for i, j in held)


# The losses


def network() -> MultiviewNetwork:
    torch.manual_seed(0)
    made = MultiviewNetwork((6, 5), MultiviewModelOptions(name="multiview", hidden=(8, 7), features=4))
    return made.double()


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def records(*parts: torch.Tensor) -> Views:
    return [part.numpy() for part in parts]


X, Y, TARGET = drawn(7, 6, seed=1), drawn(7, 5, seed=2), drawn(7, 4, seed=3)


def options(**more: object) -> FmcscOptions:
    # Two temperatures, so that one cannot stand in for the other.
    return FmcscOptions(name="fmcsc", temperature=0.3, model_temperature=0.8, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("contrast", sorted(CONTRASTS))
def test_the_multiview_loss_is_reconstruction_plus_each_view_s_contrast_with_h(contrast):
    net = network()
    written, views = of(net), records(X, Y)
    expected = sum(mse(a, b) for a, b in zip(written.rebuilt(views), views, strict=True))
    each = [CONTRASTS[contrast](written.h(views), r, 0.3) for r in written.r(views)]
    assert min(abs(value) for value in each) > 0.1  # leaving one view out would show
    found = multiview_loss(options(contrast=contrast))(net, (X, Y))
    assert float(found.detach()) == pytest.approx(expected + sum(each), rel=1e-10)


@pytest.mark.parametrize(("view", "distillation"), [(0, True), (1, True), (1, False)])
def test_the_distillation_loss_rebuilds_every_view_from_one_and_follows_the_target(view, distillation):
    net = network()
    written, views = of(net), records(X, Y)
    seen = only(views, view)
    expected = sum(mse(a, b) for a, b in zip(written.rebuilt(seen), views, strict=True))
    expected += mse(written.h(seen), TARGET.numpy()) if distillation else 0.0
    found = distillation_loss(view, options(distillation=distillation))(net, (X, Y, TARGET)).mean()
    assert float(found.detach()) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("view", [0, 1])
def test_the_single_view_loss_is_its_own_reconstruction_plus_the_model_contrast(view):
    net = network()
    written, views = of(net), records(X, Y)
    seen = only(views, view)
    expected = mse(written.rebuilt(seen)[view], views[view])
    expected += looped_model_contrast(written.h(seen), TARGET.numpy(), written.z(seen)[view], 0.8)
    found = single_view_loss(view, 2, options())(net, ((X, Y)[view], TARGET)).mean()
    assert float(found.detach()) == pytest.approx(expected, rel=1e-10)


# The weights and the target, as sites make them


class Watched:
    """A study before one of its exchanges; notes what every site's training began and ended with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        # Steps that take every h far enough from where it started to tell formulas apart.
        steps = {"learning_rate": 5e-3, "pretrain_epochs": 3, "local_epochs": 3, "distillation_epochs": 4}
        changes = {f"algorithm__{name}": value for name, value in steps.items()}
        self.number, self.rounds = number, until(number, **changes)
        self.calls: list[tuple[Written, Written, Views]] = []
        real = fmcsc_site.fit

        def noted(net, optimiser, loss, batches, **more):
            before = of(net)
            value = real(net, optimiser, loss, batches, **more)
            data = [torch.cat(parts) for parts in zip(*batches(), strict=True)]
            self.calls.append((before, of(net), [part.double().numpy() for part in data]))
            return value

        monkeypatch.setattr(fmcsc_site, "fit", noted)

    def exchange(self, index: int) -> tuple[dict[str, dict], dict[str, tuple[Written, Written, Views]]]:
        """What the sites add to it, and their training."""
        self.calls.clear()
        got = self.rounds.take(self.number, index)
        return got, dict(zip(got, self.calls, strict=True))

    def group(self, name: str) -> Written:
        return Written(self.rounds.group(name))

    def views(self, site: str) -> Views:
        """The site's records; zeros for a view that it does not hold."""
        held = self.rounds.algorithm.site_data(site).views
        count = max(len(x) for x in held if x is not None)
        sizes = self.rounds.algorithm.data.view_sizes
        return [
            np.zeros((count, size)) if x is None else x.double().numpy()
            for x, size in zip(held, sizes, strict=True)
        ]


def bits(weight: float, most: float) -> float:
    """The information that a weight stands for: a = clip(I, 0, most) + 1e-3, scaled so that most gives 1."""
    return weight * (most + 1e-3) - 1e-3


def test_the_weight_of_a_model_of_all_views_is_what_h_shares_with_every_r(monkeypatch):
    watched = Watched(monkeypatch, 3)
    got, training = watched.exchange(0)
    assert tuple(got) == MULTI
    for site, one in got.items():
        _, trained, views = training[site]
        h, each = trained.h(views), [information(trained.h(views), r) for r in trained.r(views)]
        assert bits(one["weight"], 2 * math.log2(10)) == pytest.approx(sum(each), abs=1e-6)
        # With z for r, or one view only, it would be another number.
        for wrong in (sum(information(h, z) for z in trained.z(views)), each[0], each[1]):
            assert abs(wrong - sum(each)) > 0.02


def check_gain(
    added: dict, seen: Views, view: int, reference: np.ndarray, trained: Written, **others: np.ndarray
) -> dict[str, float]:
    """One site's weight is I(h, reference) - I(h, z); and how far from it other formulas are, in bits."""
    h, z, r = trained.h(seen), trained.z(seen)[view], trained.r(seen)[view]
    expected = information(h, reference) - information(h, z)
    assert expected > 0.1  # a negative one would be clipped, and hide the formula
    assert bits(added["weight"], math.log2(10)) == pytest.approx(expected, abs=1e-6)
    wrong = {"r for z": information(h, reference) - information(h, r)}
    wrong |= {name: information(h, other) - information(h, z) for name, other in others.items()}
    return {name: abs(value - expected) for name, value in wrong.items()}


@pytest.mark.parametrize("view", [0, 1])
def test_the_weight_of_a_taught_model_is_what_h_shares_with_the_received_h_beyond_z(monkeypatch, view):
    watched = Watched(monkeypatch, 3)
    watched.exchange(0)
    received = watched.group(f"view-{view + 1}")
    got, training = watched.exchange(1 + view)
    found = []
    for site in MULTI:
        seen = only(watched.views(site), view)
        _, trained, (*_, target) = training[site]
        others = {"itself": trained.h(seen), "target": target}
        found.append(check_gain(got[site], seen, view, received.h(seen), trained, **others))
    assert all(max(far[name] for far in found) > 0.05 for name in found[0])


def test_the_weight_of_a_single_view_site_is_what_h_shares_with_the_group_s_h_beyond_z(monkeypatch):
    watched = Watched(monkeypatch, 4)
    watched.exchange(0)
    received = watched.group("view-1")
    got, training = watched.exchange(1)
    found = []
    for site in ("hospital-4", "hospital-5", "hospital-6"):
        seen = watched.views(site)
        own, trained, (_, reference) = training[site]
        assert np.allclose(reference, received.h(seen), atol=1e-5)
        others = {"itself": trained.h(seen), "own": own.h(seen)}
        found.append(check_gain(got[site], seen, 0, received.h(seen), trained, **others))
    assert all(max(far[name] for far in found) > 0.05 for name in found[0])


def test_what_a_site_teaches_is_h_of_the_model_of_all_views_that_it_just_trained(monkeypatch):
    watched = Watched(monkeypatch, 3)
    received = watched.group("full")
    sent, _ = watched.exchange(0)
    _, training = watched.exchange(1)
    for site in MULTI:
        *views, target = training[site][2]
        trained = {
            name: torch.from_numpy(value) + sent[site][f"update/{name}"].double() / sent[site]["weight"]
            for name, value in received.values.items()
        }
        assert np.allclose(target, Written(trained).h(views), atol=1e-4)
        assert not np.allclose(target, received.h(views), atol=1e-2)  # before its training
        assert not np.allclose(target, watched.group("full").h(views), atol=1e-3)  # of the average
