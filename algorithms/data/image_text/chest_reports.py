"""Synthetic reports for synthetic chest images: one clause per finding, then heart and device.

How a report says what the image shows depends on the site: one of three ways to phrase a clause, one of five
sets of words for severity. All words are listed here, so the vocabulary is public.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

FINDINGS: Final = ("edema", "effusion", "consolidation", "pneumothorax", "pneumonia")
HAS_SIDE: Final = (False, True, True, True, True)
HAS_ZONE: Final = (False, False, True, False, True)
"""Which findings have a side and a zone that the image shows; a report names no others."""

SIDES: Final = ("right", "left")
ZONES: Final = ("upper", "middle", "lower")
SEVERITIES: Final = (
    ("mild", "moderate", "severe"),
    ("slight", "medium", "marked"),
    ("small", "intermediate", "large"),
    ("minimal", "notable", "extensive"),
    ("subtle", "considerable", "massive"),
)
_CLEAR: Final = ("lungs are clear", "there is no acute finding", "no opacity of either lung")
_HEARTS: Final = (
    ("heart size normal", "heart size enlarged"),
    ("cardiac silhouette is normal", "cardiac silhouette is enlarged"),
    ("heart within normal limits", "cardiomegaly is present"),
)
_DEVICES: Final = (
    ("no device", "tube in place", "pacemaker in place"),
    ("no support device seen", "midline tube is seen", "chest pacemaker is seen"),
    ("without device", "with midline tube", "with pacemaker"),
)
_FRAME: Final = ("bilateral", "there is", "of degree")
TEMPLATES: Final = len(_HEARTS)
LONGEST: Final = 40
"""No report has more tokens, the first token included."""


@dataclass(frozen=True, repr=False)
class Latents:
    """What a synthetic record shows, before it is drawn and described.

    The first four are [n, 5], in the order of :data:`FINDINGS`; the others [n].
    """

    present: NDArray[np.bool_]
    side: NDArray[np.int64]  # position in SIDES
    zone: NDArray[np.int64]  # position in ZONES
    severity: NDArray[np.int64]  # 0 to 2
    heart: NDArray[np.int64]  # 1 is enlarged
    device: NDArray[np.int64]  # 0 none, 1 tube, 2 pacemaker

    def __len__(self) -> int:
        return len(self.heart)

    def take(self, rows: NDArray[np.int64] | slice) -> Latents:
        """The records at these positions."""
        return Latents(*(getattr(self, field.name)[rows] for field in fields(self)))


def draw_latents(combination: NDArray[np.int64], rng: np.random.Generator) -> Latents:
    """Records with these findings ([n] in 0..31; bit k says whether finding k is present), all else drawn."""
    n, k = len(combination), len(FINDINGS)
    return Latents(
        present=(combination[:, np.newaxis] >> np.arange(k)) % 2 == 1,
        side=rng.integers(len(SIDES), size=(n, k)),
        zone=rng.integers(len(ZONES), size=(n, k)),
        severity=rng.integers(3, size=(n, k)),
        heart=rng.integers(2, size=n),
        device=rng.integers(3, size=n),
    )


def words() -> tuple[str, ...]:
    """Every word that a synthetic report can contain, each once, in a fixed order."""
    texts = [*_FRAME, *_CLEAR, *FINDINGS, *SIDES, *ZONES]
    texts += [text for group in (*_HEARTS, *_DEVICES, *SEVERITIES) for text in group]
    return tuple(dict.fromkeys(" ".join(texts).split()))


def reports(latents: Latents, dialect: NDArray[np.int64], rng: np.random.Generator) -> list[str]:
    """One synthetic report per record, in the site style (``dialect``, [n] from 0) that each is written in.

    The order of the clauses is shuffled in half of the reports.
    """
    shuffled = rng.random(len(latents)) < 0.5
    written = []
    for at in range(len(latents)):
        clauses = _clauses(latents, at, int(dialect[at]))
        if shuffled[at]:
            clauses = [clauses[int(position)] for position in rng.permutation(len(clauses))]
        written.append(" ".join(clauses))
    return written


def _clauses(latents: Latents, at: int, dialect: int) -> list[str]:
    template, severities = dialect % TEMPLATES, SEVERITIES[dialect % len(SEVERITIES)]
    clauses = []
    for finding in np.flatnonzero(latents.present[at]).tolist():
        severity = severities[latents.severity[at, finding]]
        where = [SIDES[latents.side[at, finding]]] if HAS_SIDE[finding] else ["bilateral"]
        if HAS_ZONE[finding]:
            where.append(ZONES[latents.zone[at, finding]])
        clauses.append(_clause(template, FINDINGS[finding], severity, " ".join(where)))
    clauses = clauses or [_CLEAR[template]]
    return [*clauses, _HEARTS[template][latents.heart[at]], _DEVICES[template][latents.device[at]]]


def _clause(template: int, name: str, severity: str, where: str) -> str:
    if template == 0:
        return f"{severity} {where} {name}"
    if template == 1:
        return f"there is {severity} {where} {name}"
    return f"{where} {name} of {severity} degree"
