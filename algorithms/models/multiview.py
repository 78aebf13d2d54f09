"""The network of multi-view clustering: one autoencoder per view, one head per view, one head over all.

    x^v -> enc.v -> z^v -> dec.v -> reconstruction of x^v
                    z^v -> view_head.v -> r^v               (what the views are contrasted on)
                   [z^1 .. z^V] -> fuse_head -> h, |h| = 1  (what is clustered)

Every site has the whole network, whichever views it holds, so all parameters have the same names and shapes
everywhere. A view that a site does not hold is the zero vector; z of it is then one constant row, which
is computed once and repeated: the same values and gradients as for n zero rows, for a fraction of the work.

Source: Chen et al., "Bridging Gaps: Federated Multi-View Clustering in Heterogeneous Hybrid Views",
NeurIPS 2024, section 3.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import nn

from secfed.algorithms.framework.parameters import read_parameters, write_parameters
from secfed.algorithms.framework.randomness import seeded
from secfed.algorithms.models.networks import dense
from secfed.config.schema import ModelOptions
from secfed.errors import ConfigError
from secfed.wire.layout import State

Views = Sequence[torch.Tensor | None]


class MultiviewModelOptions(ModelOptions):
    """Options of ``multiview``."""

    hidden: tuple[int, ...] = Field(
        default=(500, 500, 2000),
        description="an array of the encoder's hidden widths; the decoder mirrors it",
    )
    features: int = Field(default=20, ge=1, description="the size of z, r and h, at least 1")
    head_hidden: int = Field(default=256, ge=1, description="the hidden width of every head, at least 1")


class MultiviewNetwork(nn.Module):
    """Autoencoders and heads of all views; ``view_sizes`` are the features of each."""

    def __init__(self, view_sizes: Sequence[int], options: MultiviewModelOptions) -> None:
        super().__init__()
        if len(view_sizes) < 2:
            raise ConfigError("data.name: the data set has no two views", remedy="use another data set")
        if min((*options.hidden, *view_sizes)) < 1:
            raise ConfigError("model.hidden: a layer has no units", remedy="use widths of at least 1")
        size, hidden, head = options.features, options.hidden, options.head_hidden
        self.view_sizes = tuple(view_sizes)
        self.enc = nn.ModuleList(nn.Sequential(*dense(view, *hidden, size)) for view in view_sizes)
        self.dec = nn.ModuleList(nn.Sequential(*dense(size, *reversed(hidden), view)) for view in view_sizes)
        self.view_head = nn.ModuleList(nn.Sequential(*dense(size, head, size)) for _ in view_sizes)
        self.fuse_head = nn.Sequential(*dense(size * len(view_sizes), head, size))

    def encode(self, views: Views) -> list[torch.Tensor]:
        """Z of every view, [n, features] each; a missing view's rows are equal.

        ``views`` are [n, D_v] each, or None for a view that the site does not hold. At least one is held.
        """
        held = next(view for view in views if view is not None)
        low = []
        for encoder, size, view in zip(self.enc, self.view_sizes, views, strict=True):
            if view is None:
                low.append(encoder(held.new_zeros(1, size)).expand(len(held), -1))
            else:
                low.append(encoder(view))
        return low

    def reconstruct(self, view: int, low: torch.Tensor) -> torch.Tensor:
        """x^v from z^v: [n, D_v]."""
        rebuilt: torch.Tensor = self.dec[view](low)
        return rebuilt

    def view_features(self, view: int, low: torch.Tensor) -> torch.Tensor:
        """r^v from z^v: [n, features], not normalised."""
        high: torch.Tensor = self.view_head[view](low)
        return high

    def common(self, low: Sequence[torch.Tensor]) -> torch.Tensor:
        """h, the common semantics: [n, features], rows of norm 1."""
        return nn.functional.normalize(self.fuse_head(torch.cat(list(low), dim=1)), dim=1)

    def forward(self, views: Views) -> torch.Tensor:
        """H of records: [n, features]."""
        return self.common(self.encode(views))


class MultiviewNetworks:
    """Networks of one study; ``shapes`` is one without storage, for names and shapes."""

    def __init__(self, view_sizes: Sequence[int], options: MultiviewModelOptions) -> None:
        self._arguments = (view_sizes, options)
        with torch.device("meta"):
            self.shapes = MultiviewNetwork(view_sizes, options)

    def start(self, seed: int, *purpose: str) -> State:
        """Random initial parameters: the study's, or for a purpose, such as a site's name, its own."""
        with seeded(seed, "initial model", *purpose):
            return read_parameters(MultiviewNetwork(*self._arguments))

    def holding(self, parameters: State, device: torch.device | str = "cpu") -> MultiviewNetwork:
        """A network with these parameters."""
        network = copy.deepcopy(self.shapes).to_empty(device=device)
        write_parameters(network, parameters)
        return network
