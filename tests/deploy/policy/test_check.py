"""The policy has the last word: every violation is named, and what is not named is not permitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secfed.deploy.policy.check import shows_state
from secfed.deploy.policy.policy import Policy
from secfed.deploy.policy.sections import ProtectionRules
from secfed.dp.settings import PrivacySection
from secfed.errors import PolicyRefused
from secfed.study.study import Study
from tests.deploy.policy_case import NIGHT, NOON, POLICY, STUDY, keys, policy

ENCRYPTED = {"protection": {"name": "encrypted"}}
NARROW = {"[privacy]": '[privacy]\nadjacency = ["replace-record"]\naccountants = ["pld"]'}


class TestCheck:
    def test_a_permitted_study_passes_and_gets_its_data_set(self, rules: Policy, study: Study) -> None:
        assert rules.check(study, NIGHT) == []
        assert rules.enforce(study, NIGHT).name == "heart"

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("study.name", "lung-1"),
            ("study.rounds", 101),
            ("algorithm.local_epochs", 6),
            ("algorithm.learning_rate", 0.001),
            ("algorithm.learning_rate", 2.0),
            ("algorithm.optimizer", "adam"),
            ("algorithm.batch_size", 1),  # not named: only its default
            ("algorithm.device", "cuda"),
            ("model.hidden", (65,)),
            ("model.hidden", (8, 65)),
            ("data.path", "other.csv"),
            ("data.path", "/srv/secfed/secret-place/heart-2026.csv"),
            ("data.label_column", "name"),
            ("data.feature_columns", ("age", "postcode")),
            ("data.test_fraction", 0.5),
            ("protection.name", "encrypted"),
            ("protection.processes", 1),
            ("privacy.epsilon", 3.01),
            ("privacy.delta", 1e-4),
            ("privacy.metrics", "unprotected"),
            ("privacy.weights", "unprotected"),
        ],
    )
    def test_one_change_is_one_violation_of_that_key(
        self, rules: Policy, study: Study, key: str, value: object
    ) -> None:
        if key == "protection.processes":
            changed = study.replace("protection.name", "encrypted").replace(key, value)
            assert keys(rules, changed) == ["protection.name", key]
            return
        expected = "data.name" if key == "data.path" else key
        assert keys(rules, study.replace(key, value)) == [expected]

    @pytest.mark.parametrize(
        ("rules", "asked", "expected"),
        [
            ({"heart-*": "heart-1"}, {}, []),
            ({"heart-*": "*"}, {}, []),
            ({"heart-*": "heart"}, {}, ["study.name"]),  # a pattern is about the whole name and its case
            ({"heart-*": "HEART-*"}, {}, ["study.name"]),
            ({"[[hours]]": "[compute]\ngpu = true\n[[hours]]"}, {"algorithm.device": "cuda"}, []),
            ({"min_threshold = 3": "min_threshold = 4"}, {}, ["protection.threshold"]),
            ({"min_cohort = 3": "min_cohort = 4"}, {}, ["protection.min_cohort"]),
            ({"min_cohort = 3": "min_cohort = 3\ncolluders = 1"}, {}, ["protection.colluders"]),
            ({'["masked"]': '["encrypted"]'}, ENCRYPTED, []),
            ({"min_cohort = 3": 'min_cohort = 3\nreveal = ["sites"]'}, {}, ["protection.reveal"]),
            ({"min_cohort = 3": 'min_cohort = 3\nreveal = ["sites"]'}, {"protection.reveal": "sites"}, []),
            (
                {"min_cohort = 3": 'min_cohort = 3\nreveal = ["aggregator"]'},
                {"protection.reveal": "sites"},
                ["protection.reveal"],
            ),
            ({'["masked"]': '["encrypted"]\nreveal = ["sites"]'}, ENCRYPTED, []),
            ({}, {"protection.keystream": "aes-256-ctr"}, []),
            (
                {"min_cohort = 3": 'min_cohort = 3\nkeystreams = ["chacha20"]'},
                {"protection.keystream": "aes-256-ctr"},
                ["protection.keystream"],
            ),
            ({}, {"protection.graph": "sparse"}, []),
            (
                {"min_cohort = 3": 'min_cohort = 3\ngraphs = ["complete"]'},
                {"protection.graph": "sparse"},
                ["protection.graph"],
            ),
            # Without a selection every parameter is trained and sent.
            ({"optimizer =": 'travels = ["head.*"]\noptimizer ='}, {}, ["algorithm.travels"]),
            (
                {"optimizer =": 'travels = ["head.*"]\noptimizer ='},
                {"algorithm.travels": ["head.*"]},
                [],
            ),
            ({"label_above": 'patient_column = ["pid"]\nlabel_above'}, {}, ["data.patient_column"]),
            ({"label_above": 'patient_column = ["pid", ""]\nlabel_above'}, {}, []),
            ({"[models.mlp]": '[models.mlp]\nstart_sha256 = ["00"]'}, {}, []),  # no earlier model, no digest
            ({'["masked"]': '["encrypted"]\nkeystreams = ["aes-256-ctr"]'}, ENCRYPTED, []),
            (
                {'["masked"]': '["encrypted"]', "min_threshold = 3": "min_threshold = 4"},
                ENCRYPTED,
                ["protection.threshold"],
            ),
            ({"epsilon = 10.0": "epsilon = 2.0"}, {}, ["privacy.epsilon"]),  # no budget can ever cover it
            # At a larger delta the same epsilon says nothing certain about the budget's.
            ({"epsilon = 10.0": "epsilon = 2.0"}, {"privacy.delta": 1e-7}, []),
            (NARROW, {}, ["privacy.adjacency"]),  # a record's usual relation is add-or-remove
            (NARROW, {"privacy.adjacency": "replace-record"}, []),
            (
                NARROW,
                {"privacy.adjacency": "replace-record", "privacy.accountant": "rdp"},
                ["privacy.accountant"],
            ),
            (NARROW, {"privacy.unit": "site"}, ["privacy.unit", "privacy.adjacency"]),
        ],
    )
    def test_what_a_policy_demands(
        self, tmp_path: Path, study: Study, rules: dict[str, str], asked: dict[str, Any], expected: list[str]
    ) -> None:
        text = POLICY
        for old, new in rules.items():
            text = text.replace(old, new)
        for key, value in asked.items():
            study = study.replace(key, value)
        assert keys(policy(tmp_path, text), study) == expected

    def test_all_reasons_come_at_once_with_what_was_asked_and_what_is_permitted(
        self, rules: Policy, study: Study
    ) -> None:
        changed = study.replace("algorithm.local_epochs", 9).replace("privacy.epsilon", 8.0)
        found = rules.check(changed, NOON)
        assert [item.key for item in found] == ["algorithm.local_epochs", "privacy.epsilon", "hours"]
        assert (found[0].asked, found[0].permitted) == ("9", "at most 5")
        with pytest.raises(PolicyRefused) as caught:
            rules.enforce(changed, NOON)
        for reason in ("algorithm.local_epochs", "privacy.epsilon", "hours", "'heart-1'"):
            assert reason in caught.value.message

    def test_no_reason_tells_a_path_or_a_budget(self, rules: Policy, study: Study) -> None:
        for key, value in (("data.path", "x.csv"), ("privacy.epsilon", 20.0), ("data.label_column", "x")):
            text = " ".join(map(str, rules.check(study.replace(key, value), NOON)))
            assert text
            assert "secret-place" not in text
            assert "10" not in text

    def test_a_study_without_privacy_is_refused(self, rules: Policy) -> None:
        bare = Study.parse(STUDY.replace('privacy = { unit = "record", epsilon = 3.0, delta = 1e-5 }', ""))
        assert keys(rules, bare) == ["privacy"]

    def test_a_site_may_choose_to_permit_studies_without_privacy(self, tmp_path: Path, study: Study) -> None:
        found = policy(tmp_path, POLICY.replace("[privacy]", "[privacy]\nrequire = false"))
        bare = Study.parse(STUDY.replace('privacy = { unit = "record", epsilon = 3.0, delta = 1e-5 }', ""))
        assert keys(found, bare) == []
        assert keys(found, study.replace("privacy.epsilon", 4.0)) == ["privacy.epsilon"]
        assert not found.limits().require_privacy

    def test_patients_are_a_relation_that_a_policy_may_ask_for(self, tmp_path: Path, study: Study) -> None:
        grouped = {"unit": "group", "group_size": 8, "epsilon": 3.0, "delta": 1e-5}
        asked = study.replace("privacy", grouped)
        patients = asked.replace("privacy.adjacency", "replace-patient")
        assert "privacy.adjacency" not in keys(policy(tmp_path, POLICY), patients), "permitted by default"
        for wanted, other in (("replace-patient", asked), ("replace-record", patients)):
            strict = policy(tmp_path, POLICY.replace("[privacy]", f'[privacy]\nadjacency = ["{wanted}"]'))
            assert "privacy.adjacency" in keys(strict, other)
        strict = policy(tmp_path, POLICY.replace("[privacy]", '[privacy]\nadjacency = ["replace-patient"]'))
        assert "privacy.adjacency" not in keys(strict, patients)

    def test_a_demand_for_colluders_is_held_against_what_each_protection_tolerates(
        self, tmp_path: Path, study: Study
    ) -> None:
        every = POLICY.replace('["masked"]', '["plain", "masked", "encrypted"]')
        protections = {name: study.replace("protection", {"name": name}) for name in ("plain", "encrypted")}
        for demanded, refused in ((0, ["plain"]), (1, ["plain", "encrypted"]), (2, ["plain", "encrypted"])):
            rules = policy(
                tmp_path, every.replace("min_cohort = 3", f"min_cohort = 3\ncolluders = {demanded}")
            )
            found = [name for name, asked in protections.items() if keys(rules, asked)]
            assert found == refused
        # What an encrypted study writes under colluders changes nothing about who holds the key.
        boast = protections["encrypted"].replace("protection.colluders", 2)
        assert keys(rules, boast) == ["protection.colluders"]
        assert keys(policy(tmp_path, every), protections["encrypted"]) == []

    def test_hours_are_a_reason_to_wait_not_to_change(self, rules: Policy, study: Study) -> None:
        (found,) = rules.check(study, NOON)
        assert (found.key, found.temporary) == ("hours", True)
        with pytest.raises(PolicyRefused) as caught:
            rules.enforce(study, NOON)
        assert caught.value.remedy == "wait"

    def test_a_study_can_be_permitted_by_digest_alone(self, tmp_path: Path, study: Study) -> None:
        text = POLICY.replace('names = ["heart-*"]', f'digests = ["{study.digest().hex()}"]')
        exact = policy(tmp_path, text)
        assert keys(exact, study) == []
        assert keys(exact, study.replace("study.seed", 1)) == ["study.name"]

    @settings(max_examples=25)
    @given(
        epochs=st.integers(1, 10),
        rate=st.floats(0.001, 10),
        hidden=st.lists(st.integers(1, 128), min_size=1, max_size=3),
    )
    def test_ranges_hold_for_any_study(
        self, rules: Policy, study: Study, epochs: int, rate: float, hidden: list[int]
    ) -> None:
        changed = study.replace("algorithm.local_epochs", epochs).replace("algorithm.learning_rate", rate)
        found = keys(rules, changed.replace("model.hidden", tuple(hidden)))
        assert ("algorithm.local_epochs" in found) == (epochs > 5)
        assert ("algorithm.learning_rate" in found) == (not 0.01 <= rate <= 1.0)
        assert ("model.hidden" in found) == (max(hidden) > 64)

    @settings(max_examples=25)
    @given(st.sampled_from(["studies", "algorithms", "models", "data"]))
    def test_whatever_section_is_left_out_nothing_is_permitted(
        self, tmp_path_factory: pytest.TempPathFactory, study: Study, section: str
    ) -> None:
        import tomllib

        tables = tomllib.loads(POLICY)
        del tables[section]
        found = Policy._from_tables(tables)
        assert found.check(study, NIGHT) != []
        with pytest.raises(PolicyRefused):
            found.enforce(study, NIGHT)


class TestStart:
    """A model from a file, chosen by the study centre: no hospital begins with one that it did not permit."""

    START = "9f" * 32

    def asked(self) -> Study:
        start = f'start = "a/b.safetensors", start_sha256 = "{self.START}"'
        return Study.parse(STUDY.replace("[32, 16]", f"[32, 16], {start}"))

    def test_none_is_permitted_by_default(self, rules: Policy) -> None:
        (found,) = rules.check(self.asked(), NIGHT)
        assert (found.key, found.asked) == ("model.start_sha256", repr(self.START))

    @pytest.mark.parametrize(
        ("rule", "permitted"), [('"any"', True), (f'["{START}"]', True), ('["00"]', False)]
    )
    def test_a_rule_permits_models_by_digest_wherever_the_file_is(
        self, rule: str, permitted: bool, tmp_path: Path
    ) -> None:
        text = POLICY.replace("[models.mlp]\n", f"[models.mlp]\nstart_sha256 = {rule}\n")
        assert keys(policy(tmp_path, text), self.asked()) == ([] if permitted else ["model.start_sha256"])
        elsewhere = text.replace("[models.mlp]\n", '[models.mlp]\nstart = ["c.safetensors"]\n')
        assert "model.start" in keys(policy(tmp_path, elsewhere), self.asked())


class TestKeptState:
    """What a hospital keeps from round to round, a lying aggregator that reads sums could single out."""

    RULES = (
        POLICY.replace(
            'names = ["masked"]', 'names = ["plain", "masked", "encrypted"]\nkept_state = "{rule}"'
        )
        .replace("[privacy]", "[privacy]\nrequire = false")
        .replace(
            "[models.mlp]", '[algorithms.scaffold]\nlocal_epochs = "any"\nlearning_rate = "any"\n[models.mlp]'
        )
    )

    def found(self, folder: Path, rule: str = "refuse", privacy: bool = False, **changes: str) -> list[str]:
        text = STUDY.replace("privacy = {", "# " * (not privacy) + "privacy = {")
        for old, new in changes.items():
            assert f'"{old}"' in text
            text = text.replace(f'"{old}"', new)
        rules = policy(folder, self.RULES.replace("{rule}", rule))
        return [key for key in keys(rules, Study.parse(text, own_code=())) if key != "privacy.epsilon"]

    def test_it_is_refused_unless_the_policy_permits_it(self, tmp_path: Path) -> None:
        scaffold = '"scaffold", optimizer = "sgd"'
        assert self.found(tmp_path, fedavg=scaffold) == ["kept_state"]
        assert self.found(tmp_path, rule="permit", fedavg=scaffold) == []

    def test_by_default_it_is_refused(self) -> None:
        assert ProtectionRules().kept_state == "refuse"

    @pytest.mark.parametrize("protection", ['"masked", reveal = "sites"', '"encrypted"', '"plain"'])
    def test_where_hospitals_alone_read_sums_or_all_is_seen_anyhow_it_is_permitted(
        self, tmp_path: Path, protection: str
    ) -> None:
        scaffold = '"scaffold", optimizer = "sgd"'
        assert "kept_state" not in self.found(tmp_path, fedavg=scaffold, masked=protection)

    def test_with_privacy_and_where_nothing_is_kept_it_is_permitted(self, tmp_path: Path) -> None:
        assert "kept_state" not in self.found(tmp_path, privacy=True, fedavg='"scaffold", optimizer = "sgd"')
        assert self.found(tmp_path) == []

    @pytest.mark.parametrize(
        ("unit", "metrics", "refused"),
        [("site", "unprotected", True), ("site", "withheld", False), ("record", "unprotected", False)],
    )
    def test_metrics_without_noise_of_what_has_none_are_no_privacy(
        self, unit: str, metrics: str, refused: bool
    ) -> None:
        text = STUDY.replace('"fedavg"', '"ditto"').replace(
            'unit = "record"', f'unit = "{unit}", metrics = "{metrics}"'
        )
        assert shows_state(Study.parse(text, own_code=())) == refused

    def test_the_reason_says_what_helps(self, tmp_path: Path) -> None:
        rules = policy(tmp_path, self.RULES.replace("{rule}", "refuse"))
        text = STUDY.replace("privacy = {", "# privacy = {").replace(
            '"fedavg"', '"scaffold", optimizer = "sgd"'
        )
        with pytest.raises(
            PolicyRefused, match=r"'scaffold', which keeps .*: such an algorithm only where"
        ) as caught:
            rules.enforce(Study.parse(text, own_code=()), NIGHT)
        assert caught.value.keys == ("kept_state",)


def test_the_policy_has_thought_of_every_key_of_privacy() -> None:
    """A new key of [privacy] must be judged here: does it loosen what a site has agreed to?"""
    limited = {"unit", "epsilon", "delta", "adjacency", "accountant", "metrics", "weights", "noise"}
    harmless = {"clip_norm", "clip_quantile", "engine", "group_size", "distribution", "metrics_share"}
    assert set(PrivacySection.model_fields) == limited | harmless


def test_the_policy_has_thought_of_every_section_of_a_study(rules: Policy, study: Study) -> None:
    class Other:
        def __getattr__(self, name: str) -> Any:
            return getattr(study, name)

        def tables(self) -> dict[str, Any]:
            return {**study.tables(), "scripts": {}}

    assert keys(rules, Other()) == ["scripts"]  # type: ignore[arg-type]
