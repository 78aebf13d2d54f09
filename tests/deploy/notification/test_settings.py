"""Settings of notifications: each error names the key, and no secret is ever quoted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from secfed.deploy.enrolment.site_settings import SiteSettings, load_settings, template
from secfed.deploy.notification.channels import channels_of
from secfed.deploy.notification.settings import read_secrets
from secfed.errors import ConfigError
from tests.conftest import ROOT

MAIL = 'host = "mail.uk.example"\nsender = "a@uk.example"\nto = ["b@uk.example"]\n'


def load(folder: Path, text: str) -> SiteSettings:
    (folder / "site.toml").write_text(f'[site]\nname = "charite"\n{text}')
    return load_settings(folder / "site.toml")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[aggregator]\naddress = "centre.example:70000"', "aggregator.address: should end in a port"),
        ('[aggregator]\naddress = "centre.example:0"', "aggregator.address: should end in a port"),
        ('[aggregator]\nproxy = "http://proxy.example:70000/"', "aggregator.proxy: should end in a port"),
        ('[aggregator]\naddress = "centre.example"', "aggregator.address: should have another form"),
        ('[webhook]\nurl = "http://alerts.uk.example/"', "webhook.url"),
        ('[webhook]\nurl = "http://127.0.0.1.uk.example/"', "webhook.url"),
        ('[webhook]\nurl = "ftp://localhost/"', "webhook.url"),
        ('[webhook]\nurl = "https:///path"', "webhook.url"),
        ('[webhook]\nurl = "https://a.example:99999/"', "webhook.url"),
        ('[webhook]\nurl = "https://a.example/x y"', "webhook.url"),
        ('[webhook]\nurl = "https://me:s3cret@a.example/"', "webhook.url"),
        ("[webhook]\ntoken = 's3cret'", "webhook.token: unknown key"),
        ('[email]\nhost = "mail.uk.example"', "email.sender: is missing"),
        ('[email]\nhost = "mail.uk.example"\nsender = "a@uk.example"', "email.to: is missing"),
        (f"[email]\n{MAIL}starttls = false", "email.starttls"),
        (f"[email]\n{MAIL}port = 0", "email.port"),
        (f"[email]\n{MAIL.replace('b@', 'b c@')}", "email.to[0]"),
        ('[email]\nhost = "-oProxy"', "email.host"),
        ("[email]\npassword = 's3cret'", "email.password: unknown key"),
        ("[notifications]\nsilent_s = 0", "notifications.silent_s"),
        ("[notifications]\nlow_budget = 20", "notifications.low_budget"),
        ("[notifications]\nlow_budget = nan", "notifications.low_budget"),
        ("[notification]", "notification: unknown section"),
    ],
)
def test_wrong_settings_are_refused_by_key(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.message.startswith(f"{tmp_path / 'site.toml'}: {key}")
    assert caught.value.remedy
    assert "s3cret@" not in str(caught.value)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]:8080"])
def test_this_machine_itself_needs_no_tls(tmp_path: Path, host: str) -> None:
    settings = load(tmp_path, f'[webhook]\nurl = "http://{host}/hook"')
    (way,) = channels_of(tmp_path, settings.notifications, settings.webhook, settings.email)
    assert way.where == f"http://{host}"


def test_a_new_folder_tells_nobody_and_its_template_is_valid(tmp_path: Path) -> None:
    text = template("charite")
    settings = load(tmp_path, text.partition('name = "charite"')[2])
    assert channels_of(tmp_path, settings.notifications, settings.webhook, settings.email) == ()
    proposed = re.sub(r"(?m)^# ([a-z_]+ = )", r"\1", text[text.index("[notifications]") :])
    settings = load(tmp_path, proposed)
    assert settings.notifications.silent_s == 3600
    assert settings.email.to == ("it-on-call@hospital.example",)
    for section in ("notifications", "webhook", "email"):
        assert getattr(settings, section).model_fields_set == set(
            type(getattr(settings, section)).model_fields
        )


def test_every_key_stands_in_the_guide() -> None:
    guide = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    for section in ("notifications", "webhook", "email"):
        model = SiteSettings.model_fields[section].annotation
        assert model is not None
        for key in model.model_fields:
            assert f"| `{section}.{key}` |" in guide


class TestSecrets:
    def write(self, folder: Path, text: str, mode: int = 0o600) -> Path:
        path = folder / "secrets.toml"
        path.write_text(text)
        path.chmod(mode)
        return path

    def test_they_are_for_the_owner_only(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, 'webhook_token = "s3cret"', 0o640)
        with pytest.raises(ConfigError, match=r"secrets\.toml: other users can reach it \(mode 640\)"):
            read_secrets(path)
        path.chmod(0o600)
        assert read_secrets(path).webhook_token == "s3cret"
        assert "s3cret" not in repr(read_secrets(path))

    @pytest.mark.parametrize(
        ("text", "key"),
        [
            ('webhook_tokn = "s3cret"', "webhook_tokn: unknown key"),
            ("webhook_token = 12345", "webhook_token: is not a text"),
            ('webhook_token = "s3cret\\r\\nX: y"', "webhook_token: is not a text"),
            ('smtp_password = ""', "smtp_password: is not a text"),
        ],
    )
    def test_what_is_wrong_is_named_and_not_shown(self, tmp_path: Path, text: str, key: str) -> None:
        with pytest.raises(ConfigError) as caught:
            read_secrets(self.write(tmp_path, text))
        assert f"secrets.toml: {key}" in caught.value.message
        assert "s3cret" not in str(caught.value)
        assert "12345" not in str(caught.value)

    def test_a_login_needs_its_password(self, tmp_path: Path) -> None:
        settings = load(tmp_path, f'[email]\n{MAIL}user = "secfed"')
        with pytest.raises(ConfigError, match=r"email\.user: has no password"):
            channels_of(tmp_path, settings.notifications, settings.webhook, settings.email)
