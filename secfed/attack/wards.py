"""Small hospitals whose records an attack can choose, and the study over them that is attacked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from secfed.algorithms.data.memory import SiteTables
from secfed.algorithms.framework.datasets import SiteData, SiteId
from secfed.study.study import Study

FEATURES: Final = 6
FIRST: Final = "hospital-001"
USUAL: Final = 0.5
"""Every value of every record is below it, but for the one that an attack is after."""

_STUDY: Final = """
study = {{ name = "attacked", rounds = {rounds}, seed = 3 }}
algorithm = {{ name = "fedavg", local_epochs = 1, weighting = "equal", {algorithm} }}
model = {{ {model} }}
data = {{ name = "secfed.attack.wards:wards", hospitals = {hospitals} }}
protection = {{ {protection} }}
{privacy}
"""


class Wards(SiteTables):
    """Records of every hospital.

    ``planted`` is the value of the first feature in a ``share`` of a hospital's records; 0 is one record.
    """

    planted: Mapping[SiteId, float]
    share: float

    def site(self, site_id: SiteId) -> SiteData:
        """One hospital's records."""
        records = super().site(site_id)
        value = self.planted.get(site_id)
        if value is None:
            return records
        train, test = records.train_x.clone(), records.test_x.clone()
        for part in (train, test):
            part[: max(1, round(self.share * len(part))), 0] = value
        return replace(records, train_x=train, test_x=test)


def names(hospitals: int) -> tuple[str, ...]:
    """The hospitals of :func:`wards`, in roster order."""
    return tuple(f"hospital-{number:03d}" for number in range(1, hospitals + 1))


def wards(hospitals: int, records: int = 32) -> Wards:
    """The same records of a hospital, whoever else takes part."""
    tables = {}
    for number, site in enumerate(names(hospitals)):
        generator = np.random.default_rng([5, number])
        values = generator.uniform(0.0, USUAL, size=(records, FEATURES)).astype(np.float32)
        tables[site] = (values, generator.permutation(np.arange(records) % 2))
    made = Wards(tables, classes=2, test_fraction=0.25, standardize=False)
    made.planted, made.share = {}, 0.0
    return made


def study_text(
    hospitals: int,
    *,
    rounds: int = 1,
    algorithm: str = "batch_size = 12",
    model: str = 'name = "mlp", hidden = [2, 2, 2, 2, 2, 2, 2, 2]',
    protection: str = 'name = "masked"',
    privacy: str = "",
) -> str:
    """The study that is attacked, as TOML; the texts are the inside of its tables."""
    return _STUDY.format(
        hospitals=hospitals,
        rounds=rounds,
        algorithm=algorithm,
        model=model,
        protection=protection,
        privacy=f"privacy = {{ {privacy} }}" if privacy else "",
    )


def study(hospitals: int, **tables: Any) -> Study:
    """The study that is attacked; ``tables`` as :func:`study_text` takes them."""
    return Study.parse(study_text(hospitals, **tables))
