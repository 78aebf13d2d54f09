"""Which parameters of a model train and travel: by patterns of their names, or as low-rank adapters.

What neither trains nor is a part of a local layer stays at home: it is in no broadcast, in no sum and in no
model file. Every party makes it itself, from the study's seed or from what the model's factory loads, so each
broadcast carries two numbers of it, and a site whose own differ refuses.

Adapters: :mod:`secfed.algorithms.models.adapters`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

import torch
from torch import nn

from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.algorithms.framework.parameters import AT_HOME, alike, names_of
from secfed.algorithms.framework.randomness import seeded
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.models.adapters import add_adapters
from secfed.errors import ConfigError, MalformedMessage
from secfed.wire.layout import State

HOME: Final = "study/home"  # in broadcasts: two numbers of what stays at home
_TRAVELS: Final = "algorithm.travels"
_FROZEN: Final = "algorithm.frozen"
_SAME: Final = 1e-4  # how far they may be apart, relatively: seeds give nearly equal numbers everywhere


def with_selection(setting: Setting, options: object) -> Setting:
    """The setting whose models train what the study names."""
    if not isinstance(options, FedAvgOptions) or not options.selects:
        return setting
    return replace(setting, model=lambda: _selected(setting.model(), options, setting.study.seed))


def matching(names: Iterable[str], patterns: Sequence[str], key: str) -> frozenset[str]:
    """The names that match a pattern (``blocks.*``); ConfigError for a pattern that none matches."""
    known, found = list(names), set[str]()
    for pattern in patterns:
        matches = [name for name in known if fnmatchcase(name, pattern)]
        if not matches:
            near = difflib.get_close_matches(pattern.strip("*."), known, n=3, cutoff=0.3) or known[:5]
            raise ConfigError(
                f"{key}: nothing in the model is called {pattern!r}", remedy=f"near it: {', '.join(near)}"
            )
        found.update(matches)
    return frozenset(found)


def at_home(model: nn.Module) -> dict[str, torch.Tensor]:
    """What stays at home, by name."""
    stays: frozenset[str] = getattr(model, AT_HOME, frozenset())
    return {name: value for name, value in model.named_parameters() if name in stays}


def home_numbers(model: nn.Module) -> State:
    """Two numbers of what stays at home; empty where nothing does."""
    values = [value.detach().double() for value in at_home(model).values()]
    if not values:
        return {}
    sizes = [torch.stack([value.abs().sum(), value.square().sum()]) for value in values]
    return {HOME: torch.stack(sizes).sum(dim=0).to(torch.float32)}


def check_home(expected: State, broadcast: State) -> None:
    """Refuse a broadcast that belongs to another model at home; MalformedMessage."""
    for name, value in expected.items():
        if name in broadcast and not torch.allclose(value, broadcast[name], rtol=_SAME, atol=0.0):
            raise MalformedMessage(
                "what stays at home of this model is not what the aggregator has",
                remedy="let the model's factory load the same pretrained weights everywhere",
            )


def _selected(model: nn.Module, options: FedAvgOptions, seed: int) -> nn.Module:
    """In place; ``travels`` names what trains beside adapters, or alone."""
    every = names_of(model)
    names = [name for one in every for name in one]
    travels = matching(names, options.travels, _TRAVELS)
    stays = matching(names, options.frozen, _FROZEN)
    for one in every:
        alike(one, travels, _TRAVELS)
        alike(one, stays, _FROZEN)
    if options.adapters:
        with seeded(seed, "adapters"):
            adapted = add_adapters(model, options.adapters, rank=options.adapter_rank)
        inside = tuple(f"{layer}.{part}." for layer in adapted for part in ("down", "up"))
        travels |= {name for name, _ in model.named_parameters() if name.startswith(inside)}
    for name, parameter in model.named_parameters():
        chosen = name in travels or not (options.travels or options.adapters)
        # A parameter that the model's own author froze stays frozen, unless the study names it.
        own = parameter.requires_grad or name in travels
        parameter.requires_grad_(chosen and own and name not in stays)
    setattr(model, AT_HOME, frozenset(n for n, one in model.named_parameters() if not one.requires_grad))
    return model
