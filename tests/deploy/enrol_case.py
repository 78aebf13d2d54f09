"""A consortium and its sites in a temporary folder, at a time that the test chooses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from secfed.crypto.identity import Identity
from secfed.deploy.enrolment.consortium import Consortium
from secfed.deploy.enrolment.messages import Request
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.pki import certificate_checks
from secfed.deploy.pki.tls_folder import TlsFiles
from secfed.records.roster_file import read_roster
from secfed.storage import private_files

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
SITES = ("charite", "hcuge", "ukhd")


def consortium(
    folder: Path, *, hosts: tuple[str, ...] = ("localhost", "127.0.0.1"), **more: Any
) -> Consortium:
    return Consortium.create(folder / "centre", "Heart study", hosts, now=NOW, **more)


def site(folder: Path, name: str, *, now: datetime = NOW, passphrase: str | None = None) -> SiteFolder:
    return SiteFolder.create(folder / name, name, now=now, passphrase=passphrase)


def a_request(name: str, *, now: datetime = NOW, identity: Identity | None = None) -> Request:
    """A request of a site that has no folder."""
    from secfed.deploy.pki.key_files import new_tls_key

    identity = identity or Identity.generate(name)
    return Request.verified(Request.sign(identity, new_tls_key(), now), "request")


def admitted(folder: Path, *names: str) -> Consortium:
    """A consortium with these sites, which have no folder."""
    centre = consortium(folder)
    for name in names:
        centre.admit(a_request(name), now=NOW, passphrase=None)
    return centre


def content(path: Path) -> dict[str, Any]:
    return private_files.read_json(path, "a file")


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def admit(centre: Consortium, *sites: SiteFolder, now: datetime = NOW, passphrase: str | None = None) -> None:
    for folder in sites:
        centre.admit(folder.request(), now=now, passphrase=passphrase)


def join(
    centre: Consortium, folder: SiteFolder, *, now: datetime = NOW, passphrase: str | None = None
) -> None:
    reply = content(centre.folder / "replies" / f"{folder.name}.json")
    folder.join(folder.check_reply(reply, "reply", now), passphrase=passphrase)


def enrolled(folder: Path, names: tuple[str, ...] = SITES) -> tuple[Consortium, dict[str, SiteFolder]]:
    """Everyone admitted, joined and with the roster pinned."""
    centre = consortium(folder)
    sites = {name: site(folder, name) for name in names}
    admit(centre, *sites.values())
    for each in sites.values():
        join(centre, each)
        each.trust(read_roster(centre.roster_path), NOW)
    return centre, sites


class Crash(BaseException):
    """Nothing catches it, like a power cut."""


@contextmanager
def crash_after(renames: int) -> Iterator[None]:
    """The power goes off at the rename after so many."""
    left, rename = [renames], os.replace

    def failing(old: Path, new: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Crash
        rename(old, new)

    with pytest.MonkeyPatch.context() as patch, suppress(Crash):
        patch.setattr(os, "replace", failing)
        yield


def check_pair(material: TlsFiles) -> None:
    """Key and certificate belong together."""
    certificate = certificate_checks.load(material.certificate, "c")
    assert load_pem_private_key(material.private_key, None).public_key() == certificate.public_key()
