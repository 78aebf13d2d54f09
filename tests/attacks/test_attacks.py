"""``secfed attack``: every attack ends as SECURITY.md says, and one that should not succeed is noticed."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from secfed.attack import masked, scene
from secfed.attack.attack import Attack, AttackSetting, Impossible
from secfed.attack.catalogue import Outcome, attacks_on, run_attacks
from secfed.attack.masked import MASKED
from secfed.attack.plain import PLAIN
from secfed.cli.app import app
from secfed.cli.attack import _print_table
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.masked import client as masked_site
from secfed.dp.mechanisms.noise import SiteNoise
from tests.journals import NoMemory

SECURITY = Path(__file__).parents[2] / "SECURITY.md"
BY_NAME = {attack.name: attack for attack in MASKED}
STOPPED = [attack for attack in MASKED if attack.limit is None]
LIMITS = [attack for attack in MASKED if attack.limit is not None]


def named(attack: Attack) -> str:
    return attack.name


@pytest.mark.parametrize("hospitals", [3, 4, 8])
@pytest.mark.parametrize("attack", STOPPED, ids=named)
def test_the_aggregator_learns_nothing(attack: Attack, hospitals: int) -> None:
    (outcome,) = run_attacks([attack], AttackSetting(hospitals, seed=hospitals))
    assert outcome.as_documented, outcome.evidence
    assert outcome.evidence is not None or hospitals < 5  # some need more than that


@pytest.mark.parametrize("hospitals", [5, 8])
@pytest.mark.parametrize("attack", LIMITS, ids=named)
def test_what_the_documents_admit_is_true(attack: Attack, hospitals: int) -> None:
    assert attack.run(AttackSetting(hospitals)).learned == "everything"


@pytest.mark.parametrize("attack", LIMITS, ids=named)
def test_three_hospitals_are_too_few_for_some_limits(attack: Attack) -> None:
    if attack.name in ("all-others-help", "made-up-model"):
        assert attack.run(AttackSetting(3)).learned == "everything"
    else:
        with pytest.raises(Impossible):
            attack.run(AttackSetting(3))


def test_plain_hides_nothing() -> None:
    (outcome,) = run_attacks(PLAIN, AttackSetting(5))
    assert outcome.evidence is not None
    assert outcome.evidence.learned == "everything"


def test_attacks_on_encrypted_sums_end_as_documented() -> None:
    pytest.importorskip("tenseal")
    outcomes = run_attacks(attacks_on("encrypted"), AttackSetting(4))
    assert all(outcome.as_documented for outcome in outcomes)
    learned = {outcome.attack.name: outcome.evidence.learned for outcome in outcomes if outcome.evidence}
    assert learned["given-key"] == "everything"
    assert learned["read-upload"] == "nothing"


def test_attacks_on_closed_sums_end_as_documented() -> None:
    for hospitals in (3, 6):  # an even number of survivors, too
        outcomes = run_attacks(attacks_on("closed"), AttackSetting(hospitals))
        assert all(outcome.as_documented for outcome in outcomes), [one.ended for one in outcomes]
    learned = {outcome.attack.name: outcome.evidence.learned for outcome in outcomes if outcome.evidence}
    assert learned.pop("given-key-sum") == "everything"
    assert set(learned.values()) == {"nothing"}
    assert len(learned) == 5


def test_the_page_about_attacks_counts_them() -> None:
    page = (SECURITY.parent / "docs" / "attacks.md").read_text(encoding="utf-8")
    attacks = attacks_on("masked")
    assert f"plays {len(attacks)} attacks" in page
    assert f"{sum(one.limit is None for one in attacks)} bring nothing. Seven succeed" in page
    assert sum(one.limit is not None for one in attacks) == 7


def test_every_limit_is_a_heading_of_the_security_document() -> None:
    headings = set(re.findall(r"^#{2,3} (.+)$", SECURITY.read_text(), re.MULTILINE))
    limits = {
        attack.limit
        for attack in (*attacks_on("masked"), *attacks_on("closed"), *PLAIN)
        if attack.limit is not None
    }
    assert limits <= headings


# A defence is lifted: the attack then succeeds, and that is noticed.


def not_as_documented(name: str, hospitals: int = 5) -> str:
    (outcome,) = run_attacks([BY_NAME[name]], AttackSetting(hospitals))
    assert not outcome.as_documented
    assert outcome.evidence is not None
    return outcome.evidence.learned


def test_without_a_journal_the_second_sum_gives_the_update_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene.SimulatedConsortium, "journal", lambda _: NoMemory())
    assert not_as_documented("second-sum") == "everything"


def test_a_threshold_for_fewer_colluders_lets_hidden_peers_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(setting: AttackSetting) -> object:
        return masked._isolate(setting, 1, threshold=3, limits=SiteLimits(colluders=0))

    attack = BY_NAME["hidden-peers"]
    monkeypatch.setitem(BY_NAME, "hidden-peers", Attack(**{**vars(attack), "run": careless}))
    assert not_as_documented("hidden-peers") == "everything"


@pytest.mark.parametrize("name", ["another-model", "small-cohort"])
def test_an_attack_that_only_a_second_line_stops_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Masks that do not cancel, and the rule for thresholds: but the refusal of the table did not come."""
    monkeypatch.setattr(masked_site, "check_specification", lambda *_args, **_kwargs: None)
    assert not_as_documented(name) == "nothing"


# The command.


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["attack", *arguments])
    return result.exit_code, result.output


def test_the_table_says_who_tried_what_and_how_it_ended() -> None:
    code, text = run("--only", "second-sum", "--only", "all-others-help")
    assert code == 0
    assert "the aggregator has everybody but one hospital summed once more" in text
    assert "refusal 12" in text
    assert "everything: the exact update" in text
    assert "What each party sees" in text
    assert "1 attack brought nothing beyond the sum" in text


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize("last", ["Stopped by", "SECURITY.md"])
def test_names_are_whole_on_narrow_terminals(last: str, columns: int) -> None:
    attacks = [one for one in attacks_on("masked") if (one.limit is None) == (last == "Stopped by")]
    console = Console(width=columns, file=io.StringIO())
    _print_table(console, [Outcome(attack, None) for attack in attacks], last)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= columns
    # Once in the table, and once where it says what the attack does.
    assert all(text.count(attack.name) >= 2 for attack in attacks)


def test_json_has_one_record_per_attack() -> None:
    chosen = ("second-sum", "all-others-help", "overflow-oracle", "framing")
    code, text = run("--json", "--hospitals", "3", *(word for name in chosen for word in ("--only", name)))
    assert code == 0
    keys = ("name", "expected", "outcome", "learned", "documented_in")
    assert [tuple(record) for record in json.loads(text)] == [keys] * len(chosen)
    nothing, everything = ("nothing learned",) * 2, ("everything learned",) * 2
    assert {tuple(record.values()) for record in json.loads(text)} == {
        ("second-sum", *nothing, "nothing", None),
        ("all-others-help", *everything, "everything", "What each party sees"),
        ("overflow-oracle", *nothing, "nothing", None),
        ("framing", "nothing learned", "not played: not possible with so few", None, None),
    }


def test_json_says_what_was_learned_where_nothing_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene.SimulatedConsortium, "journal", lambda _: NoMemory())
    code, text = run("--json", "--only", "second-sum")
    (record,) = json.loads(text)
    assert code == 1
    assert (record["expected"], record["outcome"]) == ("nothing learned", "everything learned")


def test_a_hole_is_exit_code_1_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene.SimulatedConsortium, "journal", lambda _: NoMemory())
    code, text = run("--only", "second-sum")
    assert code == 1
    assert "Not as documented: second-sum." in text


def test_an_unknown_attack_is_one_clear_error() -> None:
    code, text = run("--only", "secondsum")
    assert code not in (0, 1)
    assert "no such attack" in text
    assert "second-sum" in text


def test_privacy_is_attacked_by_epsilon() -> None:
    code, text = run("--privacy", "8", "--only", "record", "--only", "site")
    assert code == 0
    assert "claimed, and shown by 20,000 guesses" in text
    assert "add-or-remove-record" in text
    assert "Nothing shown is above the claim" in text


def test_an_epsilon_that_is_refuted_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SiteNoise.share_variance
    monkeypatch.setattr(SiteNoise, "share_variance", lambda self, item: honest(self, item) / 4)
    code, text = run("--privacy", "2", "--only", "site")
    assert code == 1
    assert "More was shown than is claimed: site." in text


def test_privacy_as_json() -> None:
    code, text = run("--privacy", "1", "--only", "record", "--json")
    (record,) = json.loads(text)
    assert code == 0
    assert record["sound"]
    assert 0 < record["shown_of_any"] <= record["shown"] <= record["claimed"] == 1


@pytest.mark.parametrize("option", [("--protection", "masked"), ("--hospitals", "8"), ("--seed", "1")])
def test_what_has_no_effect_beside_privacy_is_refused(option: tuple[str, str]) -> None:
    code, text = run("--privacy", "8", *option)
    assert code not in (0, 1)
    assert f"{option[0]}: has no effect beside --privacy" in text


@pytest.mark.parametrize("epsilon", ["0", "-1", "nan"])
def test_an_impossible_epsilon_is_one_clear_error(epsilon: str) -> None:
    code, text = run("--privacy", epsilon)
    assert code not in (0, 1)
    assert "Error" in text
    assert "Traceback" not in text
