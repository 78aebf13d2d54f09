"""``site.toml``: what an administrator sets about the agent itself. What it may do is in ``policy.toml``."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from secfed.config.schema import Strict
from secfed.config.toml_file import read_sections
from secfed.deploy.enrolment.sign_in_settings import OidcSection
from secfed.deploy.notification.settings import EmailSection, SiteNotifications, WebhookSection
from secfed.deploy.pki.names import SITE_PATTERN, check_site_name
from secfed.errors import ConfigError

SETTINGS_FILE: Final = "site.toml"


class SiteSection(Strict):
    """``[site]``."""

    name: str = Field(pattern=SITE_PATTERN, description="the site's name, as in its request")


def _with_a_port(text: str) -> str:
    """Of ``host:port`` or a URL; a larger number would be dialled as another one."""
    if not 1 <= int(text.rstrip("/").rpartition(":")[2]) <= 65535:
        raise ValueError("should end in a port from 1 to 65535")
    return text


class AggregatorSection(Strict):
    """``[aggregator]``."""

    address: Annotated[str, Field(pattern=r"^[^\s/@]+:[0-9]{1,5}$"), AfterValidator(_with_a_port)] | None = (
        Field(
            default=None,
            description='"host:port" to dial instead of the address in the reply',
        )
    )
    proxy: (
        Annotated[str, Field(pattern=r"^http://[^\s/@]+:[0-9]{1,5}/?$"), AfterValidator(_with_a_port)] | None
    ) = Field(
        default=None,
        description='"http://host:port"; leave it out to use https_proxy and no_proxy',
    )


class FlowerSection(Strict):
    """``[flower]``."""

    socket: str | None = Field(
        default=None,
        min_length=1,
        description="the path of a socket: studies come through Flower, and the agent dials nobody",
    )


class AgentSection(Strict):
    """``[agent]``."""

    state: str = Field(
        default="state", min_length=1, description="the folder of journals, ledgers and transcripts"
    )
    metrics_port: int = Field(
        default=9464, ge=0, le=65535, description="the port of metrics on this machine only; 0 for none"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description='"debug", "info", "warning" or "error"'
    )


class TrainingSection(Strict):
    """``[training]``."""

    user: str | None = Field(
        default=None,
        pattern=r"^[a-z_][a-z0-9_.-]{0,31}$",
        description="an account of this machine that training runs in; without it, the agent's own",
    )


class SiteSettings(Strict):
    """The whole file."""

    site: SiteSection
    aggregator: AggregatorSection = AggregatorSection()
    flower: FlowerSection = FlowerSection()
    agent: AgentSection = AgentSection()
    training: TrainingSection = TrainingSection()
    notifications: SiteNotifications = SiteNotifications()
    webhook: WebhookSection = WebhookSection()
    email: EmailSection = EmailSection()
    oidc: OidcSection = OidcSection()


def load_settings(path: Path) -> SiteSettings:
    """Read ``site.toml``."""
    settings = read_sections(path, "the settings of a site", SiteSettings, "site")
    try:
        check_site_name(settings.site.name)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", remedy=error.remedy) from None
    return settings


def template(name: str) -> str:
    """A new ``site.toml`` with every key explained."""
    text = resources.files("secfed.deploy.enrolment").joinpath("site.toml").read_text("utf-8")
    return text.replace("{name}", name)
