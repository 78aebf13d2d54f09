"""The list of mutations fits the code it would change, so that it cannot rot unseen."""

from __future__ import annotations

import ast
from itertools import groupby

import pytest

from tests.mutations.catalogue import ROOT, Mutation, catalogue

MUTATIONS = catalogue()


BY_FILE = [list(several) for _, several in groupby(MUTATIONS, key=lambda one: one.file)]


@pytest.mark.parametrize("mutations", BY_FILE, ids=lambda several: several[0].file)
def test_the_mutations_of_a_file_apply_and_change_what_python_reads(mutations: list[Mutation]) -> None:
    text = (ROOT / mutations[0].file).read_text()
    original = ast.dump(ast.parse(text))
    for mutation in mutations:
        mutated = mutation.apply(text)  # raises if the old text does not occur exactly once
        assert ast.dump(ast.parse(mutated)) != original, mutation.id
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
