"""Tables of options for the docs, from the registry."""

from __future__ import annotations

import pytest

from secfed.study.option_tables import markdown_tables
from secfed.study.registry import KINDS
from secfed.study.study import Study


def keys_of(part: str) -> list[str]:
    return sorted(line.split("`")[1] for line in part.splitlines() if line.startswith("| `"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_built_in_and_every_key_is_in_the_tables(kind: str) -> None:
    parts = markdown_tables(kind).split("## ")[1:]
    for part, (name, entry) in zip(parts, KINDS[kind][0].items(), strict=True):
        assert part.startswith(f"`{name}`\n")
        assert keys_of(part) == sorted(key for key in entry.options.model_fields if key != "name")


def test_sections_are_the_study_files_others_with_every_key() -> None:
    parts = {part.split("`")[1]: part for part in markdown_tables("section").split("## ")[1:]}
    assert set(parts) == set(Study.model_fields) - set(KINDS) - {"folder"}
    for name, part in parts.items():
        section = Study.model_fields[name].annotation
        model = getattr(section, "__args__", (section,))[0]  # [privacy] may be absent
        assert keys_of(part) == sorted(model.model_fields)
        assert all(field.description for field in model.model_fields.values())


def test_a_required_key_comes_first_and_a_default_is_toml() -> None:
    csv = markdown_tables("data").split("## `csv`")[1].partition("## ")[0]
    rows = [line for line in csv.splitlines() if line.startswith("| `")]
    required = ["| `required` |" in row for row in rows]
    assert any(required)
    assert required == sorted(required, reverse=True)
    assert '| `weighting` | `"records"` |' in markdown_tables("algorithm").split("## `fedavg`")[1]
