"""The attack with later studies of statistics: each differs from the first so that results can be subtracted.

Offered to a hospital whose policy lets near twins in without asking: what is told by two of the studies
together are the records of one hospital, or of the ages between two edges, however few these are.
"""

from __future__ import annotations

from typing import Final

from secfed.attack.attack import AttackSetting, attack, attack_folder, numbers
from secfed.attack.evidence import Count
from secfed.attack.watched import NOW
from secfed.crypto.identity import Identity, Roster
from secfed.deploy.admission import near_twins
from secfed.deploy.admission.admission import admit
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.errors import PolicyRefused
from secfed.study.limits import study_id
from secfed.study.study import Study

_HOSPITALS: Final = 5
_STUDY: Final = """
study = { name = "attacked", rounds = 1 }
model = { name = "none" }
data = { name = "diabetes-table", sites = 5 }
protection = { name = "masked", max_dropouts = 0 }
[algorithm]
name = "statistics"
analyses.ages = { kind = "histogram", column = "age", bins = 10 }
"""
_POLICY: Final = """
approve = "automatic"
[studies]
names = ["*"]
near_twins = "permit"
[privacy]
require = false
[algorithms.statistics]
analyses = "any"
min_cell = "any"
max_records = "any"
[models.none]
[[data]]
name = "diabetes"
source = "diabetes-table"
options = "any"
"""
# What later studies change: the hospitals, the cells, the records, who may be missing, what is withheld.
_CHANGES: Final = (
    ("sites = 5", "sites = 4"),
    ("bins = 10", "bins = 11"),
    ('name = "statistics"', 'name = "statistics"\nmax_records = 50'),
    (", max_dropouts = 0", ""),
    ('name = "statistics"', 'name = "statistics"\nmin_cell = 6'),
)


@attack(
    "later-statistics",
    "asks later studies for the same numbers of fewer hospitals, other cells or records, and subtracts",
    who="a study centre",
    defence="a person",
)
def later_statistics(setting: AttackSetting) -> Count:
    """Count the studies that a hospital would work in without asking a person."""
    setting.between(_HOSPITALS - 1, _HOSPITALS)
    sites = [Identity.generate(f"hospital-{number}") for number in range(1, _HOSPITALS + 1)]
    roster = Roster.of(Identity.generate("aggregator"), sites)
    refused = []
    with attack_folder() as folder:
        hospital = SiteFolder.create(folder / "policy", sites[0].name, now=NOW)
        hospital.policy_path.write_text(_POLICY, encoding="utf-8")
        hospital.state.mkdir(mode=0o700)
        first = admit(hospital, roster, study_id(Study.parse(_STUDY)), _STUDY.encode(), NOW)
        near_twins.begin(hospital, first.terms, first.data, NOW)
        for old, new in _CHANGES:
            text = _STUDY.replace(old, new)
            try:
                admit(hospital, roster, study_id(Study.parse(text)), text.encode(), NOW)
            except PolicyRefused as refusal:
                refused.append(refusal)
    return Count(len(_CHANGES) - len(refused), len(_CHANGES), "studies that were permitted", numbers(refused))
