"""The policy has the last word: whose code may run, and what the agent asks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from secfed.crypto.attempt import SiteLimits
from secfed.deploy.policy.policy import Policy
from secfed.deploy.policy.proposal import proposal
from secfed.dp.accounting.unit import Unit
from secfed.errors import ConfigError
from secfed.study.study import Study
from tests.deploy.policy_case import NIGHT, POLICY, STUDY, keys, policy


class TestOwnCode:
    def test_only_named_code_may_be_imported(self, rules: Policy, tmp_path: Path) -> None:
        assert rules.own_code == frozenset()
        text = POLICY + '\n[algorithms."our_lab.code:Best"]\nrate = "any"\n[models."our_lab.nets:net"]\n'
        own = policy(tmp_path, text)
        assert own.own_code == {"our_lab.code:Best", "our_lab.nets:net"}
        with pytest.raises(ConfigError, match="is not permitted here"):
            Study.parse(STUDY.replace('"fedavg", local_epochs = 5,', '"os:system",'), own_code=own.own_code)

    def test_a_tower_of_one_s_own_is_permitted_in_its_place_and_never_by_any(self, tmp_path: Path) -> None:
        name = "our_lab.nets:tower"
        text = f"""
            study = {{ name = "own", rounds = 1 }}
            algorithm = {{ name = "vlp-fedavg" }}
            model = {{ name = "vision-language", image_tower = "{name}" }}
            data = {{ name = "chest-synthetic", sites = 5 }}
        """
        proposed = proposal(Study.parse(text))
        own = policy(tmp_path, proposed)
        assert own.own_code == {name}
        assert own.check(Study.parse(text, own_code=own.own_code), NIGHT) == []
        whatever = policy(tmp_path, proposed.replace(f'image_tower = ["{name}"]', 'image_tower = "any"'))
        assert whatever.own_code == frozenset()

    def test_arguments_of_own_code_need_a_rule_each(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "secfed_policy_case.py").write_text("def net(shape, classes, width=3, depth=1): ...\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        name = "secfed_policy_case:net"
        own = policy(tmp_path, POLICY + f'\n[models."{name}"]\nwidth = {{ max = 8 }}\n')
        text = STUDY.replace('"mlp", hidden = [32, 16]', f'"{name}", width = 9, depth = 2')
        found = own.check(Study.parse(text, own_code=own.own_code), NIGHT)
        assert [(item.key, item.permitted) for item in found] == [
            ("model.width", "at most 8"),
            ("model.depth", "nothing: the policy has no rule for it"),
        ]


class TestForTheAgent:
    def test_limits_go_to_the_protocol(self, rules: Policy) -> None:
        assert rules.limits() == SiteLimits(min_cohort=3, min_threshold=3, require_privacy=True)

    def test_budgets_go_to_the_ledger(self, rules: Policy) -> None:
        pytest.importorskip("dp_accounting")
        year, ever = rules.budgets("heart")
        assert (year.epsilon, year.delta, year.period_days, year.protects) == (10.0, 1e-5, 365, Unit.RECORD)
        assert (ever.epsilon, ever.period_days) == (30.0, None)
        with pytest.raises(ConfigError, match="no data set 'lung'"):
            rules.budgets("lung")

    def test_a_data_set_without_options_still_lets_no_study_name_files_of_this_machine(
        self, tmp_path: Path
    ) -> None:
        text = """
        study = {{ name = "scans-1", rounds = 40 }}
        algorithm = {{ name = "feddra" }}
        model = {{ name = "vision-language" }}
        protection = {{ name = "masked" }}
        [data]
        name = "image-text"
        path = "scans.zip"
        table = "captions.jsonl"
        site_column = "site"
        sites = ["charite", "hcuge", "ukhd"]
        {more}
        """
        head, _, rest = POLICY.partition("[data.options]")
        scans = head.replace('source = "csv"', 'source = "image-text"').replace("heart.csv", "scans.zip")
        found = policy(tmp_path, scans + rest[rest.index("[[data.budget]]") :])
        own = Study.parse(text.format(more=""), own_code=())
        named = Study.parse(text.format(more='tokenizer = "words"\nwords_file = "/etc/passwd"'), own_code=())
        assert "data.words_file" not in keys(found, own)
        assert "data.words_file" in keys(found, named)

    def test_the_data_set_has_its_place_on_this_machine(self, rules: Policy, study: Study) -> None:
        found = rules.data_set(study)
        assert found.path == Path("/srv/secfed/secret-place/heart-2026.csv")
        assert found.study_path == "heart.csv"
