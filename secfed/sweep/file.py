"""The sweep file: a study file with one more table, ``[sweep]``.

Example::

    [sweep]
    seeds = [1, 2, 3]                               # study.seed; default: the study's own
    jobs = 2                                        # most runs at the same time; default 1
    "algorithm.learning_rate" = [0.03, 0.1, 0.3]    # a study key and its values
    remove_at_inf = { "privacy.epsilon" = ["privacy"] }

    [sweep.axes]                                    # a value that each variant gives to a key of its own
    epsilon = [inf, 10.0, 1.0]

    [[sweep.variant]]                               # one curve each
    name = "record-dp"
    label = "record-level DP"
    note = "printed under every table and figure"
    set = { "privacy.unit" = "record" }             # study keys that this variant adds or replaces
    remove = ["algorithm.laplace_epsilon"]          # keys or whole tables that it leaves out
    axis = { epsilon = "privacy.epsilon" }          # the key that the axis sets here
    remove_at_inf = { epsilon = ["privacy"] }       # what to leave out where the axis is inf
    plain_at_inf = true                             # or run the study as it is there, without set and remove
    in_panel = { other-data = { "data.sites" = 8 } }   # what this variant sets in one panel, beside set
    optional = true                                 # say what is missing instead of failing

    [[sweep.panel]]                                 # one panel of the figure each
    name = "other-data"                             # and label, note, set, remove, as in a variant

    [sweep.figure]
    x = "epsilon"                                   # default: the first axis, else the variants
    y = ["acc", "nmi"]                              # default: the first metric
    percent = true                                  # these metrics are shares of 1, shown in percent
    x_scale = "log"                                 # or "linear", "categorical"
    title = "Accuracy against epsilon"

Runs are the product of panels, variants, axes and seeds; points that give one and the same study are run
once. Most keys of a study refuse ``inf``: ``remove_at_inf`` says which to leave out there, beside the axis'
own key.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from secfed.config.plugins import allow_imports
from secfed.config.schema import checked, suggestion
from secfed.config.toml_file import parse_tables, read_own_text
from secfed.errors import ConfigError
from secfed.sweep.sections import Change, FigureSection, Keys, SweepSection, Variant, flat

Value: TypeAlias = Any  # str, bool, int, float, or a tuple of these: what one key of a study can hold

_STUDY_SECTIONS: Final = ("study", "algorithm", "model", "data", "protection", "privacy")
# Names of columns in results.csv and words of this format, so never the name of an axis.
_RESERVED: Final = ("panel", "variant", "seed", "seeds", "status", "seconds", "error", "message", "note")


@dataclass(frozen=True)
class Axis:
    """Values to try, without repetition, of a study key or of a name whose key each variant says."""

    name: str
    values: tuple[Value, ...]

    @property
    def is_key(self) -> bool:
        """Whether the name is the study key itself."""
        return "." in self.name


@dataclass(frozen=True)
class SweepFile:
    """A sweep file, checked as far as is possible without its studies."""

    name: str
    text: str  # the file
    tables: Mapping[str, Any]  # the study's own tables
    folder: Path  # where the study's relative paths start
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]  # values of ``study.seed``
    jobs: int
    remove_at_inf: Mapping[str, Keys]  # study key to keys that are left out where it is inf
    variants: tuple[Variant, ...]  # variants, panels: empty if the file names none
    panels: tuple[Change, ...]
    figure: FigureSection

    @property
    def dimensions(self) -> tuple[str, ...]:
        """What distinguishes runs besides their seed: panel, variant, axes."""
        named = (("panel", self.panels), ("variant", self.variants))
        return (*(name for name, changes in named if changes), *(axis.name for axis in self.axes))

    def change(self, dimension: str, name: Value) -> Change | None:
        """The variant or panel of that name; None for the value of an axis."""
        among: tuple[Change, ...] = {"variant": self.variants, "panel": self.panels}.get(dimension, ())
        return next((change for change in among if change.name == name), None)

    @classmethod
    def load(cls, path: Path) -> SweepFile:
        """Read a sweep file; like a study's, its own modules become importable."""
        text = read_own_text(path, "sweep file")
        allow_imports(Path.cwd(), path.parent)
        return cls.parse(text, source=str(path), folder=path.parent)

    @classmethod
    def parse(cls, text: str, *, source: str = "sweep file", folder: Path = Path()) -> SweepFile:
        """Read a sweep file from TOML; errors call it ``source``, and name the key and the remedy."""
        tables = parse_tables(text, source)
        sweep = tables.pop("sweep", None)
        if not isinstance(sweep, dict):
            remedy = "add [sweep], or use: secfed simulate"
            raise ConfigError(f"{source}: sweep: this section is missing", remedy=remedy)
        is_study_key = {key: "." in key or key in _STUDY_SECTIONS for key in sweep}
        keys = flat({key: values for key, values in sweep.items() if is_study_key[key]})
        rest = {key: values for key, values in sweep.items() if not is_study_key[key]}
        section = checked(SweepSection, rest, "sweep")
        own = tables.get("study", {})
        seed = own.get("seed", 0) if isinstance(own, dict) else 0
        made = cls(
            name=str(own.get("name", "sweep")) if isinstance(own, dict) else "sweep",
            text=text,
            tables=tables,
            folder=folder,
            axes=(
                *(_axis(f'sweep."{key}"', key, values) for key, values in keys.items()),
                *(_axis(f"sweep.axes.{name}", name, values) for name, values in section.axes.items()),
            ),
            seeds=_distinct("sweep.seeds", (seed,) if section.seeds is None else section.seeds),
            jobs=section.jobs,
            remove_at_inf=section.remove_at_inf,
            variants=tuple(
                checked(Variant, t, f"sweep.variant[{n}]") for n, t in enumerate(section.variant, 1)
            ),
            panels=tuple(checked(Change, t, f"sweep.panel[{n}]") for n, t in enumerate(section.panel, 1)),
            figure=checked(FigureSection, section.figure, "sweep.figure"),
        )
        made._check()
        return made

    def _check(self) -> None:
        _distinct("sweep.variant", (variant.name for variant in self.variants))
        _distinct("sweep.panel", (panel.name for panel in self.panels))
        keys = [axis for axis in self.axes if axis.is_key]
        named = [axis for axis in self.axes if not axis.is_key]
        for axis in named:
            if axis.name in _RESERVED or not axis.name.isidentifier():
                raise ConfigError(
                    f"sweep.axes: {axis.name!r} cannot be the name of an axis",
                    remedy=f"use a word of letters, digits and _ that is none of {', '.join(_RESERVED)}",
                )
        if named and not self.variants:
            raise ConfigError(
                f"sweep.axes.{named[0].name}: no variant says which study key it sets",
                remedy="add [[sweep.variant]] with axis = {...}, or write the study key itself in [sweep]",
            )
        _known("sweep.remove_at_inf", self.remove_at_inf, [axis.name for axis in keys])
        for variant in self.variants:
            where = f"sweep.variant {variant.name!r}"
            _known(f"{where}: axis", variant.axis, [axis.name for axis in named])
            _known(f"{where}: remove_at_inf", variant.remove_at_inf, [axis.name for axis in self.axes])
            panels = [panel.name for panel in self.panels]
            _known(f"{where}: in_panel", variant.in_panel, panels, "panel")
            for axis in named:
                if axis.name not in variant.axis:
                    raise ConfigError(
                        f"{where}: says no study key for the axis {axis.name!r}",
                        remedy=f'add axis = {{ {axis.name} = "section.key" }}',
                    )
        if self.figure.x is not None:
            _known("sweep.figure.x", [self.figure.x], self.dimensions)


def _axis(where: str, name: str, values: Any) -> Axis:
    if not isinstance(values, list | tuple) or not values:
        raise ConfigError(f"{where}: must be a list of at least one value", remedy="write [a, b, c]")
    frozen = tuple(tuple(value) if isinstance(value, list) else value for value in values)
    for value in frozen:
        for part in value if isinstance(value, tuple) else (value,):
            if not isinstance(part, str | bool | int | float) or (
                isinstance(part, float) and math.isnan(part)
            ):
                raise ConfigError(
                    f"{where}: {part!r} cannot be the value of an axis",
                    remedy="use texts, numbers, true, false or lists of these",
                )
    return Axis(name, _distinct(where, frozen))


def _distinct(where: str, values: Iterable[Any]) -> tuple[Any, ...]:
    distinct = tuple(values)
    for at, value in enumerate(distinct):
        if value in distinct[:at]:
            raise ConfigError(f"{where}: {value!r} is there twice", remedy="leave out one of them")
    if not distinct and where == "sweep.seeds":
        raise ConfigError(f"{where}: is empty", remedy="name at least one seed, or leave it out")
    return distinct


def _known(where: str, used: Iterable[str], known: Iterable[str], what: str = "axis") -> None:
    names = list(known)
    for name in used:
        if name not in names:
            hint = suggestion(name, names, "use one of: ") if names else f"the sweep has no {what}; remove it"
            raise ConfigError(f"{where}: there is no {what} {name!r}", remedy=hint)
