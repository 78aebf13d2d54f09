"""Tables at a few sites, and a study of statistics over them whose sums are added up here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.statistics.algorithm import Statistics
from secfed.algorithms.statistics.options import StatisticsOptions
from secfed.algorithms.statistics.report import report_of
from secfed.algorithms.statistics.results import Reported
from secfed.config.schema import checked
from secfed.wire.layout import Totals

Records = Mapping[str, Any]


class Tables:
    """Records in memory, divided over sites: record i is at site ``of[i]``."""

    def __init__(self, columns: Sequence[Column], records: Records, of: Sequence[int], sites: int) -> None:
        self.columns, self.sites = tuple(columns), tuple(f"s{n}" for n in range(sites))
        values = {column.name: np.asarray(records[column.name], np.float64) for column in columns}
        self._all, self._of = Table(self.columns, values, len(of)), np.asarray(of)

    def table(self, site_id: str) -> Table:
        return self._all.take(self._of == self.sites.index(site_id))


def study(
    columns: Sequence[Column],
    records: Records,
    analyses: Mapping[str, Mapping[str, Any]],
    *,
    sites: int = 4,
    of: Sequence[int] | None = None,
    **options: Any,
) -> Statistics:
    count = len(next(iter(records.values())))
    data = Tables(columns, records, of if of is not None else [i % sites for i in range(count)], sites)
    table = {"name": "statistics", "analyses": analyses, "max_records": 10_000, **options}
    section = SimpleNamespace(
        model=SimpleNamespace(name="none"), data=SimpleNamespace(name="tables"), rounds=1, privacy=None
    )
    setting = Setting(study=cast(Any, section), data=cast(Any, data), model=cast(Any, None))
    return Statistics(setting, checked(StatisticsOptions, table, "algorithm"))


def run(
    algorithm: Statistics, gone: Mapping[int, Collection[str]] | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, Reported]]:
    """The model, and what it reports; ``gone`` says who does not answer in which step, from 1."""
    server = algorithm.server()
    programs = {site: algorithm.site(site) for site in algorithm.setting.sites}
    for number, exchange in enumerate(algorithm.exchanges(1), start=1):
        broadcast = server.broadcast(1, exchange)
        algorithm.check_broadcast(1, exchange, broadcast)
        there = [site for site in programs if site not in (gone or {}).get(number, ())]
        summed: dict[str, torch.Tensor] = {}
        for site in there:
            for name, value in programs[site].contribute(1, exchange, broadcast).items():
                field = next(one for one in exchange.layout.fields if one.name == name)
                tensor = torch.as_tensor(value)
                assert bool((tensor.abs() <= field.bound).all()), name
                summed[name] = summed[name] + tensor if name in summed else tensor
        server.absorb(1, exchange, Totals(summed, tuple(there)))
    model = dict(server.model())
    reported = report_of(algorithm.analyses, model, algorithm.setting.sites)
    return model, {one.name: one for one in reported}


def of_kind(declared: Sequence[Column], records: Records, /, **analysis: Any) -> Reported:
    """One analysis with these options."""
    options = {key: analysis.pop(key) for key in ("min_cell", "sites", "of_site", "level") if key in analysis}
    if "of_site" in options:
        options["of"] = options.pop("of_site")
    return run(study(declared, records, {"one": analysis}, **options))[1]["one"]
