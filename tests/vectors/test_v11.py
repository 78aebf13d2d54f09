"""v1.1: today's code makes the files and answers every script; a wrong implementation fails at least one."""

from __future__ import annotations

import pytest

from tests.vectors import generate, generate_v11
from tests.vectors.scripts.play import Differs
from tests.vectors.variants import Variant, catalogue, killer

FILES = sorted({file for file, _ in generate_v11.cases()})
VARIANTS = catalogue()
QUICK = (
    "shamir-coordinate-from-the-cohort",
    "a-refusal-does-not-close",
    "journal-without-begin",
    "sum-limit-of-the-ring",
)


@pytest.mark.parametrize("file", FILES)
def test_every_vector_is_answered_as_it_says(file: str) -> None:
    wrong = []
    for name, case in generate_v11.cases():
        try:
            if name == file:
                generate_v11.play(name, case)
        except Differs as error:
            wrong.append(str(error))
    assert not wrong


@pytest.mark.slow
def test_the_code_makes_the_published_files() -> None:
    assert generate.differences(generate_v11.generate(), generate_v11.FOLDER) == []


def test_vectors_have_names_of_their_own_and_files_stay_small() -> None:
    names = [case["name"] for _, case in generate_v11.cases()]
    assert len(set(names)) == len(names)
    assert sum(path.stat().st_size for path in generate_v11.FOLDER.glob("*.json")) < 1_500_000


def test_every_variant_can_be_made_and_is_one_of_its_own() -> None:
    assert len(VARIANTS) >= 300
    assert len({variant.id for variant in VARIANTS}) == len(VARIANTS)
    for variant in VARIANTS:
        assert variant.mistaken() != variant.source()


@pytest.mark.parametrize("name", QUICK)
def test_a_wrong_implementation_fails_a_vector(name: str) -> None:
    assert killer(next(variant for variant in VARIANTS if variant.id == name))


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_no_wrong_implementation_passes(variant: Variant) -> None:
    assert killer(variant), f"{variant.why}: every vector passes"
