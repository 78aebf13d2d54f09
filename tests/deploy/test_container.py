"""Facts of the image and of the compose file that a reviewer asks for. Nothing is built here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import ROOT
from tests.layout import PROJECT, ROOMS

FOLDER: Final = ROOT / "deploy" / "container"
CONTAINERFILE: Final = (FOLDER / "Containerfile").read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments), continued lines joined, comments dropped."""
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", CONTAINERFILE))
    found = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(words[0], words[1]) for words in found]


def values(name: str) -> list[str]:
    return [value for kind, value in instructions() if kind == name]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML to read compose.yaml")
    return dict(yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8")))


def test_the_base_image_is_named_with_a_version() -> None:
    (base,) = (value.removeprefix("BASE=") for value in values("ARG") if value.startswith("BASE="))
    image, _, tag = base.partition(":")
    assert image
    assert re.fullmatch(r"3\.\d+-[a-z]+-[a-z]+", tag)
    python = tuple(map(int, tag.split("-")[0].split(".")))
    least = re.fullmatch(r">=(\d+)\.(\d+)", PROJECT["project"]["requires-python"])
    assert python >= tuple(map(int, least.groups()))
    assert {value.split()[0] for value in values("FROM")} == {"${BASE}"}


def test_the_image_does_not_run_as_root() -> None:
    (user,) = values("USER")
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)
    last_from = max(at for at, (kind, _) in enumerate(instructions()) if kind == "FROM")
    kinds = [kind for kind, _ in instructions()][last_from:]
    assert kinds.index("USER") < kinds.index("ENTRYPOINT")


def test_every_installation_is_constrained() -> None:
    commands = re.findall(r"pip install [^;&]+", " ".join(values("RUN")))
    assert len(commands) == 2
    assert all("--constraint constraints.txt" in command for command in commands)
    assert all("$source" in command for command in commands)


def test_a_wheelhouse_keeps_the_build_offline() -> None:
    (command,) = (value for value in values("RUN") if "pip install" in value)
    assert 'source="--no-index --find-links /context/wheelhouse"' in command
    assert "--mount=type=bind,source=.,target=/context" in command
    assert "--no-build-isolation" in command  # isolation would ask an index for setuptools


def test_the_build_sees_the_sources_and_nothing_else() -> None:
    rules = (FOLDER / "Containerfile.dockerignore").read_text(encoding="utf-8").split("\n")
    rules = [rule for rule in rules if rule and not rule.startswith("#")]
    assert rules[0] == "*"
    seen = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    own = [value.split()[:-1] for value in values("COPY") if not value.startswith("--from")]
    copied = {source for sources in own for source in sources}
    assert copied == {
        "secfed",
        *ROOMS,
        "examples",
        "README.md",
        "LICENSE",
        "NOTICE",
        "pyproject.toml",
        "constraints.txt",
    }
    assert seen == copied | {"wheelhouse"}
    assert all((ROOT / name).exists() for name in seen - {"wheelhouse"})


def test_the_image_knows_its_extras() -> None:
    extras = re.search(r"'\.\[([a-z,-]+)\]'", CONTAINERFILE)
    assert set(extras[1].split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    assert "net" in extras[1].split(",")


@pytest.mark.parametrize("service", ["agent", "aggregator"])
def test_services_have_no_rights_and_a_read_only_root(service: str, compose: dict[str, Any]) -> None:
    found = compose["services"][service]
    assert found["user"] == values("USER")[0]
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert "cap_add" not in found
    assert "privileged" not in found
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert found["mem_limit"] == found["memswap_limit"]
    assert found["ulimits"]["core"] == 0
    (tmpfs,) = found["tmpfs"]
    assert {"noexec", "nosuid", "nodev"} <= set(tmpfs.split(":")[1].split(","))
    assert found["restart"] == "on-failure"


def test_the_compose_file_says_how_its_restarts_differ_from_those_of_the_units() -> None:
    head = (FOLDER / "compose.yaml").read_text(encoding="utf-8").split("name: secfed")[0]
    said = re.sub(r"\s*\n# ?", " ", head)
    assert "with one difference: restarts" in said
    for unit in ("secfed-agent.service", "secfed-aggregator@.service"):
        text = (ROOT / "deploy" / "systemd" / unit).read_text(encoding="utf-8")
        excluded = re.findall(r"(?m)^RestartPreventExitStatus=(.+)$", text)
        assert len(excluded) == 1
        assert all(re.search(rf"\b{code}, an? ", said) for code in excluded[0].split())


def test_images_carry_the_version_of_the_project(compose: dict[str, Any]) -> None:
    images = {service["image"] for service in compose["services"].values()}
    assert images == {f"secfed:{PROJECT['project']['version']}"}


def test_only_the_aggregator_listens(compose: dict[str, Any]) -> None:
    assert "ports" not in compose["services"]["agent"]
    assert len(compose["services"]["aggregator"]["ports"]) == 1


def test_data_of_a_hospital_is_mounted_read_only(compose: dict[str, Any]) -> None:
    data = [volume for volume in compose["services"]["agent"]["volumes"] if ":/data" in volume]
    assert [volume.endswith(":ro") for volume in data] == [True]


def test_the_build_file_that_compose_names_exists(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        context = (FOLDER / service["build"]["context"]).resolve()
        assert context == ROOT
        assert (context / service["build"]["dockerfile"]).is_file()


def test_commands_of_the_services_are_commands_of_secfed(compose: dict[str, Any]) -> None:
    from typer.main import get_command

    from secfed.cli.app import app

    known = get_command(app)
    assert hasattr(known, "commands")
    for service in compose["services"].values():
        assert service["command"][0] in known.commands


def test_folder_has_what_the_guide_names() -> None:
    assert {path.name for path in Path(FOLDER).iterdir()} == {
        "Containerfile",
        "Containerfile.dockerignore",
        "compose.yaml",
    }
