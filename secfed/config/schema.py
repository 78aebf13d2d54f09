"""Options of algorithms, models and data sets: strict tables whose errors name the key and the remedy.

A table of the study file is checked against a frozen pydantic model. Whatever is wrong becomes one
:class:`~secfed.errors.ConfigError` with the dotted key (``data.alpha``). The description of a field is
what the error offers as the remedy, so every field has one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from secfed.errors import ConfigError

# json_schema_extra of a key that says how the work is carried out (waiting time, processes, device, memory),
# and neither what is computed nor who takes part. It is not part of a study's identity; see docs/adr/017.
OPERATIONAL: Final[dict[str, JsonValue]] = {"operational": True}
# json_schema_extra of a key that is younger than studies without it: at its default it is as if it were not
# there, so that those keep the digest that they had.
LATER: Final[dict[str, JsonValue]] = {"later": True}


class Strict(BaseModel):
    """Base of every table: no coercion, no unknown keys, no NaN, no change after validation."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def operational_defaults(cls) -> dict[str, Any]:
        """The operational keys of this table, with their defaults."""
        return cls._defaults("operational")

    @classmethod
    def later_defaults(cls) -> dict[str, Any]:
        """The later keys of this table, with their defaults."""
        return cls._defaults("later")

    @classmethod
    def _defaults(cls, mark: str) -> dict[str, Any]:
        return {
            # As a dump has it: a frozen table holds tuples, JSON has arrays.
            key: list(found.default) if isinstance(found.default, tuple) else found.default
            for key, found in cls.model_fields.items()
            if isinstance(found.json_schema_extra, dict) and mark in found.json_schema_extra
        }


class Options(Strict):
    """A table that starts with the name of what it configures."""

    code_keys: ClassVar[tuple[str, ...]] = ()  # what may name a user's own factory, beside ``name``

    name: str = Field(description="the name of a built-in, or package.module:factory")

    @property
    def keeps_state(self) -> bool:
        """Whether a site of this algorithm keeps something of its own from round to round.

        Security: an aggregator that reads sums can single it out (SECURITY.md, "State that hospitals keep
        between rounds"). For code of your own it is False, whatever that code keeps.
        """
        return False

    def for_policy(self, mode: Literal["python", "json"] = "python") -> dict[str, Any]:
        """Every setting, with the value that a site's rules are compared with."""
        return self.model_dump(mode=mode)

    @property
    def own_factories(self) -> dict[str, str]:
        """Keys that name a user's own factory, and that factory, for a machine to permit."""
        named = {key: getattr(self, key) for key in ("name", *self.code_keys)}
        return {key: value for key, value in named.items() if value is not None and ":" in value}


class OwnOptions(Options):
    """A table for ``name = "package.module:factory"``: every other key is an argument of the factory."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", allow_inf_nan=False)

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the factory; arrays of the TOML arrive as tuples."""
        return dict(self.model_extra or {})


class ModelOptions(Options):
    """What every ``[model]`` has: its name, and the model that training begins with if not the seed's."""

    start: str | None = Field(
        default=None,
        min_length=1,
        description="a safetensors file with the parameters that training begins with, relative to the "
        "study file; without it the seed decides",
    )
    start_sha256: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{64}$",
        description="the digest of these parameters, 64 hexadecimal digits in lower case: the SHA-256 of a "
        "finished study's model.safetensors; simulate and aggregate say it where it is missing",
    )

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        if self.start_sha256 is not None and self.start is None:
            raise ConfigError(
                "model.start_sha256: has no effect without model.start",
                remedy="set model.start, or remove it",
            )
        return self


class OwnModelOptions(OwnOptions, ModelOptions):
    """``[model]`` with a factory of one's own; ``start`` and ``start_sha256`` are not arguments of it."""

    model_config = OwnOptions.model_config


M = TypeVar("M", bound=Strict)


def checked(model: type[M], table: Mapping[str, Any], where: str) -> M:
    """Validate one table, as the TOML parser gives it; errors call it ``where``, empty outside tables.

    ConfigError: names the first offending key, what is wrong with it and the remedy.
    """
    try:
        return model.model_validate(freeze(dict(table)))
    except ValidationError as error:
        # An unknown key comes first: a misspelt key is the cause, the missing one only its effect.
        found = error.errors(include_url=False, include_context=False)
        first = min(found, key=lambda item: item["type"] != "extra_forbidden")
        raise _explained(model, table, where, first) from None


def freeze(value: Any) -> Any:
    """Arrays become tuples, throughout, because a frozen table must not hold a list."""
    if isinstance(value, dict):
        return {name: freeze(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value


def suggestion(wrong: str, known: Iterable[str], otherwise: str = "known: ") -> str:
    """Did you mean ...? Or, when nothing is close, the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(wrong, names, n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise + ", ".join(names)


def column_remedy(wrong: str, header: Iterable[str]) -> str:
    """Did you mean ...? Or where to look: without a line of names a table's "header" is a record."""
    close = difflib.get_close_matches(wrong, sorted(header), n=1)
    return f"did you mean {close[0]!r}?" if close else "the table must begin with the names of its columns"


def _explained(model: type[Strict], table: Mapping[str, Any], where: str, item: Any) -> ConfigError:
    """One pydantic finding in the words of this project."""
    path = _path(table, item["loc"])
    key = ".".join([where, *path] if where else path)
    top = str(item["loc"][0]) if item["loc"] else ""
    if item["type"] == "extra_forbidden":
        known = set(model.model_fields)
        return ConfigError(f"{key}: unknown key", remedy=suggestion(path[-1], known, "known keys: "))
    field = model.model_fields.get(top)
    about = field.description if field is not None and field.description else "see the README"
    if item["type"] == "missing":
        place = f"to [{where}]" if where else "above all tables"
        return ConfigError(f"{key}: is missing", remedy=f"add it {place}: {about}")
    what = item["msg"].removeprefix("Input ").removeprefix("Value error, ")
    if item["type"] == "string_pattern_mismatch":  # the remedy says it in words
        what = "should have another form"
    given = item["input"]
    shown = f", not {_shown(given)}" if isinstance(given, str | int | float | bool) else ""
    return ConfigError(f"{key}: {what}{shown}", remedy=f"set {key} to {about}")


def _shown(given: str | int | float) -> str:
    try:
        return repr(given)
    except ValueError:  # Python writes no integer of more than 4300 digits; TOML can hold one in hexadecimal
        return "a number of thousands of digits"


def _path(table: Any, loc: tuple[int | str, ...]) -> list[str]:
    """The part of a pydantic location that exists in the table, plus the key that is missing there."""
    path: list[str] = []
    node = table
    for part in loc:
        if isinstance(node, dict):
            path.append(str(part))
            node = node.get(part)
        elif isinstance(node, list | tuple) and isinstance(part, int):
            if part >= len(node):  # an element that is missing: the array itself is too short
                break
            path[-1] += f"[{part}]"
            node = node[part]
        else:  # the rest names alternatives of a union type, which mean nothing to the reader
            break
    return path
