"""secfed: federated learning between hospitals in which only sums leave a hospital.

    from pathlib import Path
    from secfed import LiveTable, Study, simulate

    report = simulate(Study.load(Path("examples/breast-cancer.toml")), observer=LiveTable())
    report.frame()  # a row per round, with pandas
    print(report.final, report.saw)

An algorithm of one's own extends :class:`WeightedMean`, or :class:`Algorithm` with a :class:`SiteProgram` and
a :class:`ServerProgram`; what it sums is an :class:`Exchange` of :class:`Field` blocks.
:func:`secfed.testing.check_algorithm` checks it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from secfed.algorithms.federated_averaging.flower_clients import FlowerClients
    from secfed.algorithms.federated_averaging.weighted_mean import WeightedMean
    from secfed.algorithms.framework.base import Algorithm, ServerProgram, SiteProgram
    from secfed.runs.notebook import LiveTable
    from secfed.runs.run_report import Observer
    from secfed.simulation.simulate import simulate
    from secfed.study.study import Study
    from secfed.wire.layout import Exchange, Field

__all__ = [
    "Algorithm",
    "Exchange",
    "Field",
    "FlowerClients",
    "LiveTable",
    "Observer",
    "ServerProgram",
    "SiteProgram",
    "Study",
    "WeightedMean",
    "simulate",
]
__version__ = "0.1.0"

_HOMES: Final = {
    "Algorithm": "secfed.algorithms.framework.base",
    "Exchange": "secfed.wire.layout",
    "Field": "secfed.wire.layout",
    "FlowerClients": "secfed.algorithms.federated_averaging.flower_clients",
    "LiveTable": "secfed.runs.notebook",
    "Observer": "secfed.runs.run_report",
    "ServerProgram": "secfed.algorithms.framework.base",
    "SiteProgram": "secfed.algorithms.framework.base",
    "Study": "secfed.study.study",
    "WeightedMean": "secfed.algorithms.federated_averaging.weighted_mean",
    "simulate": "secfed.simulation.simulate",
}


def __getattr__(name: str) -> Any:
    """The public names, imported at first use: ``secfed --help`` must not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
