"""``[oidc]`` of site.toml: each error names the key, and a section that has no effect is an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from secfed.deploy.enrolment.sign_in_settings import OidcSection
from secfed.deploy.enrolment.site_settings import load_settings, template
from secfed.errors import ConfigError

ISSUER = 'issuer = "https://login.uk.example/realms/uk"\n'
CLIENT = 'client_id = "secfed-console"\n'


def load(folder: Path, text: str) -> OidcSection:
    (folder / "site.toml").write_text(f'[site]\nname = "charite"\n[oidc]\n{text}')
    return load_settings(folder / "site.toml").oidc


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (CLIENT, "oidc.issuer: is missing, so that nobody would have to sign in"),
        ("reauthenticate = true", "oidc.issuer: is missing"),
        (ISSUER, "oidc.client_id: is missing"),
        ('issuer = "http://login.uk.example/"\n' + CLIENT, "oidc.issuer: begins with neither"),
        ('issuer = "https://me:s3cret@login.uk.example/"\n' + CLIENT, "oidc.issuer: holds a user name"),
        ('issuer = "https://login.uk.example/?a=b"\n' + CLIENT, "oidc.issuer: is longer than"),
        ('issuer = "https://login.uk.example/a,b"\n' + CLIENT, "oidc.issuer: is longer than"),
        (f'issuer = "https://login.uk.example/{"a" * 200}"\n' + CLIENT, "oidc.issuer: is longer than"),
        ('issuer = "login.uk.example"\n' + CLIENT, "oidc.issuer: is not an address"),
        ('issuer = "https://login.uk.example/a(b"\n' + CLIENT, "oidc.issuer: is longer than"),
        ('issuer = "https://login.uk.example/a)b"\n' + CLIENT, "oidc.issuer: is longer than"),
        (ISSUER + 'client_id = "a b"', "oidc.client_id"),
        (ISSUER + CLIENT + 'allowed = ["a@uk.example", " b@uk.example"]', "oidc.allowed[1]: is empty"),
        (ISSUER + CLIENT + 'allowed = [""]', "oidc.allowed[0]: is empty"),
        (ISSUER + CLIENT + 'allowed = ["a, b"]', "oidc.allowed[0]: is empty"),
        (ISSUER + CLIENT + "port = 1023", "oidc.port"),
        (ISSUER + CLIENT + "port = 65536", "oidc.port"),
        (ISSUER + CLIENT + 'claim = "name"', "oidc.claim"),
        (ISSUER + CLIENT + "allowed = []", "oidc.allowed"),
        (ISSUER + CLIENT + "max_age_s = 59", "oidc.max_age_s"),
        (ISSUER + CLIENT + "max_age_s = 43201", "oidc.max_age_s"),
        (ISSUER + CLIENT + "client_secret = 's3cret'", "oidc.client_secret: unknown key"),
    ],
)
def test_wrong_settings_are_refused_by_key(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.message.startswith(f"{tmp_path / 'site.toml'}: {key}")
    assert caught.value.remedy
    assert "s3cret" not in str(caught.value)


def test_a_provider_on_this_machine_needs_no_tls(tmp_path: Path) -> None:
    assert load(tmp_path, 'issuer = "http://127.0.0.1:8080/realms/uk"\n' + CLIENT).issuer


def test_without_an_issuer_nobody_signs_in(tmp_path: Path) -> None:
    assert load(tmp_path, "").issuer is None


def test_the_template_shows_every_key_as_it_can_be_written(tmp_path: Path) -> None:
    _, _, section = template("charite").partition("[oidc]\n")
    shown = re.sub("^# (?=[a-z_]+ = )", "", section, flags=re.MULTILINE)
    settings = load(tmp_path, shown)
    assert settings.model_fields_set == set(OidcSection.model_fields)
    defaults = {"port", "claim", "max_age_s", "reauthenticate"}
    assert {name: getattr(settings, name) for name in defaults} == {
        name: OidcSection.model_fields[name].default for name in defaults
    }
