from __future__ import annotations

import pytest
import torch

from secfed.algorithms.framework.randomness import derive_seed, seeded, torch_generator


def test_a_seed_is_the_same_in_every_process_and_version():
    assert derive_seed(7, "order", "hospital-1", 3) == 9010395077335887367


def test_a_seed_depends_on_every_part_and_on_where_parts_end():
    parts = [(7, "a", "b"), (8, "a", "b"), (7, "a", "c"), (7, "ab"), (7, "a", "b", ""), (7, "b", "a")]
    assert len({derive_seed(*each) for each in parts}) == len(parts)
    assert all(0 <= derive_seed(*each) < 2**63 for each in parts)


def test_generators_of_one_purpose_agree():
    left, right = (torch.rand(4, generator=torch_generator(1, "x")) for _ in range(2))
    assert torch.equal(left, right)


def test_seeded_code_leaves_the_global_generator_as_it_was_even_after_an_error():
    def fail() -> None:
        with seeded(1, "x"):
            torch.rand(3)
            raise KeyError

    before = torch.random.get_rng_state()
    with pytest.raises(KeyError):
        fail()
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="calls are kept for the device")
def test_seeded_code_leaves_nothing_behind_for_a_device_that_is_not_there():
    before = len(torch.cuda._queued_calls)
    for number in range(3):
        with seeded(1, "x", number):
            torch.rand(1)
    assert len(torch.cuda._queued_calls) == before
