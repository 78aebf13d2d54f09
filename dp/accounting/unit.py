"""The privacy unit: what is protected, against which change, and which sensitivity follows from it.

An epsilon means nothing without the relation between neighbouring data sets; none becomes another silently:

==========================  =================================================  ===========
relation                    two data sets are neighbours when                  sensitivity
==========================  =================================================  ===========
``ADD_OR_REMOVE_RECORD``    one record is present in one and absent in other   C
``REPLACE_RECORD``          the content of one record (slot) differs           2C
``REPLACE_PATIENT``         the content of all records of one patient differs  2C
``ZERO_OUT_SITE``           one site's contribution is replaced by zero        C
``REPLACE_SITE``            one site's contribution is replaced by another     2C
==========================  =================================================  ===========

C is the L2 norm that one clipped unit may have. Groups are fixed slots: an absent record still leaves a group
that contributes, so groups only support replacement. ``REPLACE_PATIENT`` implies ``REPLACE_RECORD`` and needs
groups in which each patient lies as a whole; how many records a patient has, and where they stand, is public.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from secfed.errors import ConfigError


class Unit(StrEnum):
    """What is clipped as a whole."""

    RECORD = "record"
    GROUP = "group"
    SITE = "site"


class Adjacency(StrEnum):
    """The relation between neighbouring data sets."""

    ADD_OR_REMOVE_RECORD = "add-or-remove-record"
    REPLACE_RECORD = "replace-record"
    REPLACE_PATIENT = "replace-patient"
    ZERO_OUT_SITE = "zero-out-site"
    REPLACE_SITE = "replace-site"

    @property
    def protects(self) -> Unit:
        """Whose budget a guarantee under this relation counts in: a record's or a site's.

        A patient's is the record's: hiding all records of a patient hides each of them.
        """
        return Unit.SITE if self in (Adjacency.ZERO_OUT_SITE, Adjacency.REPLACE_SITE) else Unit.RECORD

    @property
    def factor(self) -> int:
        """L2 sensitivity of the sum of clipped units, in units of the clipping norm."""
        return 2 if self.keeps_slots or self is Adjacency.REPLACE_SITE else 1

    @property
    def keeps_slots(self) -> bool:
        """Whether neighbours have the same places for records, and only what stands in some differs."""
        return self in (Adjacency.REPLACE_RECORD, Adjacency.REPLACE_PATIENT)


_PERMITTED = {
    Unit.RECORD: (Adjacency.ADD_OR_REMOVE_RECORD, Adjacency.REPLACE_RECORD),
    Unit.GROUP: (Adjacency.REPLACE_RECORD, Adjacency.REPLACE_PATIENT),
    Unit.SITE: (Adjacency.ZERO_OUT_SITE, Adjacency.REPLACE_SITE),
}


@dataclass(frozen=True)
class PrivacyUnit:
    """A unit together with the relation its guarantee is stated for; ConfigError if it has none under it."""

    unit: Unit
    adjacency: Adjacency

    def __post_init__(self) -> None:
        permitted = _PERMITTED[self.unit]
        if self.adjacency not in permitted:
            names = ", ".join(permitted)
            message = f"privacy unit {self.unit} has no guarantee under {self.adjacency}"
            raise ConfigError(message, remedy=f"state it under {names}")

    @classmethod
    def default(cls, unit: Unit) -> PrivacyUnit:
        """The unit under its usual relation: add-or-remove (record), replace (group), zero-out (site)."""
        return cls(unit, _PERMITTED[unit][0])


@dataclass(frozen=True)
class GroupPartition:
    """A fixed division of record slots into groups; a group is clipped as one unit.

    The division depends on the number of records, on who belongs to which patient and on the seed,
    never on what the records contain: replacing the content of a record changes exactly one group.

    With patients, all kept records of one patient are in one group, so the guarantee covers replacing
    *all* records of one patient at once (how many records a patient has is treated as public). Without
    patients, a patient whose records lie in r groups is protected at sensitivity 2rC only.
    """

    groups: tuple[NDArray[np.int64], ...]  # one [<= size] array of record indices per group, disjoint
    size: int
    records: int  # slots that were divided, including dropped ones

    @classmethod
    def of(
        cls, records: int, size: int, *, seed: int, patients: Sequence[Hashable] | None = None
    ) -> GroupPartition:
        """Divide ``records`` slots into groups of ``size``, at least 2; the seed must not depend on the data.

        Without patients every group has exactly ``size`` records and the remainder is dropped. With patients
        ([records]), these are shuffled and packed into groups of at most ``size``; of a larger patient a
        random ``size`` records are kept, and a group with a single record is dropped: it has nothing to
        compare.
        """
        if size < 2:
            raise ConfigError(f"privacy group size = {size}", remedy="use at least 2 records per group")
        rng = np.random.default_rng(np.random.PCG64([records, size, seed & (2**64 - 1)]))
        if patients is None:
            order = rng.permutation(records).astype(np.int64)
            count = records // size
            groups = [np.sort(order[at * size : (at + 1) * size]) for at in range(count)]
        else:
            if len(patients) != records:
                raise ConfigError(f"{len(patients)} patient ids for {records} records")
            groups = _pack(patients, size, rng)
        if not groups:
            message = f"{records} records do not fill one group of {size}"
            raise ConfigError(message, remedy="use a smaller privacy group size")
        return cls(tuple(groups), size, records)

    @classmethod
    def under(
        cls, unit: PrivacyUnit, records: int, size: int, *, seed: int, patients: Sequence[Hashable] | None
    ) -> GroupPartition:
        """The division that the unit's relation needs: by patient, if it hides patients."""
        if unit.adjacency is not Adjacency.REPLACE_PATIENT:
            return cls.of(records, size, seed=seed)
        if patients is None:
            raise no_patients()
        return cls.of(records, size, seed=seed, patients=patients)

    @property
    def dropped(self) -> int:
        """Record slots that are in no group and are never used."""
        return self.records - sum(len(group) for group in self.groups)

    def __len__(self) -> int:
        return len(self.groups)


def no_patients() -> ConfigError:
    """The error of a data set that does not say which records belong to one patient."""
    return ConfigError(
        'privacy.adjacency: "replace-patient" needs to know which records are of one patient, and the data '
        "set does not say",
        remedy="name the column with the patient (data.patient_column), or, where no patient has two "
        'records, set privacy.adjacency = "replace-record"',
    )


def _pack(patients: Sequence[Hashable], size: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    slots: dict[Hashable, list[int]] = {}
    for index, patient in enumerate(patients):
        slots.setdefault(patient, []).append(index)
    everyone = list(slots.values())
    groups: list[list[int]] = [[]]
    for place in rng.permutation(len(everyone)):
        mine = everyone[place]
        if len(mine) > size:
            mine = sorted(rng.permutation(np.array(mine))[:size].tolist())
        if len(groups[-1]) + len(mine) > size:
            groups.append([])
        groups[-1].extend(mine)
    return [np.array(sorted(group), dtype=np.int64) for group in groups if len(group) >= 2]
