"""What `secfed site check` finds on this machine: files, versions, disk, socket. It changes nothing."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from secfed import __version__
from secfed.deploy.agent.site_watch import site_channels
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.enrolment.site_status import Level, StatusItem, site_status
from secfed.deploy.pki.tls_folder import TlsFiles
from secfed.deploy.preflight.checks import PreflightCheck, failed, failed_with, passed, skipped
from secfed.deploy.transport.flower import unix_socket
from secfed.errors import ConfigError, LinkError, RosterError, SecfedError, installing

_PACKAGES: Final = ("torch", "grpcio", "prometheus-client", "cryptography")
LEAST_FREE_BYTES: Final = 1_000_000_000
_PATIENCE_S: Final = 5.0


def folder_checks(
    site: SiteFolder, passphrase: Callable[[], str | None], now: datetime
) -> tuple[list[PreflightCheck], TlsFiles | None]:
    """Everything that needs no network, and the TLS files for what does; None where they cannot be used."""
    checks = [versions_check()]
    checks += [_status_check(found) for found in site_status(site, now)]
    material = None
    try:
        secret = passphrase()
        site.identity(secret)
        opened = "identity.key opens and is the one that was enrolled"
        if site.tls.certificate() is not None:  # before that, the line of the certificate says what to do
            material = site.tls_material(secret)
            opened += "; the TLS key belongs to the certificate"
        checks.append(passed("private keys", opened))
    except SecfedError as error:
        checks.append(failed_with("private keys", error))
    checks += notification_checks(site)
    checks.append(disk_check(site))
    return checks, material


def _status_check(found: StatusItem) -> PreflightCheck:
    """A line of ``secfed site status`` as a check."""
    if found.level is not Level.BAD:
        return passed(found.subject, found.text, found.remedy)
    kind = RosterError if found.subject == "roster" else ConfigError
    return failed(found.subject, found.text, found.remedy, kind)


def notification_checks(site: SiteFolder) -> list[PreflightCheck]:
    """Whether the people whom ``site.toml`` names can be told; empty where it names nobody."""
    try:
        channels = site_channels(site)
    except SecfedError as error:
        return [failed_with("notification", error)]
    shown = ", ".join(f"{channel.name} to {channel.where}" for channel in channels)
    return [passed("notification", f"{shown}; to try it: secfed agent notify --test")] if channels else []


def disk_check(
    site: SiteFolder, needed_bytes: int = LEAST_FREE_BYTES, subject: str = "disk"
) -> PreflightCheck:
    """Whether the state folder can take what an exchange writes."""
    state = site.state.absolute()
    there = next(folder for folder in (state, *state.parents) if folder.exists())
    if not os.access(there, os.W_OK):
        remedy = "run this as the agent's account, or chown"
        return failed(subject, f"{site.state}: this account cannot write there", remedy)
    free_bytes = shutil.disk_usage(there).free
    free = f"{site.state}: {free_bytes / 1e9:.1f} GB free"
    if free_bytes < needed_bytes:
        remedy = "free space, or put agent.state of site.toml on another disk"
        return failed(subject, f"{free}, {needed_bytes / 1e9:.1f} GB wanted", remedy)
    return passed(subject, free)


def flower_check(path: Path) -> PreflightCheck:
    """Whether Flower's app can find an agent at this socket."""
    try:
        unix_socket.check_place(path)
    except ConfigError as error:
        return failed_with("flower", error)
    try:
        unix_socket.connect(path, _PATIENCE_S).close()
    except LinkError:
        return skipped("flower", f"no agent listens at {path} now")
    return passed("flower", f"an agent listens at {path}")


def versions_check() -> PreflightCheck:
    """Versions of what an agent needs."""
    found, missing = {"secfed": __version__, "Python": platform.python_version()}, []
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return failed("versions", f"not installed: {', '.join(missing)}", installing("net"))
    listed = ", ".join(f"{name} {version}" for name, version in found.items())
    return passed("versions", f"{listed}; all parties of a study run the same secfed")
