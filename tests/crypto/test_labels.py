"""Domain separation: no two purposes share a label."""

from __future__ import annotations

import re
from pathlib import Path

from secfed.crypto import labels

LABELS = {name: value for name, value in vars(labels).items() if isinstance(value, bytes)}


def test_no_two_purposes_share_a_label() -> None:
    assert len(LABELS) > 20
    assert len(set(LABELS.values())) == len(LABELS)


def test_every_label_names_the_protocol_version() -> None:
    for name, value in LABELS.items():
        if name != "PROTOCOL":
            assert value.startswith(labels.PROTOCOL + b" "), name
            assert value.isascii(), name


def test_the_name_of_a_label_says_what_it_is_for() -> None:
    kinds = {"SIGN_": b" sign ", "DERIVE_": b" derive ", "SEAL_": b" seal "}
    for name, value in LABELS.items():
        for prefix, word in kinds.items():
            assert name.startswith(prefix) == (word in value), name


def test_no_label_literal_occurs_twice_in_the_source(repository: Path) -> None:
    """Wherever a label is defined, it is defined once: two modules cannot pick the same one unawares."""
    places: dict[str, list[str]] = {}
    for room in ("secfed", "crypto", "dp", "algorithms", "deploy"):
        # Python's glob does not follow the symlinked rooms below secfed/, so each file is seen once.
        for path in sorted((repository / room).glob("**/*.py")):
            for label in re.findall(r"""b["'](secfed/v1[^"']*)["']""", path.read_text("utf-8")):
                places.setdefault(label, []).append(str(path.relative_to(repository)))
    assert len(places) >= len(LABELS)
    assert {label: where for label, where in places.items() if len(where) > 1} == {}
