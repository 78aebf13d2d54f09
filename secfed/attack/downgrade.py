"""An aggregator that has one hospital work under less than the others: of protection, privacy or version.

First by what it offers: the study that the hospital permits, weakened in one place. Then by what it sends
once the hospital works: a specification of the attempt, weakened likewise. Whatever is accepted counts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from secfed.attack.attack import AttackSetting, attack, attack_folder, numbers
from secfed.attack.evidence import Count
from secfed.attack.wards import study, study_text
from secfed.attack.watched import NOW, Hospitals, hospital_with_policy
from secfed.crypto import labels
from secfed.crypto.refusals import Refusal
from secfed.deploy.admission.admission import admit
from secfed.errors import SecfedError, WrongState
from secfed.study.limits import study_id
from secfed.study.study import Study
from secfed.wire.frames import READY, Step, Task

_LEAST: Final = 5  # that many tolerate two colluders
_MOST: Final = 8
_PROTECTION: Final = 'name = "masked", colluders = 2, min_cohort = 4'
_PRIVACY: Final = 'unit = "record", epsilon = 8.0, delta = 1e-4, accountant = "rdp"'
_RULES: Final = """near_twins = "permit"
[protection]
names = ["masked", "encrypted"]
colluders = 2
min_cohort = 4
[privacy]
max_epsilon = 8.0
max_delta = 1e-4
"""
_BUDGET: Final = "[[data.budget]]\nepsilon = 100.0\ndelta = 1e-4\n"
# What is offered instead: (protection, privacy).
_OFFERS: Final = (
    (_PROTECTION.replace("masked", "plain"), _PRIVACY),
    ('name = "encrypted", min_cohort = 4', _PRIVACY),
    (_PROTECTION.replace("masked", "encrypted"), _PRIVACY),
    (_PROTECTION.replace("colluders = 2", "colluders = 1"), _PRIVACY),
    (_PROTECTION.replace("colluders = 2", "threshold = 4"), _PRIVACY),
    (_PROTECTION.replace("min_cohort = 4", "min_cohort = 3"), _PRIVACY),
    (_PROTECTION, ""),
    (_PROTECTION, _PRIVACY.replace("8.0", "80.0")),
    (_PROTECTION, _PRIVACY.replace("1e-4", "1e-2")),
    (_PROTECTION, _PRIVACY.replace("record", "site")),
    (_PROTECTION, f'{_PRIVACY}, metrics = "unprotected"'),
)


@attack(
    "downgrade",
    "offers one hospital less protection, privacy or a lower threshold than the others have",
    refusals=(Refusal.THRESHOLD_TOO_LOW,),
)
def downgrade(setting: AttackSetting) -> Count:
    """By offers, then by specifications."""
    permitted = study(setting.between(_LEAST, _MOST), protection=_PROTECTION, privacy=_PRIVACY)
    with attack_folder() as folder, Hospitals(permitted) as hospitals:
        accepted = _offers_accepted(folder, hospitals)
        refused, tried = _specifications_refused(hospitals)
        taken = sum(accepted) + tried - len(refused)
        return Count(taken, len(accepted) + tried, "downgrades", numbers(refused))


def _offers_accepted(folder: Path, hospitals: Hospitals) -> list[bool]:
    """Whether a hospital takes what it is offered, and would work under it; of each offer."""
    site = hospital_with_policy(folder, hospitals.names[0], _RULES, _BUDGET)

    def admits(protection: str, privacy: str) -> bool:
        model = 'name = "mlp", hidden = [2]'
        offered = study_text(len(hospitals.names), model=model, protection=protection, privacy=privacy)
        try:
            admit(site, hospitals.roster, study_id(Study.parse(offered)), offered.encode(), NOW)
        except SecfedError:  # a policy's refusal, or not a study at all
            return False
        return True

    if not admits(_PROTECTION, _PRIVACY):
        raise WrongState("the study that the policy is made for is refused")
    return [admits(*offer) for offer in _OFFERS]


def _specifications_refused(hospitals: Hospitals) -> tuple[list[SecfedError], int]:
    """What a hospital that works under the permitted study refuses of what is sent, and how much that is."""
    sites = hospitals.names
    honest = hospitals.specification()
    (exchange, *_), victim = hospitals.algorithm.exchanges(1), hospitals.site(sites[0])
    task = Task(honest.study, 1, 0, exchange.name, hospitals.state).encode()
    weaker: tuple[dict[str, Any], ...] = (
        {"threshold": honest.threshold - 1},
        {"threshold": 2},
        {"cohort": sites[:3], "threshold": 3},
        {"study": study_id(study(len(sites)))},
    )
    messages = [hospitals.specification(**changes).encode() for changes in weaker]
    messages.append(replace(honest, threshold=honest.threshold - 1).encode())  # not signed anew
    older = labels.PROTOCOL[:-1] + b"0"
    messages.append(older + honest.encode()[len(older) :])
    if victim(task) != READY:
        raise WrongState("the study that all hospitals work in is refused")
    refused = []
    for message in messages:
        try:
            victim(Step(1, 0, 0, message).encode())
        except SecfedError as refusal:
            refused.append(refusal)
    if len(refused) == len(messages):
        victim(Step(1, 0, 0, honest.encode()).encode())
    return refused, len(messages)
