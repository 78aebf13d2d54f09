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
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.enrolment.site_status import site_status
from secfed.deploy.pki.tls_folder import TlsFiles
from secfed.deploy.preflight.checks import (
    LEAST_FREE_BYTES,
    PreflightCheck,
    failed_with,
    folder_check,
    passed,
    skipped,
    space_check,
    versions_check,
)
from secfed.deploy.transport.flower import unix_socket
from secfed.errors import ConfigError, LinkError, SecfedError

_PACKAGES: Final = ("torch", "grpcio", "prometheus-client", "cryptography")
_PATIENCE_S: Final = 5.0


def folder_checks(
    site: SiteFolder, passphrase: Callable[[], str | None], now: datetime
) -> tuple[list[PreflightCheck], TlsFiles | None]:
    """Everything that needs no network, and the TLS files for what does; None where they cannot be used."""
    checks = [versions_check(_versions())]
    checks += [folder_check(found) for found in site_status(site, now)]
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
    checks.append(disk_check(site))
    return checks, material


def disk_check(site: SiteFolder, needed_bytes: int = LEAST_FREE_BYTES) -> PreflightCheck:
    """The disk of the state folder."""
    state = site.state.absolute()
    there = next(folder for folder in (state, *state.parents) if folder.exists())
    free_bytes = shutil.disk_usage(there).free
    return space_check(str(site.state), free_bytes, os.access(there, os.W_OK), needed_bytes)


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


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"secfed": __version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
