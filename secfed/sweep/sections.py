"""The tables of ``[sweep]``, each checked by itself; the format is described in :mod:`secfed.sweep.file`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from secfed.config.schema import Strict
from secfed.errors import ConfigError

Keys: TypeAlias = tuple[str, ...]

_SLUG: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"


def flat(table: Any) -> Any:
    """Tables within a table as dotted keys: TOML reads ``privacy.unit = 1`` as two tables."""
    if not isinstance(table, dict):
        return table
    dotted: dict[str, Any] = {}
    for name, value in table.items():
        inner = flat(value)
        items = {name: inner}
        if isinstance(inner, dict):
            items = {f"{name}.{key}": item for key, item in inner.items()}
        for key, item in items.items():
            if key in dotted:  # "a.b" in quotes and b in a table [a]: to TOML these are two keys
                message = f"sweep: {key} is there twice, quoted and as a table"
                raise ConfigError(message, remedy="leave out one of them")
            dotted[key] = item
    return dotted


_KeysByAxis: TypeAlias = Annotated[dict[str, Keys], BeforeValidator(flat)]
_Settings: TypeAlias = Annotated[dict[str, Any], BeforeValidator(flat)]


class Change(Strict):
    """``[[sweep.panel]]``: a named change to the study."""

    name: str = Field(
        pattern=_SLUG, description="a name for files: lower-case letters, digits and hyphens, at most 63"
    )
    label: str = Field(default="", max_length=80, description="what figures and tables call it")
    note: str = Field(default="", max_length=600, description="a remark for figures and tables")
    set: _Settings = Field(default={}, description='study keys and values, {"model.name" = "mlp"}')
    remove: Keys = Field(default=(), description="a list of study keys to leave out")

    @property
    def title(self) -> str:
        """The label, or the name."""
        return self.label or self.name


class Variant(Change):
    """``[[sweep.variant]]``: a curve."""

    axis: dict[str, str] = Field(default={}, description="for every axis of [sweep.axes], a study key")
    remove_at_inf: _KeysByAxis = Field(
        default={}, description="for an axis, the list of study keys to leave out where its value is inf"
    )
    plain_at_inf: bool = Field(
        default=False, description="true: where an axis is inf, set and remove of the variant do not apply"
    )
    in_panel: dict[str, _Settings] = Field(
        default={}, description="for the name of a panel, study keys and values that join set there"
    )
    optional: bool = Field(
        default=False, description="true: a study that is refused is reported as missing, not as an error"
    )


class FigureSection(Strict):
    """``[sweep.figure]``."""

    x: str | None = Field(default=None, description='an axis, "variant" or "panel"')
    y: str | tuple[str, ...] = Field(default=(), description="a metric of run.json, or a list of metrics")
    percent: bool = Field(
        default=False, description="true: the metrics of y are shares of 1; show them in percent"
    )
    x_scale: Literal["log", "linear", "categorical"] | None = Field(
        default=None, description='"log", "linear" or "categorical"'
    )
    x_label: str = Field(default="", max_length=80, description="what to write at the horizontal axis")
    title: str = Field(default="", max_length=200, description="what to write above the figure")

    @property
    def metrics(self) -> tuple[str, ...]:
        """``y`` as a tuple; empty for the default."""
        return (self.y,) if isinstance(self.y, str) else self.y


class SweepSection(Strict):
    """``[sweep]`` without the study keys in it."""

    seeds: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] | None = Field(
        default=None, description="a list of seeds, 0 or more"
    )
    jobs: int = Field(default=1, ge=1, le=1024, description="the most runs at the same time, 1 or more")
    axes: dict[str, tuple[Any, ...]] = Field(
        default={}, description="a table of names and lists of values, set by each variant's axis"
    )
    remove_at_inf: _KeysByAxis = Field(
        default={}, description="for a study key of [sweep], the list of keys to leave out where it is inf"
    )
    variant: tuple[dict[str, Any], ...] = Field(default=(), description="tables: write [[sweep.variant]]")
    panel: tuple[dict[str, Any], ...] = Field(default=(), description="tables: write [[sweep.panel]]")
    figure: dict[str, Any] = Field(default={}, description="a table: write [sweep.figure]")
