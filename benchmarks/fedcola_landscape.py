"""Draws the loss around FedAvg's and FedCola's models along the Hessian's largest eigenvectors: Figure 6.

    python benchmarks/fedcola_landscape.py [--study examples/fedcola-scenes.toml] [--reach 1.0] [--toy]

Trains the encoder of pairs with FedAvg and with FedCola, in the clear (protections change no number). Around
each model the loss of 256 training pairs of all sites, one batch, is drawn where it is moved along the two
eigenvectors of the largest eigenvalues of that loss's Hessian, of length 1 each. Prints the eigenvalues and
the mean rise up to that reach. ORACLE: it reads the pairs of several sites, as only a simulation can.

Source: Sun et al., ECCV 2024, arXiv 2404.12467, section 6.4; Yao et al., "PyHessian", IEEE Big Data 2020.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import sections
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy.sparse.linalg import LinearOperator, eigsh
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from secfed.algorithms.fedcola.algorithm import FedCola
from secfed.algorithms.framework.server_state import part_of
from secfed.algorithms.losses.objective import infonce
from secfed.algorithms.metrics.transfer_scores import required
from secfed.algorithms.models.transfer_transformer import PairEncoder
from secfed.runs import figure_style as style
from secfed.runs.run_folder import MODEL_FILE
from secfed.runs.run_report import SilentObserver
from secfed.simulation.simulate import simulate
from secfed.study.build import build
from secfed.study.study import Study

Floats = NDArray[np.float64]

VARIANTS: Final[Mapping[str, Mapping[str, str]]] = {
    "FedAvg": {"aggregation": "fedavg", "co_layers": "none"},
    "FedCola": {"aggregation": "compensated", "co_layers": "all"},
}
_PAIRS: Final = 256
_STEPS: Final = 15  # of the grid's side


@dataclass(frozen=True)
class Landscape:
    """The loss around one model."""

    title: str
    eigenvalues: tuple[float, float]  # the two largest, of the Hessian at the model
    losses: Floats  # [steps, steps], where the model is moved along both eigenvectors

    @property
    def loss(self) -> float:
        """At the model itself."""
        return float(self.losses[len(self.losses) // 2, len(self.losses) // 2])

    @property
    def rise(self) -> float:
        """The mean over the grid of what the loss rises."""
        return float(self.losses.mean()) - self.loss


class Loss:
    """The contrast of one batch of pairs as a function of the encoder's parameters, in double precision."""

    def __init__(
        self, model: PairEncoder, images: torch.Tensor, tokens: torch.Tensor, temperature: float
    ) -> None:
        self._model, self._batch = model.double().eval(), (images.double(), tokens)
        self._temperature = temperature
        self.centre = parameters_to_vector(self._model.parameters()).detach().clone()

    def __call__(self, moved: torch.Tensor) -> float:
        """The loss at the model moved by this vector, [d]."""
        with torch.no_grad():
            vector_to_parameters(self.centre + moved, self._model.parameters())
            return float(self._value())

    def largest(self, seed: int = 0) -> tuple[Floats, torch.Tensor]:
        """The two largest eigenvalues of the Hessian at the model, and their vectors [d, 2] of length 1."""
        vector_to_parameters(self.centre, self._model.parameters())
        parameters = tuple(self._model.parameters())
        # Only this kernel of attention has second derivatives.
        with sdpa_kernel(SDPBackend.MATH):
            first = torch.autograd.grad(self._value(), parameters, create_graph=True)
            flat = torch.cat([one.reshape(-1) for one in first])

            def product(vector: Floats) -> Floats:
                along = torch.from_numpy(np.ascontiguousarray(vector).reshape(-1))
                second = torch.autograd.grad(flat, parameters, along, retain_graph=True)
                return np.asarray(torch.cat([one.reshape(-1) for one in second]).numpy(), dtype=np.float64)

            size = len(self.centre)
            start = np.random.default_rng(seed).standard_normal(size)
            operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
            values, vectors = eigsh(operator, k=2, which="LA", v0=start, tol=1e-3)
        order = np.argsort(values)[::-1]
        return values[order], torch.from_numpy(np.ascontiguousarray(vectors[:, order]))

    def _value(self) -> torch.Tensor:
        return infonce(*self._model(*self._batch), self._temperature)


def landscape(title: str, loss: Loss, reach: float, steps: int = _STEPS) -> Landscape:
    """The loss on a square grid around the model, from ``-reach`` to ``reach`` along both eigenvectors."""
    values, vectors = loss.largest()
    along = np.linspace(-reach, reach, steps)
    losses = np.array([[loss(a * vectors[:, 0] + b * vectors[:, 1]) for a in along] for b in along])
    return Landscape(title, (float(values[0]), float(values[1])), losses)


def trained(study: Study) -> Loss:
    """The loss around the encoder of pairs that a study trains."""
    algorithm = build(study)
    if not isinstance(algorithm, FedCola):
        raise TypeError(f"{study.algorithm.name} is not fedcola")
    with tempfile.TemporaryDirectory() as folder:
        simulate(study, out=Path(folder), drops=(), observer=SilentObserver())
        model = load_file(Path(folder) / MODEL_FILE)
    plan = algorithm.plan
    network = plan.network("pairs", part_of(model, "pairs/"), torch.device("cpu"))
    if not isinstance(network, PairEncoder):
        raise TypeError("the model of pairs is no encoder of pairs")
    pairs = [algorithm.site_data(site).train for site in plan.group("pairs")]
    images = torch.cat([required(one.images)[required(one.sources)] for one in pairs])
    tokens = torch.cat([required(one.tokens) for one in pairs])
    rows = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(study.seed))[:_PAIRS]
    return Loss(network, images[rows], tokens[rows], algorithm.options.temperature)


def draw(found: list[Landscape], reach: float, path: Path) -> None:
    """A panel per model, of one scale of colours and of contours."""
    low, high = min(float(one.losses.min()) for one in found), max(float(one.losses.max()) for one in found)
    levels = np.linspace(low, high, 15)
    with style.styled():
        figure, axes = style.new_figure(len(found), across=len(found), height_in=2.8)
        for at, one in zip(axes, found, strict=True):
            along = np.linspace(-reach, reach, len(one.losses))
            shown = at.contourf(along, along, one.losses, levels=levels, cmap="viridis")
            at.set_title(f"{one.title}: {one.eigenvalues[0]:.0f}, {one.eigenvalues[1]:.0f}")
            at.set_aspect("equal")
            at.set_xlabel("along the first")
        axes[0].set_ylabel("along the second")
        figure.colorbar(shown, ax=axes, label="loss")
        style.save_svg(figure, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--study", type=Path, default=sections.ROOT / "examples" / "fedcola-scenes.toml")
    parser.add_argument("--reach", type=float, default=1.0, help="how far the model is moved each way")
    parser.add_argument("--out", type=Path, default=sections.FIGURES / "fedcola-landscape.svg")
    parser.add_argument("--toy", action="store_true", help="one round, which only tries the code")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    study = Study.load(asked.study).replace("protection.name", "plain")
    if asked.toy:
        study = study.replace("study.rounds", 1)
    found = []
    for title, keys in VARIANTS.items():
        one = study
        for key, value in keys.items():
            one = one.replace(f"algorithm.{key}", value)
        made = landscape(title, trained(one), asked.reach, 5 if asked.toy else _STEPS)
        first, second = made.eigenvalues
        print(f"{title}: loss {made.loss:.2f}, eigenvalues {first:.1f} and {second:.1f}, ", end="")
        print(f"mean rise {made.rise:.2f}", flush=True)
        found.append(made)
    draw(found, asked.reach, asked.out)
    print(f"wrote {asked.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
