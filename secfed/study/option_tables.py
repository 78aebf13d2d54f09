"""The tables of options that people read, made from what checks the study file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from secfed.config.schema import Options, Strict
from secfed.config.sections import ProtectionSection, StudySection
from secfed.dp.settings import PrivacySection
from secfed.study.registry import KINDS

SECTIONS: Final[Mapping[str, type[Strict]]] = {
    "study": StudySection, "protection": ProtectionSection, "privacy": PrivacySection,
}  # fmt: skip


def tables_of(kind: str) -> dict[str, type[Strict]]:
    """What has a table, by name: built-ins of a kind in ``KINDS``, or of "section" the others of a study."""
    if kind == "section":
        return dict(SECTIONS)
    return {name: entry.options for name, entry in KINDS[kind][0].items()}


def markdown_tables(kind: str) -> str:
    """For a page of the docs: a heading and a table of options for each of :func:`tables_of`."""
    parts = []
    for name, options in tables_of(kind).items():
        rows = []
        for key, default, meaning in option_rows(options):
            escaped = meaning.replace("|", "\\|")
            rows.append(f"| `{key}` | `{default}` | {escaped} |")
        lines = ["| key | default | meaning |", "| --- | --- | --- |", *rows] if rows else ["No options."]
        parts.append("\n".join([f"## `{name}`", "", *lines, ""]))
    return "\n".join(parts)


def option_rows(options: type[Strict]) -> list[tuple[str, str, str]]:
    """(key, default as TOML, meaning) of every key, required ones first; a built-in's ``name`` is known."""
    rows = []
    for key, field in options.model_fields.items():
        if key != "name" or not issubclass(options, Options):
            value = field.get_default(call_default_factory=True)
            default = "required" if field.is_required() else _toml(value)
            rows.append((key, default, field.description or ""))
    return sorted(rows, key=lambda row: row[1] != "required")


def _toml(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return str(value)
