"""The list of mutations: one small, meaningful mistake each, in code that an epsilon or a mask depends on.

They stand in ``*.toml`` beside this file::

    [[mutation]]
    id = "share-variance-of-all-sites"
    file = "dp/mechanisms/noise.py"
    old = '''text that occurs exactly once in the file'''
    new = '''what stands there instead'''
    tests = ["tests/dp/mechanisms/test_noise.py"]       # those that must notice, the quickest first
    why = "what would be lost"
    survives = "why no test can notice"      # only where that is so
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutation:
    """One mistake.

    Attributes:
        id: how it is asked for.
        file: path from the root of the repository.
        old: text that occurs exactly once in it.
        new: what takes its place.
        tests: what pytest is given, paths from the root; it stops at the first failure.
        why: what would be lost, for people.
        survives: why no test can notice it; empty where one must.
    """

    id: str
    file: str
    old: str
    new: str
    tests: list[str]
    why: str
    survives: str = ""

    def apply(self, text: str) -> str:
        """The file's text with the mistake in it.

        Raises:
            ValueError: the old text does not occur exactly once.
        """
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"mutation {self.id}: its old text occurs {found} times in {self.file}")
        return text.replace(self.old, self.new)


def catalogue() -> list[Mutation]:
    """All mutations, file by file."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutation"]:
            found.append(Mutation(**entry))
    return found
