"""docs/operators.md and the README of the example name commands, codes and metrics that exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import pytest
from typer.main import get_command

from secfed import errors
from secfed.algorithms.data.prepare import PreparedSites
from secfed.cli import guard
from secfed.cli.app import app
from secfed.crypto.identity import Identity, Roster
from secfed.deploy.agent.site_metrics import SiteMetrics
from secfed.deploy.agent.status import StatusBoard
from secfed.deploy.aggregator.metrics import CentreMetrics
from secfed.deploy.aggregator.study import CentralStudy
from secfed.deploy.policy.policy import Policy
from secfed.deploy.transport.signals import Stopped
from secfed.study.build import build_data
from secfed.study.study import Study
from tests.conftest import ROOT
from tests.deploy.agent_case import BUDGETED, permit
from tests.deploy.centre_case import found_consortium

GUIDE: Final = ROOT / "docs" / "operators.md"
EXAMPLE: Final = ROOT / "examples" / "three-hospitals"
TUTORIAL: Final = ROOT / "docs" / "tutorials" / "three-machines.md"
README: Final = ROOT / "README.md"
PAGES: Final = (GUIDE, EXAMPLE / "README.md", TUTORIAL, ROOT / "examples" / "flower" / "README.md", README)


def commands_in(path: Path) -> Iterator[list[str]]:
    """Every ``secfed ...`` in code blocks and in inline code."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"(?ms)^```\w*\n(.*?)^```", text)
    lines = re.sub(r"\\\n\s*", " ", "".join(blocks)).splitlines()
    lines += re.findall(r"`(secfed [^`]+)`", re.sub(r"(?ms)^```.*?^```", "", text))
    for line in lines:
        found = re.search(
            r"(?:^|[/ ])secfed +((?:consortium|site|agent|policy|aggregate|audit|transcript)\b.*)", line
        )
        if found and "|" not in found[1]:
            yield shlex.split(found[1].replace("...", ""), comments=True)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_command_and_option_exists(path: Path) -> None:
    seen = 0
    for words in commands_in(path):
        command: click.Command = get_command(app)
        rest = list(words)
        while rest and hasattr(command, "commands"):
            assert rest[0] in command.commands, f"secfed {' '.join(words)}"
            command = command.commands[rest.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        used = {word.partition("=")[0] for word in rest if word.startswith("-")}
        assert used <= known, f"secfed {' '.join(words)}: {used - known}"
        seen += 1
    assert seen >= 5


def subclasses(kind: type[errors.SecfedError]) -> Iterator[type[errors.SecfedError]]:
    yield kind
    for sub in kind.__subclasses__():
        yield from subclasses(sub)


def test_every_exit_code_is_explained() -> None:
    listed: set[int] = set()
    section = GUIDE.read_text(encoding="utf-8").partition("\n## What went wrong\n")[2]
    for cell in re.findall(r"(?m)^\| ([\d, ]+) \|", section):
        listed |= {int(code) for code in cell.split(",")}
    own = {kind for kind in subclasses(errors.SecfedError) if kind.__module__.startswith("secfed.")}
    known = {kind.exit_code for kind in own} | {guard.EXIT_INTERNAL, guard.EXIT_SYSTEM, Stopped.exit_code}
    assert listed - {137} == known  # 137: 128 + SIGKILL, the shell's


def test_every_metric_is_listed(tmp_path: Path) -> None:
    consortium, folders = found_consortium(tmp_path, ("charite", "hcuge", "ukhd"))
    permit(folders["charite"], policy=BUDGETED)
    collectors = (
        StatusBoard(tmp_path / "status.json", "charite"),
        SiteMetrics(folders["charite"]),
        CentreMetrics(consortium, 60.0),
    )
    served = {s.name for one in collectors for metric in one.collect() for s in metric.samples}
    listed = re.findall(r"`(secfed_(?:agent|aggregator)_\w+)`", GUIDE.read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(served)


def test_files_that_the_guide_copies_exist() -> None:
    copied = re.findall(r"\bcp (\S+)", GUIDE.read_text(encoding="utf-8"))
    copied = [name for name in copied if name.startswith("deploy/")]
    assert len(copied) == 3
    assert [name for name in copied if not (ROOT / name).is_file()] == []


VISION_LANGUAGE: Final = """
[study]
name = "xrays-1"
rounds = 25
[algorithm]
name = "feddra"
batch_size = 64
precision = "bfloat16"
device = "cuda"
[model]
name = "vision-language"
size = "paper"
gradient_checkpointing = true
image_weights = "/srv/secfed/weights/deit_base_patch16_224.safetensors"
text_weights = "/srv/secfed/weights/bert-base-cased"
[data]
name = "image-text"
path = "chest"
table = "{site}.jsonl"
partition = "by-file"
sites = ["charite", "hcuge", "ukhd", "amc", "uza"]
image_column = "file"
text_columns = ["findings", "impression"]
patient_column = "patient"
[protection]
name = "masked"
threshold = 4
[privacy]
unit = "group"
group_size = 4
epsilon = 8.0
delta = 1e-5
"""


def written() -> tuple[list[str], list[str]]:
    """Policies and study files of the guide."""
    found = re.findall(r"(?ms)^```toml\n(.*?)^```", GUIDE.read_text(encoding="utf-8"))
    policies = [text for text in found if "[study]" not in text and not text.startswith("[model]")]
    return policies, [text for text in found if "[study]" in text]


def policies_in(folder: Path) -> list[Policy]:
    policies = []
    for at, text in enumerate(written()[0]):
        path = folder / f"{at}.toml"
        path.write_text(text, encoding="utf-8")
        policies.append(Policy.load(path))
    assert len(policies) == 2
    return policies


def test_the_study_file_of_the_guide_is_permitted_by_its_first_policy_and_runs(tmp_path: Path) -> None:
    policy = policies_in(tmp_path)[0]
    (text,) = written()[1]
    study = Study.parse(text)
    asked, names = {"charite", "hcuge", "ukhd", "amc"}, tuple(build_data(study).sites)
    assert set(names) == asked
    evening = datetime(2026, 3, 2, 21, 30).astimezone()  # a Monday, in the policy's hours
    assert policy.check(study, evening, sites=len(names)) == []
    assert [str(item.key) for item in policy.check(study, evening.replace(hour=12), sites=4)] == ["hours"]
    for key, value in (("data.site_column", "ward"), ("data.path", "lung.csv")):
        assert policy.check(study.replace(key, value), evening, sites=len(names))
    roster = Roster.of(Identity.generate("aggregator"), [Identity.generate(name) for name in names])
    assert CentralStudy(study, roster).asked == roster.sites
    # One hospital's table, under the name that its own policy gives it.
    rows = [f"charite,{40 + at},{at % 2},{200 + at},{at % 3}" for at in range(40)]
    table = tmp_path / "heart-2026.csv"
    table.write_text("\n".join(["site,age,sex,chol,num", *rows, "hcuge,1,1,1,1"]), encoding="utf-8")
    data = build_data(study.replace("data.path", str(table)))
    assert isinstance(data, PreparedSites)
    own = data.for_record_privacy().site("charite")
    assert len(own.train_y) + len(own.test_y) == len(rows)


def test_the_second_policy_of_the_guide_permits_what_it_says(tmp_path: Path) -> None:
    policies = policies_in(tmp_path)
    study, now = Study.parse(VISION_LANGUAGE), datetime.now(UTC)
    assert policies[1].check(study, now, sites=5) == []
    for key, value in (
        ("algorithm.learning_rate", 0.1),
        ("algorithm.loss_batch_size", 2),
        ("model.text_weights", "/etc"),
        ("data.text_columns", ["name"]),
        ("data.size", 512),
        ("privacy.epsilon", 9.0),
    ):
        changed = study.replace(key, value)
        assert [str(item.key) for item in policies[1].check(changed, now, sites=5)] == [key]


def test_the_start_of_the_guide_needs_a_rule_in_the_policy_as_it_says(tmp_path: Path) -> None:
    (text,) = re.findall(r"(?ms)^```toml\n(\[model\]\n.*?)^```", GUIDE.read_text(encoding="utf-8"))
    study = Study.parse(written()[1][0]).replace("model", tomllib.loads(text)["model"])
    study = study.replace("model.start_sha256", "9f" * 32)
    evening = datetime(2026, 3, 2, 21, 30).astimezone()
    rule = 'start_sha256 = ["9f86d0..."]'
    assert rule in GUIDE.read_text(encoding="utf-8")
    permits = written()[0][0].replace(
        "[models.mlp]\n", f"[models.mlp]\n{rule.replace('86d0...', '9f' * 31)}\n"
    )
    (tmp_path / "policy.toml").write_text(permits, encoding="utf-8")
    for policy, refused in (
        (policies_in(tmp_path)[0], ["model.start_sha256"]),
        (Policy.load(tmp_path / "policy.toml"), []),
    ):
        assert [item.key for item in policy.check(study, evening, sites=4)] == refused
