"""The list of mutations fits the code it would change, so that it cannot rot unseen."""

from __future__ import annotations

import ast

import pytest

from tests.mutations.catalogue import ROOT, Mutation, catalogue

MUTATIONS = catalogue()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.id)
def test_the_mutation_applies_and_changes_what_python_reads(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text()
    mutated = mutation.apply(text)  # raises if the old text does not occur exactly once
    assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(text))
    assert mutation.tests
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutation.tests)
    assert mutation.why


def test_ids_are_unique() -> None:
    names = [mutation.id for mutation in MUTATIONS]
    assert len(names) == len(set(names))


def test_text_that_is_gone_or_repeated_is_an_error() -> None:
    mutation = Mutation("m", "f.py", "a = 1", "a = 2", ["t"], "w")
    assert mutation.apply("a = 1\n") == "a = 2\n"
    for text in ("", "a = 1\na = 1\n"):
        with pytest.raises(ValueError, match=r"mutation m: .* times in f\.py"):
            mutation.apply(text)
