"""The list of mutations fits the code it would change, so that it cannot rot unseen."""

from __future__ import annotations

import ast
from itertools import groupby

import pytest

from tests.mutations.catalogue import ROOT, Mutation, catalogue

MUTATIONS = catalogue()


def _statements(text: str) -> dict[str, ast.stmt]:
    """What stands outermost in a file, by its text."""
    lines, found = text.splitlines(), {}
    for node in ast.parse(text).body:
        first = min(one.lineno for one in (node, *getattr(node, "decorator_list", ())))
        found["\n".join(lines[first - 1 : node.end_lineno])] = node
    return found


def _other_than(known: dict[str, ast.stmt], given: dict[str, ast.stmt]) -> list[str]:
    """The statements of another text; only these are compared, for it takes long."""
    return [ast.dump(node) for text, node in given.items() if text not in known]


BY_FILE = [list(several) for _, several in groupby(MUTATIONS, key=lambda one: one.file)]


@pytest.mark.parametrize("mutations", BY_FILE, ids=lambda several: several[0].file)
def test_the_mutations_of_a_file_apply_and_change_what_python_reads(mutations: list[Mutation]) -> None:
    text = (ROOT / mutations[0].file).read_text()
    original = _statements(text)
    for mutation in mutations:
        mutated = _statements(mutation.apply(text))  # raises if the old text does not occur exactly once
        assert _other_than(original, mutated) != _other_than(mutated, original), mutation.id
        assert mutation.tests, mutation.id
        assert all((ROOT / test.partition("::")[0]).exists() for test in mutation.tests), mutation.id
        assert mutation.why, mutation.id


def test_ids_are_unique() -> None:
    names = [mutation.id for mutation in MUTATIONS]
    assert len(names) == len(set(names))


def test_text_that_is_gone_or_repeated_is_an_error() -> None:
    mutation = Mutation("m", "f.py", "a = 1", "a = 2", ["t"], "w")
    assert mutation.apply("a = 1\n") == "a = 2\n"
    for text in ("", "a = 1\na = 1\n"):
        with pytest.raises(ValueError, match=r"mutation m: .* times in f\.py"):
            mutation.apply(text)
