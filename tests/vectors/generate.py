"""Make the test vectors of protocol secfed/v1, or compare them with what the code gives today.

    python -m tests.vectors.generate            writes tests/vectors/v1/*.json and v1.1/*.json
    python -m tests.vectors.generate --check    exit status 1 and a list if anything differs

A difference means that two versions of secfed would not understand each other. That is a new protocol
version, unless a file has only gained cases.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.vectors import generate_v11
from tests.vectors.attempt import FILE, attempt_files
from tests.vectors.bad_cases import bad_files
from tests.vectors.ciphers import aes_vectors
from tests.vectors.closed import closed_vectors
from tests.vectors.messages import message_vectors
from tests.vectors.primitives import Json, primitive_files

FOLDER = Path(__file__).resolve().parent / "v1"


def generate(folder: Path = FOLDER) -> dict[str, str]:
    """File name -> text. Sealed envelopes are taken from ``folder`` where they still fit."""
    attempt = attempt_files(folder)
    files: dict[str, Json] = {
        **primitive_files(),
        "messages.json": message_vectors(),
        "closed.json": closed_vectors(),
        "keystream_aes.json": aes_vectors(),
        **attempt,
        **bad_files(attempt[FILE]),
    }
    return {name: json.dumps(content, indent=1, ensure_ascii=False) + "\n" for name, content in files.items()}


def differences(made: dict[str, str], folder: Path = FOLDER) -> list[str]:
    """What differs between the files and what was made; empty if nothing does."""
    found = []
    for name, text in made.items():
        path = folder / name
        if not path.exists():
            found.append(f"{name}: missing")
        elif path.read_text(encoding="utf-8") != text:
            found.append(f"{name}: {_first_difference(path.read_text(encoding='utf-8'), text)}")
    extra = sorted({path.name for path in folder.glob("*.json")} - set(made))
    return found + [f"{name}: nothing makes this file" for name in extra]


def _first_difference(old: str, new: str) -> str:
    pairs = zip(old.splitlines(), new.splitlines(), strict=False)
    for number, (before, after) in enumerate(pairs, start=1):
        if before != after:
            return f"line {number} is {before.strip()[:60]!r}, made was {after.strip()[:60]!r}"
    return "one is longer than the other"


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Test vectors of secfed/v1.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--folder", type=Path, help="of v1 alone, in place of the repository's")
    options = parser.parse_args(arguments)
    folder: Path = options.folder or FOLDER
    versions = [(folder, generate(folder))]
    if options.folder is None:
        versions.append((generate_v11.FOLDER, generate_v11.generate()))
    found = [line for place, made in versions for line in _write_or_compare(place, made, check=options.check)]
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


def _write_or_compare(folder: Path, made: dict[str, str], *, check: bool) -> list[str]:
    """What differs; nothing where the files are written."""
    if check:
        return differences(made, folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    return []


if __name__ == "__main__":
    sys.exit(main())
