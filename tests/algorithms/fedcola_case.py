"""A FedCola study that takes a second or two: tiny transformers, a few scenes at each site."""

from __future__ import annotations

import torch

from secfed.algorithms.fedcola.algorithm import FedCola
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.layout import Exchange, Summands
from tests.algorithms.loop import add

torch.set_num_threads(1)

TINY = """
[study]
name = "fedcola-tiny"
rounds = 2
seed = 5
[algorithm]
name = "fedcola"
local_epochs = 1
batch_size = 6
learning_rate = 1e-3
gallery = 4
[model]
name = "transfer-transformer"
width = 8
depth = 2
heads = 2
[data]
name = "scenes"
image_sites = 4
text_sites = 3
pair_sites = 3
records = 14
pairs = 12
test_records = 5
test_pairs = 6
[protection]
name = "plain"
colluders = 1
"""


def study(text: str = TINY, **changes: object) -> Study:
    """The tiny study; keys are written ``algorithm__aggregation``."""
    made = Study.parse(text)
    for key, value in changes.items():
        made = made.replace(key.replace("__", "."), value)
    return made


def tiny(text: str = TINY, **changes: object) -> FedCola:
    """Its algorithm."""
    return build(study(text, **changes))


class Rounds:
    """A study that is taken exchange by exchange."""

    def __init__(self, algorithm: FedCola) -> None:
        self.algorithm = algorithm
        self.server = algorithm.server()
        self.programs = {site: algorithm.site(site) for site in algorithm.setting.sites}

    def exchange(self, number: int, name: str) -> Exchange:
        return next(one for one in self.algorithm.exchanges(number) if one.name == name)

    def contributions(self, number: int, name: str) -> dict[str, Summands]:
        exchange = self.exchange(number, name)
        state = self.server.broadcast(number, exchange)
        asked = self.algorithm.members(number, exchange, self.algorithm.setting.sites)
        return {site: self.programs[site].contribute(number, exchange, state) for site in asked}

    def run(self, number: int, change=lambda got: got) -> dict[str, dict[str, Summands]]:
        """All sums of a round; ``change`` may alter what the sites contribute to each."""
        found = {}
        for exchange in self.algorithm.exchanges(number):
            found[exchange.name] = change(self.contributions(number, exchange.name))
            self.server.absorb(number, exchange, add(exchange, found[exchange.name]))
        return found
