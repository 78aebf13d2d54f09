"""What one study may not ask for together; refused by its configuration, before anything is sent or read.

Each of two results is harmless, and their difference is of the records between two edges, or weighted ever
otherwise. Noise in the sum hides a record in any difference, so only cells are compared with [privacy].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from secfed.algorithms.statistics.analysis import Analysis
from secfed.algorithms.statistics.cox import Cox
from secfed.algorithms.statistics.differences import divided_twice, penalised_twice
from secfed.algorithms.statistics.formula import Design, DesignColumn
from secfed.algorithms.statistics.glm import Glm
from secfed.algorithms.statistics.histogram import Histogram
from secfed.algorithms.statistics.kaplan_meier import KaplanMeier
from secfed.algorithms.statistics.options import AnalysisOptions
from secfed.errors import ConfigError

_MOST_POWERS: Final = 4  # a polynomial of a column that is no higher is no step


def check_cells(analyses: Mapping[str, AnalysisOptions]) -> None:
    """Refuse two divisions of one column: the differences of their cells could be those of a few records."""
    for name, column in divided_twice({name: one.model_dump() for name, one in analyses.items()}):
        raise ConfigError(
            f"algorithm.analyses.{name}: another analysis divides {column!r} into other cells",
            remedy="use the same bins, or of times the same interval; the difference of two divisions could "
            "tell a few records",
        )


def check_ridges(analyses: Mapping[str, AnalysisOptions]) -> None:
    """Refuse a ridge beside another model of the same: each is the same sums with other weights."""
    for name, first in penalised_twice({name: one.model_dump() for name, one in analyses.items()}):
        raise ConfigError(
            f"algorithm.analyses.{name}: explains the same outcome by the same columns as {first!r}, and one "
            "of them has a ridge",
            remedy="ask for one of them; models that differ in a ridge alone could tell a few records",
        )


def check_steps(analyses: Iterable[Analysis]) -> None:
    """Refuse a formula that may be a step of a column which another analysis tells in cells."""
    told, found = dict[str, str](), list[tuple[str, Design]]()
    for one in analyses:
        if isinstance(one, Histogram):
            told[one.number.name] = one.name
        if isinstance(one, KaplanMeier | Cox):
            told[one.times.time.name] = one.name
        if isinstance(one, Glm | Cox):
            found.append((one.name, one.design))
    for name, design in found:
        left = () if design.left is None else (DesignColumn(design.left.text, 0, ((design.left, None),)),)
        for column in (*design.columns, *left):
            steep = column.degree > _MOST_POWERS
            read = [part.name for factor, level in column.parts if level is None for part in factor.columns]
            for cut in (name for name in read if steep and name in told):
                raise ConfigError(
                    f"algorithm.analyses.{name}.formula: {column.name[:80]!r} may be a step of {cut!r}, and "
                    f"{told[cut]!r} tells cells of it",
                    remedy="leave out exp, sums in a divisor, roots of powers and powers above 4; or ask for "
                    "one of them only",
                )
