"""TOML files, read with errors that name the file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from secfed.config.schema import M, checked, suggestion
from secfed.errors import ConfigError
from secfed.storage import private_files


def read_tables(path: Path, what: str) -> dict[str, Any]:
    """The tables of a TOML file.

    ConfigError: unreadable, not TOML, nested too deeply, or with a number beyond 64 bits.
    """
    return tables_of(private_files.read(path, what), path)


def tables_of(data: bytes, path: Path) -> dict[str, Any]:
    """The tables of a TOML file that was read; ConfigError as in :func:`read_tables`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: is not UTF-8 text", remedy="save it as UTF-8") from None
    return parse_tables(text, str(path))


def read_sections(path: Path, what: str, model: type[M], *needed: str) -> M:
    """A TOML file of sections, one field of ``model`` each; those that are ``needed`` have no default.

    ConfigError: as :func:`read_tables`, or a section or key is unknown, missing or wrong.
    """
    tables = read_tables(path, what)
    sections: dict[str, Any] = {name: field.annotation for name, field in model.model_fields.items()}
    try:
        for name, table in tables.items():
            if name not in sections:
                raise ConfigError(f"{name}: unknown section", remedy=suggestion(name, sections, "use: "))
            if not isinstance(table, dict):
                raise ConfigError(f"{name}: is a value, not a section", remedy=f"write [{name}]")
        for name in needed:
            if name not in tables:
                raise ConfigError(f"{name}: this section is missing", remedy=f"add [{name}] with the name")
        found = {name: checked(section, tables.get(name, {}), name) for name, section in sections.items()}
        return model.model_validate(found)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", remedy=error.remedy) from None


def read_own_text(path: Path, what: str) -> str:
    """The text of a file that a person names on the command line.

    ConfigError: missing, unreadable or not UTF-8; of a missing one, which files are there.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = [other.name for other in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        remedy = suggestion(path.name, near, f"{what}s there: ") if near else "check the path"
        raise ConfigError(f"{path}: there is no such {what}", remedy=remedy) from None
    except OSError as error:
        remedy = f"name the {what} in it" if path.is_dir() else "check its mode"
        raise ConfigError(f"{path}: cannot be read ({error.strerror})", remedy=remedy) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text", remedy=f"save the {what} as UTF-8") from None


def parse_tables(text: str, source: str) -> dict[str, Any]:
    """The tables of a TOML text, which errors call ``source``; ConfigError as in :func:`read_tables`."""
    with _explained(source):
        tables = tomllib.loads(text.removeprefix("\ufeff"))  # as some editors begin UTF-8
        private_files.check_depth(tables)
    key = _beyond_64_bits(tables)
    if key is not None:  # Python would not even write out 0xfff... of 5,000 digits
        raise ConfigError(f"{source}: {key[1:]}: a number beyond 64 bits", remedy="write a smaller number")
    return tables


@contextmanager
def _explained(source: str) -> Iterator[None]:
    """What can be wrong with TOML, as errors that name the file."""
    try:
        yield
    except ValueError as error:  # also of a number with thousands of digits
        raise ConfigError(f"{source}: not valid TOML: {error}", remedy="correct that line") from None
    except RecursionError:
        raise ConfigError(f"{source}: is nested too deeply", remedy="write flat lists") from None


def _beyond_64_bits(value: object) -> str | None:
    """Where the first such number is, as `.table.key[0]`; None if there is none, as TOML demands."""
    if isinstance(value, int):
        return None if -(1 << 63) <= value < 1 << 63 else ""
    items: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        items = ((f".{name}", item) for name, item in value.items())
    elif isinstance(value, list):
        items = ((f"[{at}]", item) for at, item in enumerate(value))
    for name, item in items:
        inside = _beyond_64_bits(item)
        if inside is not None:
            return name + inside
    return None
