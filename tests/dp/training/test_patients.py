"""The relation that hides a patient with all records: how far sums move, what is paid, what is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from secfed.audit.privacy import phrases
from secfed.audit.privacy.data_protection import build
from secfed.audit.render.html import to_html
from secfed.dp.accounting.events import Event, Gaussian, PoissonSampledGaussian
from secfed.dp.accounting.interface import Pld, statement
from secfed.dp.accounting.unit import Adjacency, GroupPartition, PrivacyUnit, Unit
from secfed.dp.mechanisms.loss_release import PlannedLosses
from secfed.dp.settings import PrivacySection
from secfed.dp.training.local_plan import _draw
from secfed.dp.training.local_privacy import LocalPrivacy, LossRelease, Phase
from secfed.dp.training.losses import DeclaredLoss
from secfed.errors import ConfigError
from tests.dp.local_case import ledger, local, paid, settings
from tests.dp.report_case import Case, Study, report
from tests.dp.report_case import settings as study_settings
from tests.dp.toys import GROUP, INFO_NCE, mlp, parameters, sgd

PATIENT = PrivacyUnit(Unit.GROUP, Adjacency.REPLACE_PATIENT)
ADD, REPLACE, HIDES = (Adjacency.ADD_OR_REMOVE_RECORD, Adjacency.REPLACE_RECORD, Adjacency.REPLACE_PATIENT)
WHOSE = tuple(number for number in range(16) for _ in range(1 + number % 4))  # 40 records of 16 patients
RECORDS, SIZE, CLIP = len(WHOSE), 4, 0.5
OF_ONE = np.flatnonzero(np.array(WHOSE) == 15)  # a patient with four records


def by_patient(**changes: object) -> PrivacySection:
    return settings(adjacency="replace-patient", group_size=SIZE, clip_norm=CLIP, **changes)


def planned(folder: Path, chosen: PrivacySection, patients: tuple[int, ...] | None = WHOSE) -> LocalPrivacy:
    """One step that every group takes part in."""
    privacy = local(ledger(folder, 500.0), chosen)
    privacy.plan(Phase("align", RECORDS, RECORDS, steps=1, patients=patients))
    return privacy


class TestGuarantee:
    PULL = DeclaredLoss("pull", False, lambda model, batch: -model(batch[0]).mean())

    def moved(self, folder: Path, chosen: PrivacySection) -> float:
        """How far the sum moves when one patient's records all turn round; the noise is the same."""
        rows, sums = torch.zeros(RECORDS, 1), []
        for sign in (1.0, -1.0):
            model = nn.Linear(1, 1, bias=False)
            nn.init.zeros_(model.weight)
            rows[torch.from_numpy(OF_ONE)] = sign * 1e6
            privacy = planned(folder, chosen)
            privacy.enter(1, "align")
            units = len(privacy.training("align")._partition)  # type: ignore[arg-type]
            privacy.run(model, sgd(model), self.PULL, (rows,), steps=1, phase="align")
            sums.append(float(parameters(model)) * units)
        return abs(sums[0] - sums[1])

    def test_replacing_a_whole_patient_moves_the_sum_by_two_clipping_norms(self, tmp_path: Path) -> None:
        assert self.moved(tmp_path, by_patient()) == pytest.approx(2 * CLIP, rel=1e-3)

    def test_without_the_relation_it_moves_by_that_for_every_group_of_theirs(self, tmp_path: Path) -> None:
        """The test above can fail; and patients that are known are not used where nobody asked."""
        of_rows = settings(group_size=SIZE, clip_norm=CLIP)
        assert self.moved(tmp_path, of_rows) == pytest.approx(3 * 2 * CLIP, rel=1e-3)

    @given(data=st.data(), seed=st.integers(0, 50))
    def test_one_group_contributes_otherwise_whatever_a_patient_becomes(
        self, data: st.DataObject, seed: int
    ) -> None:
        """On a loss that compares the records of a group with each other."""
        partition = GroupPartition.under(PATIENT, RECORDS, SIZE, seed=seed, patients=WHOSE)
        whom = data.draw(st.sampled_from(sorted(set(WHOSE))))
        theirs = torch.from_numpy(np.array(WHOSE) == whom)
        torch.manual_seed(seed)
        images, model = torch.randn(RECORDS, 6), mlp()
        texts, before = images + 0.1, images.clone()
        images[theirs] = data.draw(st.floats(-1e3, 1e3)) * torch.randn(int(theirs.sum()), 6)
        changed = 0
        for group in partition.groups:
            rows = torch.from_numpy(group)
            losses = [INFO_NCE(model, (one[rows], texts[rows])).item() for one in (before, images)]
            changed += losses[0] != losses[1]
        assert changed <= 1

    def test_a_loss_with_noise_moves_by_its_sensitivity(self) -> None:
        wanted = LossRelease(records=RECORDS, size=SIZE, releases=2, cap=6.0, patients=WHOSE)
        moves = []
        for unit in (PATIENT, GROUP):
            losses = PlannedLosses(wanted, unit, seed=0, multiplier=lambda _: 10.0)
            assert losses.event.adjacency is losses.all_events.adjacency is unit.adjacency
            content = np.zeros(RECORDS)
            content[OF_ONE] = 1e9
            means = [
                np.mean(np.clip([rows.max() for rows in map(one.__getitem__, losses.groups)], 0, 6.0))
                for one in (np.zeros(RECORDS), content)
            ]
            moves.append((means[1] - means[0]) / losses.sensitivity)
        assert moves[0] == pytest.approx(1.0)
        assert moves[1] > 2.0


class TestPlan:
    def test_the_division_does_not_depend_on_what_patients_are_called(self) -> None:
        first = GroupPartition.under(PATIENT, RECORDS, SIZE, seed=3, patients=WHOSE)
        other = GroupPartition.under(PATIENT, RECORDS, SIZE, seed=3, patients=[f"p{-n}" for n in WHOSE])
        assert all(np.array_equal(*pair) for pair in zip(first.groups, other.groups, strict=True))

    def test_a_batch_is_so_many_records_though_groups_are_not_full(self) -> None:
        phase = Phase("align", RECORDS, 10, steps=1, patients=WHOSE)
        partition, units, rate = _draw(by_patient(), phase, seed=0)
        assert partition is not None
        assert len({len(group) for group in partition.groups}) > 1
        assert units == len(partition)
        assert rate * (RECORDS - partition.dropped) == pytest.approx(10.0)

    def test_what_is_paid_is_stated_for_patients(self, tmp_path: Path) -> None:
        privacy = local(book_ := ledger(tmp_path), by_patient())
        losses = LossRelease(records=RECORDS, size=SIZE, releases=1, cap=6.0, patients=WHOSE)
        privacy.plan(Phase("align", RECORDS, 10, steps=2, patients=WHOSE), losses=losses)
        privacy.enter(1, "align")
        privacy.release_loss(lambda rows: 1.0)
        model = mlp()
        rows = torch.randn(RECORDS, 6)
        privacy.run(model, sgd(model), INFO_NCE, (rows, rows), steps=2, phase="align")
        assert [type(event) for event in paid(book_)] == [Gaussian, PoissonSampledGaussian]
        assert {event.adjacency for event in paid(book_)} == {HIDES}
        (standing,) = book_.standings()
        assert standing.spent is not None
        assert standing.spent.adjacency is HIDES
        assert 7.0 < standing.epsilon <= 8.0

    @pytest.mark.parametrize("losses", [False, True])
    def test_records_of_nobody_are_refused(self, tmp_path: Path, losses: bool) -> None:
        privacy = local(ledger(tmp_path), by_patient())
        asked = LossRelease(records=RECORDS, size=SIZE, releases=1, cap=6.0) if losses else None
        with pytest.raises(ConfigError, match=r"^privacy\.adjacency:.*which records") as refused:
            privacy.plan(
                Phase("align", RECORDS, 10, steps=1, patients=WHOSE if losses else None), losses=asked
            )
        assert "data.patient_column" in refused.value.remedy
        assert "replace-record" in refused.value.remedy

    def test_patients_are_in_no_repr(self) -> None:
        phase = Phase("align", 2, 2, patients=(73519, 73519))
        release = LossRelease(records=2, size=2, releases=1, cap=1.0, patients=(73519, 73519))
        assert "73519" not in repr(phase) + repr(release)


class TestRelation:
    def test_it_costs_what_replacing_a_record_costs(self) -> None:
        events: list[Event] = [PoissonSampledGaussian(HIDES, 0.1, 2.0, 20), Gaussian(HIDES, 9.0, 3)]
        as_record = [event.restated(REPLACE) for event in events]
        assert statement(events, 1e-5) == replace(statement(as_record, 1e-5), adjacency=HIDES)


class TestReport:
    @staticmethod
    def page(folder: Path, *events: Event) -> str:
        case = Case(folder, accountant=Pld(1e-3), epsilon=50.0)
        privacy = {"unit": "group", "group_size": 8, "adjacency": "replace-patient", "epsilon": 3.0}
        study = Study(case, "heart", "heart", study_settings({**privacy, "delta": 1e-5}, len(events)))
        for number, event in enumerate(events, 1):
            study.round(number, ("update/w",), event=event)
        made = report(study.close())
        assert made.verification.verified
        assert build(made)
        return to_html(made)

    def test_it_says_patient_in_words(self, tmp_path: Path) -> None:
        page = self.page(tmp_path, Gaussian(HIDES, 9.0, 1))
        assert "protecting one patient, relation replace-patient" in page
        assert "one patient (replace-patient)" in page
        assert phrases.ADJACENCY["replace-patient"] in page
        assert "all records of a patient at one site are protected" in page
        assert "is protected less than one record" not in page

    def test_beside_other_uses_of_single_records_it_says_record(self, tmp_path: Path) -> None:
        page = self.page(tmp_path, Gaussian(HIDES, 9.0, 1), Gaussian(ADD, 9.0, 1))
        assert "protecting one patient" not in page
        assert "protecting one record, relation replace-record" in page
        assert "is protected less than one record" in page

    def test_every_relation_has_words(self) -> None:
        assert set(phrases.ADJACENCY) == set(map(str, Adjacency))
