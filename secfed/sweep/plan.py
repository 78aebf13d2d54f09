"""From a sweep file to runs: one validated study each, before anything starts."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomli_w

from secfed.errors import ConfigError, SecfedError
from secfed.study import build
from secfed.study.study import Study
from secfed.study.warm_start import load_initial_model
from secfed.sweep.file import Axis, SweepFile, Value
from secfed.sweep.sections import Change, Variant

SEED_KEY: Final = "study.seed"
_MOST_REFUSALS = 12  # shown at once; the rest are counted
_LONGEST_NAME = 96


@dataclass(frozen=True)
class SweepRun:
    """One study of the sweep."""

    # where it stands: dimension to value, in the order of :attr:`SweepFile.dimensions`
    at: Mapping[str, Value]
    seed: int
    text: str = ""  # its study file
    digest: str = ""  # hex of the study's digest; two runs with one digest are the same run
    unavailable: str = ""  # why an optional variant cannot be run; empty if it can
    optional: bool = False

    @property
    def title(self) -> str:
        """For people: ``record-dp, epsilon=10, seed=1``."""
        return ", ".join([*_parts(self.at), f"seed={self.seed}"])

    @property
    def folder(self) -> str:
        """Name of its folder: readable, then the beginning of the digest."""
        readable = "_".join([*_parts(self.at), f"seed={self.seed}"])
        plain = re.sub(r"[^A-Za-z0-9._=+-]+", "-", readable)[:_LONGEST_NAME]
        return f"{plain.lstrip('.')}-{self.digest[:8]}"


@dataclass(frozen=True)
class SweepPlan:
    """Every run of a sweep."""

    sweep: SweepFile
    runs: tuple[SweepRun, ...]  # seed by seed, so that a sweep cut short has whole curves
    missing: Mapping[str, str]  # name of an optional variant to why it is left out


def show_value(value: Value) -> str:
    """A value as files and folder names show it: ``0.1``, ``10`` for 10.0, ``inf``, ``true``, ``16+8``."""
    if isinstance(value, tuple):
        return "+".join(map(show_value, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def is_inf(value: Value) -> bool:
    """Whether it is the infinite value that no study can hold."""
    return isinstance(value, float) and math.isinf(value)


def read_study(text: str, folder: Path) -> Study:
    """The study of a run, from one's own TOML; ``folder`` is where its relative paths start."""
    return Study.parse(text, source="the study").model_copy(update={"folder": folder})


def check(study: Study) -> None:
    """Find what does not fit together in a study that is valid key by key. Reads no record."""
    algorithm = build.build(study)
    if study.privacy is not None:
        from secfed.pipeline.noised_algorithm import with_privacy  # needs an extra

        with_privacy(study, algorithm, build.build_data(study).sites)
    load_initial_model(study, algorithm)


def make_plan(sweep: SweepFile) -> SweepPlan:
    """Every run, each with its study checked; nothing is trained and no record is read.

    ``ConfigError``: lists all combinations that are impossible.
    """
    runs: list[SweepRun] = []
    refused: dict[tuple[tuple[str, Value], ...], SecfedError] = {}  # a point, whatever the seed
    missing: dict[str, str] = {}
    for number, seed in enumerate(sweep.seeds):
        for panel, variant, values in _points(sweep):
            at = _where(panel, variant, values)
            optional = variant is not None and variant.optional
            try:
                text = tomli_w.dumps(_study_tables(sweep, panel, variant, values, seed))
                study = read_study(text, sweep.folder)
                if number == 0:  # pieces that do not fit together; the seed changes nothing about that
                    check(study)
                runs.append(SweepRun(at, seed, text, study.digest(operational=True).hex(), optional=optional))
            except SecfedError as refusal:
                error = _with_hint(refusal, values)
                if optional and variant is not None and isinstance(error, ConfigError):
                    missing.setdefault(variant.name, error.message)
                    runs.append(SweepRun(at, seed, optional=True))
                else:
                    refused.setdefault(tuple(at.items()), error)
    if refused:
        raise _refusal(refused, sum(1 for _ in _points(sweep)))
    # A curve of the few points that happen to work (no noise at all) would mislead: all of it is missing.
    for index, run in enumerate(runs):
        if why := missing.get(run.at.get("variant", "")):
            runs[index] = SweepRun(run.at, run.seed, unavailable=why, optional=True)
    return SweepPlan(sweep, tuple(runs), missing)


def _points(sweep: SweepFile) -> Iterator[tuple[Change | None, Variant | None, dict[Axis, Value]]]:
    for panel, variant in itertools.product(sweep.panels or (None,), sweep.variants or (None,)):
        for values in itertools.product(*(axis.values for axis in sweep.axes)):
            yield panel, variant, dict(zip(sweep.axes, values, strict=True))


def _where(panel: Change | None, variant: Variant | None, values: Mapping[Axis, Value]) -> dict[str, Value]:
    named = {"panel": panel, "variant": variant}
    at = {dimension: change.name for dimension, change in named.items() if change is not None}
    return at | {axis.name: value for axis, value in values.items()}


def _study_tables(
    sweep: SweepFile, panel: Change | None, variant: Variant | None, values: Mapping[Axis, Value], seed: int
) -> dict[str, Any]:
    """The study's tables at one point: panel, then variant, then axes, then seed."""
    tables = copy.deepcopy(dict(sweep.tables))
    owner: dict[str, str] = {SEED_KEY: "sweep.seeds"}

    def put(key: str, value: Value, who: str) -> None:
        clash = next(
            (k for k in owner if k == key or k.startswith(f"{key}.") or key.startswith(f"{k}.")), None
        )
        if clash is not None:
            raise ConfigError(f"{who}: {key}: is set by {owner[clash]} too", remedy="set it in one place")
        owner[key] = who
        _put(tables, key, value, who)

    plain = variant is not None and variant.plain_at_inf and any(map(is_inf, values.values()))
    for kind, change in (("panel", panel), ("variant", None if plain else variant)):
        if change is not None:
            who = f"sweep.{kind} {change.name!r}"
            for key in change.remove:
                if not _remove(tables, key):
                    hint = "check the key, or leave it out of remove"
                    raise ConfigError(f"{who}: remove: the study has no {key!r}", remedy=hint)
                # What is gone can be set anew: a variant may leave out what its panel set.
                gone = [k for k in owner if k != SEED_KEY and (k == key or k.startswith(f"{key}."))]
                for each in gone:
                    del owner[each]
            for key, value in change.set.items():
                put(key, value, who)
            if isinstance(change, Variant) and panel is not None:
                for key, value in change.in_panel.get(panel.name, {}).items():
                    put(key, value, f"{who}: in_panel")
    leave_out: list[tuple[str, str]] = []
    for axis, value in values.items():
        key = axis.name if axis.is_key or variant is None else variant.axis[axis.name]
        removed = None  # keys to leave out where the axis is inf; None if the study is to hold the value
        if is_inf(value):
            own_keys = None if variant is None else variant.remove_at_inf.get(axis.name)
            removed = sweep.remove_at_inf.get(axis.name) if own_keys is None else own_keys
        if removed is not None:
            leave_out += [(key, key), *((other, key) for other in removed)]
        else:
            put(key, value, f"the axis {axis.name!r}")
    for key, own in dict(leave_out).items():
        if not _remove(tables, key) and key != own:
            hint = "check the key, or leave it out of remove_at_inf"
            raise ConfigError(f"remove_at_inf: the study has no {key!r}", remedy=hint)
    _put(tables, SEED_KEY, seed, "sweep.seeds")
    return tables


def _with_hint(error: SecfedError, values: Mapping[Axis, Value]) -> SecfedError:
    """Most keys refuse inf: say how to sweep over it all the same."""
    of_inf = "inf" in error.message and any(map(is_inf, values.values()))
    if not isinstance(error, ConfigError) or not of_inf:
        return error
    return ConfigError(error.message, remedy=f"{error.remedy}; or name it in remove_at_inf")


def _put(tables: dict[str, Any], key: str, value: Value, who: str) -> None:
    *parents, last = key.split(".")
    if not parents or not all((*parents, last)):
        raise ConfigError(f"{who}: {key!r} is not a study key", remedy='write "section.key"')
    node: Any = tables
    for parent in parents:
        node = node.setdefault(parent, {})
        if not isinstance(node, dict):
            raise ConfigError(f"{who}: {key}: {parent!r} is a value, not a table", remedy="check the key")
    node[last] = copy.deepcopy(value)


def _remove(tables: dict[str, Any], key: str) -> bool:
    """Leave out a key or a whole table; False if there was none."""
    *parents, last = key.split(".")
    node: Any = tables
    for parent in parents:
        node = node.get(parent) if isinstance(node, dict) else None
    if not isinstance(node, dict) or last not in node:
        return False
    del node[last]
    return True


def _parts(at: Mapping[str, Value]) -> list[str]:
    """``name=value`` by the last part of a key, or the whole key where two end alike."""
    ends = [name.rpartition(".")[2] for name in at]
    parts = []
    for (name, value), end in zip(at.items(), ends, strict=True):
        short = end if ends.count(end) == 1 else name
        parts.append(str(value) if name in ("panel", "variant") else f"{short}={show_value(value)}")
    return parts


def _refusal(refused: Mapping[tuple[tuple[str, Value], ...], SecfedError], points: int) -> ConfigError:
    """One error for all; the same cause at many points is told once."""
    causes: dict[tuple[str, str], list[str]] = {}
    for at, error in refused.items():
        where = ", ".join(_parts(dict(at))) or "the study"
        causes.setdefault((error.message, error.remedy), []).append(where)
    lines = []
    for (message, remedy), points_hit in list(causes.items())[:_MOST_REFUSALS]:
        others = f" and {len(points_hit) - 1} more" if len(points_hit) > 1 else ""
        lines.append(f"  {points_hit[0]}{others}: {message}" + (f" ({remedy})" if remedy else ""))
    if len(causes) > _MOST_REFUSALS:
        lines.append(f"  and {len(causes) - _MOST_REFUSALS} more causes")
    return ConfigError(
        "\n".join([f"{len(refused)} of {points} combinations cannot be run; nothing was started:", *lines]),
        remedy="correct these keys, or leave these values out of the sweep",
    )
