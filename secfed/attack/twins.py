"""Attacks with a second study over the same records: the difference of two sums, across studies.

Hospitals are those of a deployment, with a policy and everything on the disk. The aggregator offers the same
study with another deadline, and one that lacks a hospital, which waits for a person at each hospital. What it
would bring if all of them approved it is played as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from secfed.algorithms.framework.base import ForwardingProgram, SiteProgram
from secfed.attack.attack import AttackSetting, attack, attack_folder, attacks_of, numbers
from secfed.attack.evidence import Count
from secfed.attack.wards import names, study_text
from secfed.attack.watched import NOW, Federation, hospital_with_policy
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity, Roster
from secfed.deploy.admission import near_twins
from secfed.deploy.admission.admission import admit
from secfed.errors import PolicyRefused, SecfedError
from secfed.site.durable_store import DurableStore
from secfed.site.parts import Member
from secfed.site.runtime import SiteStudy, open_site_study
from secfed.site.terms import Terms
from secfed.study.build import build
from secfed.study.limits import study_id
from secfed.study.study import Study
from secfed.wire.layout import Exchange, State, Summands

_HOSPITALS: Final = 4  # three for the sum without one of them; more only take longer
_SAME_UPDATE: Final = 0.99  # cosine; it is 1 to six digits where batches are in a public order
_MINI_BATCHES: Final = "batch_size = 1, learning_rate = 2.0"
_FULL_BATCHES: Final = "batch_size = 1000, learning_rate = 2.0"
_DATA_SET: Final = "wards"


@dataclass
class _Deployment:
    """Hospitals whose studies are admitted, stored and begun as an agent does it."""

    people: tuple[str, ...]
    folder: Path
    # study and hospital to the update that it added; what an attacker wants
    contributed: dict[tuple[str, str], torch.Tensor] = field(default_factory=dict)
    refused: list[SecfedError] = field(default_factory=list)  # what hospitals answered instead of taking part

    def __post_init__(self) -> None:
        self.aggregator = Identity.generate("aggregator")
        self.identities = {name: Identity.generate(name) for name in self.people}
        self.roster = Roster.of(self.aggregator, list(self.identities.values()))
        self.hospital = hospital_with_policy(self.folder, self.people[0], "[privacy]\nrequire = false")
        self.hospital.state.mkdir(mode=0o700)

    def admitted(self, settings: str) -> bool:
        """Whether a hospital would work in this study without asking a person."""
        try:
            offered = study_id(Study.parse(settings))
            admitted = admit(self.hospital, self.roster, offered, settings.encode(), NOW)
        except PolicyRefused as refusal:
            self.refused.append(refusal)
            return False
        near_twins.begin(self.hospital, admitted.terms, admitted.data, NOW)
        return True

    def warned(self, settings: str) -> bool:
        """Whether a person is shown what it resembles, before approving it."""
        return bool(near_twins.noted(self.hospital.state, Study.parse(settings).digest().hex()))

    def sum_of(self, study: Study) -> torch.Tensor | None:
        """The sum of all updates, as the aggregator learns it; None if there is none."""
        with ExitStack() as stack:
            members = Terms.of(study, self.roster, self.people[0]).sites
            opened = {name: self._open(study, name, stack) for name in members}
            algorithm: Any = build(study)
            before = algorithm.server().model()
            sites = {name: partial(self._answer, one) for name, one in opened.items()}
            server = Federation(study, algorithm, self.roster, self.aggregator, sites).run()
            if not server.metrics():
                return None
            return _flat({name: (server.model()[name] - before[name]) for name in before}) * len(sites)

    def _answer(self, hospital: SiteStudy, frame: Buffer) -> Buffer:
        try:
            return hospital.site.handle(frame)
        except SecfedError as refusal:
            self.refused.append(refusal)
            raise

    def _open(self, study: Study, name: str, stack: ExitStack) -> SiteStudy:
        state = self.folder / name
        state.mkdir(exist_ok=True)
        opened = open_site_study(
            Terms.of(study, self.roster, name),
            Member(self.identities[name], self.roster),
            state,
            program=self._program(name),
            limits=SiteLimits(),
            dataset=_DATA_SET,
            budgets=(),
        )
        stack.callback(opened.close)
        return opened

    def _program(self, name: str) -> Any:
        def make(terms: Terms, store: DurableStore, _ledger: object) -> SiteProgram:
            algorithm = build(terms.study, site_seed=store.site_seed())
            return _Kept(algorithm.site(name), self.contributed, (terms.study_id, name))

        return make


class _Kept(ForwardingProgram):
    """A site's program; what it adds is kept, to be compared with what an attacker makes of the sums."""

    def __init__(
        self, program: SiteProgram, kept: dict[tuple[str, str], torch.Tensor], where: tuple[str, str]
    ) -> None:
        super().__init__(program)
        self._kept, self._where = kept, where

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        given = super().contribute(round_number, exchange, broadcast)
        if exchange.name == "update":
            updates = {name: torch.as_tensor(value) for name, value in given.items() if "update/" in name}
            self._kept[self._where] = _flat(updates)
        return given


def _flat(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([state[name].reshape(-1).double() for name in sorted(state)])


def _settings(hospitals: int, algorithm: str, deadline_s: float = 60.0) -> str:
    model, protection = 'name = "mlp", hidden = [16]', f'name = "masked", deadline_s = {deadline_s}'
    return study_text(hospitals, algorithm=algorithm, model=model, protection=protection)


def _difference(made: _Deployment, algorithm: str) -> float:
    """Of the sums with and without the last hospital: cosine to that hospital's update; 0 without sums."""
    hospitals = len(made.people)
    larger, smaller = (Study.parse(_settings(count, algorithm)) for count in (hospitals, hospitals - 1))
    sums = [made.sum_of(study) for study in (larger, smaller)]
    if sums[0] is None or sums[1] is None:
        return 0.0
    update = made.contributed[study_id(larger), made.people[-1]]
    return float(torch.nn.functional.cosine_similarity(sums[0] - sums[1], update, dim=0))


@attack(
    "twin-study",
    "runs the study again with another deadline, or without one hospital, and subtracts the sums",
    defence="journal, a person",
)
def _twin_study(setting: AttackSetting) -> Count:
    hospitals = setting.between(_HOSPITALS, _HOSPITALS)
    with attack_folder() as folder:
        made = _Deployment(names(hospitals), folder)
        first, without = (_settings(count, _MINI_BATCHES) for count in (hospitals, hospitals - 1))
        made.admitted(first)
        alone = made.admitted(without) or not made.warned(without)
        cosine = _difference(made, _MINI_BATCHES)  # as if everybody had approved it
        again = made.sum_of(Study.parse(_settings(hospitals, _MINI_BATCHES, deadline_s=30.0)))
        ways = sum((alone, again is not None, abs(cosine) > _SAME_UPDATE))
        return Count(ways, 3, f"ways to the update (cosine {cosine:.2f})", numbers(made.refused))


@attack(
    "approved-twin",
    "runs a study without randomness again without one hospital, and subtracts the sums",
    who="the aggregator, with the approval of a person at every hospital,",
    limit="Twin studies",
)
def _approved_twin(setting: AttackSetting) -> Count:
    hospitals = setting.between(_HOSPITALS, _HOSPITALS)
    with attack_folder() as folder:
        cosine = _difference(_Deployment(names(hospitals), folder), _FULL_BATCHES)
        return Count(float(cosine > 1 - 1e-6), 1, f"update (cosine {cosine:.6f})")


TWINS: Final = attacks_of(vars())
