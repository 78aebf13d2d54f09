"""A policy file that is wrong is refused by key; the template permits nothing."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from secfed.config.schema import Strict
from secfed.deploy.enrolment.site_settings import load_settings
from secfed.deploy.policy.policy import Policy
from secfed.deploy.policy.sections import BudgetRules, Compute, PrivacyRules, ProtectionRules
from secfed.errors import ConfigError
from secfed.study.study import Study
from tests.deploy.policy_case import POLICY, STUDY, keys, policy

TEMPLATE = resources.files("secfed.deploy.policy").joinpath("policy.toml").read_text("utf-8")


@pytest.fixture(scope="module")
def study() -> Study:
    return Study.parse(STUDY, own_code=())


class TestFile:
    def test_the_template_is_valid_and_permits_nothing(self, tmp_path: Path, study: Study) -> None:
        found = policy(tmp_path, TEMPLATE)
        assert found.approve == "manual"
        assert {"study.name", "algorithm.name", "model.name", "data.name"} <= set(keys(found, study))
        assert found.limits().require_privacy

    @pytest.mark.parametrize(
        "model", [ProtectionRules, PrivacyRules, BudgetRules, Compute], ids=lambda one: one.__name__
    )
    def test_every_key_of_a_rule_is_in_the_template(self, model: type[Strict]) -> None:
        keys = {line.removeprefix("# ").split(" = ")[0] for line in TEMPLATE.splitlines()}
        assert set(model.model_fields) <= keys

    def test_the_examples_in_the_template_are_valid_too(self, tmp_path: Path) -> None:
        lines = []
        for line in TEMPLATE.splitlines():
            code = line.removeprefix("# ")
            is_code = line.startswith("# ") and (" = " in code.split("#")[0] or code.startswith("["))
            lines.append(code if is_code and not code.startswith("digests") else line)
        found = policy(tmp_path, "\n".join(lines))
        assert list(found.algorithms) == ["fedavg", "statistics"]
        assert [item.name for item in found.data] == ["heart"]
        assert len(found.hours) == 1
        assert found.protection.reveal == ("sites",)  # and so for every line that insists on something

    def test_what_is_not_utf_8_is_named_with_its_line(self, tmp_path: Path) -> None:
        path = tmp_path / "file.toml"
        path.write_bytes("a = 1\nb = 'Köln'\n".encode("latin-1"))
        for load in (Policy.load, load_settings):
            with pytest.raises(ConfigError, match=r"file\.toml, line 2: is not UTF-8 text") as caught:
                load(path)
            assert caught.value.remedy == "save it as UTF-8"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            pytest.param(f"x = {5000 * '9'}", "not valid TOML: ", id="digits"),
            pytest.param(f"x = {3000 * '['}{3000 * ']'}", "is nested too deeply", id="deep"),
            pytest.param(f"x = {900 * '['}{900 * ']'}", "is nested too deeply", id="less-deep"),
            pytest.param(
                f"[a]\nb = [1, 0x{5000 * 'f'}]", r"a\.b\[1\]: a number beyond 64 bits", id="hexadecimal"
            ),
            pytest.param(f"a = -{1 << 64}", "a: a number beyond 64 bits", id="negative"),
        ],
    )
    def test_numbers_and_arrays_that_cannot_be_read(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "file.toml"
        path.write_text(text)
        for load in (Policy.load, load_settings):
            with pytest.raises(ConfigError, match=rf"file\.toml: {message}"):
                load(path)

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ('approve = "automatic"', 'approve = "yes"', r"policy\.toml: approve: .*Remedy: set approve to"),
            ('timezone = "UTC"', "timezone = 1", r"policy\.toml: timezone: .*Remedy: set timezone to"),
            ('timezone = "UTC"', 'timezone = "Nowhere"', "timezone"),
            ("max_rounds = 100", "max_round = 100", r"studies\.max_round: unknown key.*max_rounds"),
            ('names = ["heart-*"]', 'names = "heart-*"', r"studies\.names"),
            ('names = ["heart-*"]', 'digests = ["abc"]', r"studies\.digests"),
            ('names = ["masked"]', 'names = ["mask"]', r"protection\.names"),
            ("min_cohort = 3", "min_cohort = 1", r"protection\.min_cohort"),
            ("max_epsilon = 3.0", "", r"privacy\.max_epsilon: is missing"),
            ("max_epsilon = 3.0", "max_epsilon = inf", r"privacy\.max_epsilon"),
            ("max_delta = 1e-5", "max_delta = 1.0", r"privacy\.max_delta"),
            ("[privacy]\nmax_epsilon = 3.0\nmax_delta = 1e-5", "", "privacy: this section is missing"),
            ("[privacy]", "[privcy]", "privcy: unknown section.*privacy"),
            (
                "local_epochs = { max = 5 }",
                "local_epochs = 5",
                r"algorithms\.fedavg\.local_epochs: is not a rule",
            ),
            ("local_epochs = { max = 5 }", "local_epochs = { most = 5 }", r"local_epochs\.most: unknown key"),
            (
                "local_epochs = { max = 5 }",
                "local_epoch = { max = 5 }",
                r"algorithms\.fedavg\.local_epoch: a rule for a setting .*did you mean 'local_epochs'",
            ),
            ("hidden = { max = 64 }", "hiden = { max = 64 }", r"models\.mlp\.hiden: .*mean 'hidden'"),
            (
                'site_column = ["site"]',
                'site_colum = ["site"]',
                r"data\[0\]\.options\.site_colum: .*mean 'site_column'",
            ),
            ("[models.mlp]\nhidden = { max = 64 }", "[models]\nmlp = 3", r"models\.mlp: is a value"),
            ('source = "csv"', "", r"data\[0\]\.source: is missing"),
            ('name = "heart"', 'name = "../heart"', r"data\[0\]\.name"),
            ("period_days = 365", "period_days = 0", r"data\[0\]\.budget\[0\]\.period_days"),
            ("epsilon = 10.0", "epsilon = -1.0", r"data\[0\]\.budget\[0\]\.epsilon"),
            ("[[hours]]", "[hours]", r"hours: is not a list of tables.*\[\[hours\]\]"),
            ('start = "20:00"', 'start = "8 pm"', r"hours\[0\]\.start"),
            ("[studies]", "[studies", "not valid TOML"),
        ],
    )
    def test_a_wrong_file_is_refused_by_key(self, tmp_path: Path, old: str, new: str, message: str) -> None:
        assert old in POLICY
        with pytest.raises(ConfigError, match=message) as caught:
            policy(tmp_path, POLICY.replace(old, new, 1))
        assert "policy.toml" in caught.value.message

    def test_rules_for_code_of_ones_own_are_not_guessed_at(self, tmp_path: Path) -> None:
        own = '[models."own.nets:net"]\nwidht = [3]\n'
        found = policy(tmp_path, POLICY.replace("[models.mlp]", own + "[models.mlp]"))
        assert set(found.models) == {"own.nets:net", "mlp"}

    def test_a_file_may_begin_with_a_byte_order_mark(self, tmp_path: Path) -> None:
        """As some editors begin UTF-8."""
        path = tmp_path / "file.toml"
        path.write_text("\ufeff" + POLICY, encoding="utf-8")
        assert Policy.load(path).studies.max_rounds == 100
        path.write_text('\ufeff[site]\nname = "ukhd"\n', encoding="utf-8")
        assert load_settings(path).site.name == "ukhd"

    def test_a_data_set_without_budget_is_refused_where_privacy_is_required(self, tmp_path: Path) -> None:
        text = POLICY[: POLICY.index("[[data.budget]]")]
        with pytest.raises(ConfigError, match="data set 'heart' has no budget"):
            policy(tmp_path, text)
        policy(tmp_path, text.replace("[privacy]", "[privacy]\nrequire = false"))

    def test_two_data_sets_do_not_share_a_ledger(self, tmp_path: Path) -> None:
        again = POLICY[POLICY.index("[[data]]") : POLICY.index("[[hours]]")]
        with pytest.raises(ConfigError, match="two data sets have one name"):
            policy(tmp_path, POLICY + again)

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"policy\.toml: No such file"):
            Policy.load(tmp_path / "policy.toml")
