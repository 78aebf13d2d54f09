"""Units, relations, sensitivities and the group partition (specs: dp.md sections 0 and 2)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secfed.dp.accounting.unit import Adjacency, GroupPartition, PrivacyUnit, Unit
from secfed.errors import ConfigError

PERMITTED = {
    (Unit.RECORD, Adjacency.ADD_OR_REMOVE_RECORD): 1,
    (Unit.RECORD, Adjacency.REPLACE_RECORD): 2,
    (Unit.GROUP, Adjacency.REPLACE_RECORD): 2,
    (Unit.GROUP, Adjacency.REPLACE_PATIENT): 2,
    (Unit.SITE, Adjacency.ZERO_OUT_SITE): 1,
    (Unit.SITE, Adjacency.REPLACE_SITE): 2,
}


@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_permitted_pair_has_its_sensitivity_and_any_other_is_refused(
    unit: Unit, adjacency: Adjacency
) -> None:
    if (unit, adjacency) in PERMITTED:
        assert PrivacyUnit(unit, adjacency).adjacency.factor == PERMITTED[unit, adjacency]
        return
    with pytest.raises(ConfigError, match=f"no guarantee under {adjacency}") as error:
        PrivacyUnit(unit, adjacency)
    assert "state it under" in error.value.remedy


def test_groups_default_to_replace_and_hiding_a_patient_hides_each_record() -> None:
    assert Adjacency.REPLACE_PATIENT.protects is Unit.RECORD
    assert PrivacyUnit.default(Unit.GROUP).adjacency is Adjacency.REPLACE_RECORD


@given(records=st.integers(0, 200), size=st.integers(2, 20), seed=st.integers(0, 2**64 - 1))
def test_plain_groups_have_exactly_k_records_and_are_disjoint(records: int, size: int, seed: int) -> None:
    if records < size:
        with pytest.raises(ConfigError, match="do not fill one group"):
            GroupPartition.of(records, size, seed=seed)
        return
    partition = GroupPartition.of(records, size, seed=seed)
    used = np.concatenate(partition.groups)
    assert {len(group) for group in partition.groups} == {size}
    assert len(partition) == records // size
    assert len(set(used.tolist())) == len(used)
    assert set(used.tolist()) <= set(range(records))
    assert partition.dropped == records % size


def test_the_partition_depends_on_the_seed_and_nothing_else() -> None:
    first, again, other = (GroupPartition.of(100, 8, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first.groups, again.groups, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first.groups, other.groups, strict=True))


@given(
    patients=st.lists(st.integers(0, 15), min_size=30, max_size=120),
    size=st.integers(2, 12),
    seed=st.integers(0, 99),
)
def test_every_patient_is_in_one_group(patients: list[int], size: int, seed: int) -> None:
    partition = GroupPartition.of(len(patients), size, seed=seed, patients=patients)
    seen: dict[int, int] = {}
    for number, group in enumerate(partition.groups):
        assert 2 <= len(group) <= size
        for index in group:
            assert seen.setdefault(patients[index], number) == number
    used = np.concatenate(partition.groups)
    assert len(set(used.tolist())) == len(used)


def test_a_patient_with_too_many_records_keeps_k_of_them() -> None:
    partition = GroupPartition.of(12, 4, seed=0, patients=[0] * 10 + [1, 1])
    sizes = sorted(len(group) for group in partition.groups)
    assert sizes == [2, 4]
    assert partition.dropped == 6


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match="group size = 1"):
        GroupPartition.of(10, 1, seed=0)
    with pytest.raises(ConfigError, match="3 patient ids for 4 records"):
        GroupPartition.of(4, 2, seed=0, patients=[1, 2, 3])
